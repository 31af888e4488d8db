//! The limits that a request is asked about: see `narrowed`.

use std::sync::Arc;

use http::request::Parts;
use throttle_core::{Backend, PolicyNode, PolicySet, PolicyTree};

use crate::limit::Numbers;
use crate::throttle::announced::Part;
use crate::throttle::build::{make_share, unshared};
use crate::throttle::shared::Shared;

/// The conditions that hold for a request which the whole set decides.
pub(super) type Holding = Option<Box<Numbers>>;

/// What decides about a request. Conditions that it says to hold are not asked again.
#[inline]
pub(super) fn narrow<'s, B: Backend>(
    whole: &'s Arc<Shared<B>>,
    parts: &Parts,
) -> (&'s Arc<Shared<B>>, Holding) {
    let Some(narrowed) = &whole.narrowed else {
        return (whole, None);
    };
    match narrowed.find(parts, |holding| {
        only(whole, &|place| narrowed.applies(place, holding))
    }) {
        Ok(shared) => (shared, None),
        Err(holding) => (whole, Some(holding)),
    }
}

/// Whether the limit at an index, which has a condition, applies to a request.
#[inline]
pub(super) fn applies<B: Backend>(
    shared: &Shared<B>,
    place: usize,
    holding: &Holding,
    parts: &Parts,
) -> bool {
    let limit = &shared.applied[place];
    match (holding, &shared.narrowed) {
        (Some(holding), Some(narrowed)) if limit.may_be_left_out() => {
            narrowed.applies(place, holding)
        }
        _ => limit.when.as_ref().is_none_or(|when| when.holds(parts)),
    }
}

/// The same layer with only those of the limits that may be left out of which `applies` is true;
/// `None` if the backend does not take them.
fn only<B: Backend>(whole: &Shared<B>, applies: &dyn Fn(usize) -> bool) -> Option<Arc<Shared<B>>> {
    let stays = |place: usize| !whole.applied[place].may_be_left_out() || applies(place);
    let places: Box<[usize]> = (0..whole.applied.len())
        .filter(|place| stays(*place))
        .collect();
    let set = part(B::set(&whole.prepared), 0, &stays)
        .map_or_else(|| Ok(PolicySet::none()), PolicySet::new)
        .ok()?;
    let applied = places
        .iter()
        .map(|place| whole.applied[*place].where_it_applies())
        .collect();
    // A limit has one share, whatever set it is in: the options have its store.
    let settings = (whole.options.clone(), whole.announced.options.clone());
    let mut shared = unshared(
        whole.backend.clone(),
        set,
        applied,
        Arc::clone(&whole.permits),
        settings,
    )
    .ok()?;
    if whole.share.is_some() {
        make_share(&mut shared).ok()?;
    }
    shared.version = whole.version.clone();
    shared.sources = Arc::clone(&whole.sources);
    // A limit that is left out may be for some routes.
    shared.uses.routes = whole.uses.routes;
    shared.uses.for_some_routes = whole.uses.for_some_routes;
    let announced = Arc::make_mut(&mut shared.announced);
    announced.part = Some(Arc::new(Part::new(&whole.announced, places)));
    announced.info = whole.announced.info.clone();
    Some(Arc::new(shared))
}

/// The part of a composition that stays. An `all` or `any` of which nothing stays does not apply.
fn part(set: &PolicySet, node: usize, stays: &dyn Fn(usize) -> bool) -> Option<PolicyTree> {
    let members = || {
        Some(
            set.members(node)
                .filter_map(|member| part(set, member, stays))
                .collect::<Vec<_>>(),
        )
    };
    let members = || members().filter(|members| !members.is_empty());
    match set.node(node) {
        PolicyNode::Policy(place) => stays(place).then(|| set.policies()[place].clone().into()),
        PolicyNode::All => members().map(PolicyTree::All),
        PolicyNode::Any(charge) => members().map(|members| PolicyTree::Any(members, charge)),
    }
}

#[cfg(test)]
mod tests;
