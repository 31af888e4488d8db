use std::borrow::Cow;
use std::sync::Arc;

use throttle_core::Backend;

use super::ask::Asked;
use crate::throttle::shared::Shared;

/// What a request is decided by: the limits of the layer, or those with its own numbers. Where the backend refuses a
/// limit's numbers, the tier of unknown identities applies, and the other limits keep theirs.
pub(super) fn decided_by<'a, B: Backend>(shared: &'a Arc<Shared<B>>, asked: &mut Asked) -> Cow<'a, Arc<Shared<B>>> {
    let Asked { own: Some(own), calls, .. } = asked else { return Cow::Borrowed(shared) };
    shared.with_own(own, |place, tier| calls[place] = calls[place].clone().in_tier(tier))
}
