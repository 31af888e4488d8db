//! The set of the limits that are selected for a request: see `selection_table`.

use std::sync::Arc;

use throttle_core::{Backend, PolicyNode, PolicySet, PolicyTree};

use crate::limit::SelectedLimits;
use crate::throttle::shared_layer::{ErasedLayer, SharedLayer};
use crate::throttle::version::{make_share, without_local_share};

/// What decides about a request for which these limits are selected.
#[inline]
pub(super) fn narrow<'s, B: Backend>(
    whole: &'s Arc<SharedLayer<B>>,
    selected: &SelectedLimits,
) -> &'s Arc<SharedLayer<B>> {
    let Some(narrowed) = &whole.narrowed else {
        return whole;
    };
    narrowed
        .find(selected, || only(whole, selected))
        .unwrap_or(whole)
}

/// The same layer with only those of the selected limits; `None` if the backend does not take them.
fn only<B: Backend>(
    whole: &SharedLayer<B>,
    selected: &SelectedLimits,
) -> Option<Arc<SharedLayer<B>>> {
    let stays = |index: usize| {
        let limit = &whole.applied[index];
        !limit.may_be_left_out() || selected.binary_search(&limit.limit_index).is_ok()
    };
    let set = part(B::set(&whole.prepared), 0, &stays)
        .map_or_else(|| Ok(PolicySet::none()), PolicySet::new)
        .ok()?;
    let applied = (0..whole.applied.len())
        .filter(|index| stays(*index))
        .map(|index| whole.applied[index].where_it_is_selected())
        .collect();
    // A limit has one share, whatever set it is in: the options have its store.
    let settings = (whole.options.clone(), whole.announced.options.clone());
    let mut shared = without_local_share(
        whole.backend.clone(),
        set,
        applied,
        Arc::clone(&whole.permits),
        settings,
        Some(whole.version.clone()),
    )
    .ok()?;
    if whole.share().is_some() {
        make_share(&mut shared).ok()?;
    }
    shared.sources = Arc::clone(&whole.sources);
    // A limit that is left out may be for some routes.
    shared.uses.routes = whole.uses.routes;
    shared.uses.for_some_routes = whole.uses.for_some_routes;
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
        PolicyNode::Policy(index) => stays(index).then(|| set.policies()[index].clone().into()),
        PolicyNode::All => members().map(PolicyTree::All),
        PolicyNode::Any(charge) => members().map(|members| PolicyTree::Any(members, charge)),
    }
}

#[cfg(test)]
mod tests;
