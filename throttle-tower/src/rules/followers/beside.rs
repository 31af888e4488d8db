//! The candidate that rules name, beside the limits of a layer.

use std::any::Any;
use std::sync::Arc;

use throttle_core::{Backend, ConfigError};

use crate::candidate::{Candidate, Candidates, store_beside};
use crate::event::Observers;
use crate::throttle::Shared;
use crate::{ThrottleBuilder, ThrottleLayer};

/// The observers of a layer, with the candidate of its rules and without the former one. Where it
/// has the same name, it keeps its counts and its store.
///
/// # Errors
///
/// If there is another candidate of its name, or no store for it.
pub(in crate::rules) fn beside<B: Backend>(
    shared: &Shared<B>,
    candidate: Option<(&str, &ThrottleBuilder)>,
) -> Result<Observers, ConfigError> {
    let observers = &shared.options.observers;
    let mut all: Candidates = observers.find().cloned().unwrap_or_default();
    let former = all
        .0
        .iter()
        .position(|own| own.is_of_rules)
        .map(|place| all.0.remove(place));
    if let Some((name, builder)) = candidate {
        let former = former.filter(|former| *former.name == *name);
        let of_this_kind = former
            .as_ref()
            .and_then(|former| (&*former.trial as &dyn Any).downcast_ref::<ThrottleLayer<B>>());
        let store = match of_this_kind {
            Some(layer) => layer.current.now().backend.clone(),
            None => store_beside(&shared.backend, name)?,
        };
        // Its limits stand in another file than those of the layer.
        let of_its_own = |error: ConfigError| {
            ConfigError::new("candidate", format_args!("{name:?}"), error.to_string())
        };
        let layer = builder.clone().backend(store).build().map_err(of_its_own)?;
        let trial = Arc::new(layer);
        let counts = former.map(|former| former.counts).unwrap_or_default();
        all.add(Candidate {
            name: name.into(),
            counts,
            trial,
            is_of_rules: true,
        })?;
    }
    Ok(if all.0.is_empty() {
        observers.without::<Candidates>()
    } else {
        observers.with(all)
    })
}
