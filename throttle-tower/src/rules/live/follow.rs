//! How a layer becomes one of those whose limits are replaced together.

use std::sync::Arc;

use throttle_core::Backend;

use crate::ThrottleLayer;
use crate::throttle::{Current, Followers, Live};

impl<B: Backend> ThrottleLayer<B> {
    /// The same layer, with limits that are replaced together with those of other followers.
    pub(crate) fn following(self, followers: &Arc<Followers>) -> Self {
        let shared = self.current.with(Arc::clone);
        Self { current: Current::Live(Live::of(shared, followers)) }
    }
}
