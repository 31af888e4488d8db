//! What a layer decides by now: always the same, or what its rule file says at the moment.

use std::sync::Arc;

use throttle_core::Backend;

#[cfg(feature = "rules")]
use super::followed::Live;
use super::shared::Shared;

pub(crate) enum Current<B: Backend> {
    Fixed(Arc<Shared<B>>),
    #[cfg(feature = "rules")]
    Live(Arc<Live<B>>),
}

impl<B: Backend> Current<B> {
    pub(crate) fn fixed(shared: Shared<B>) -> Self {
        Self::Fixed(Arc::new(shared))
    }

    /// Calls `read` with what the layer decides by now. A request reads it once, and keeps to it
    /// until its response.
    #[inline(always)]
    pub(crate) fn with<R>(&self, read: impl FnOnce(&Arc<Shared<B>>) -> R) -> R {
        #[cfg(feature = "rules")]
        let now;
        let shared = match self {
            Self::Fixed(shared) => shared,
            #[cfg(feature = "rules")]
            Self::Live(live) => {
                now = live.now();
                &now
            }
        };
        read(shared)
    }

    /// The same limits with other settings, for a layer that has them to itself.
    #[must_use]
    pub(super) fn changed(self, change: impl FnOnce(&mut Shared<B>)) -> Self {
        match self {
            Self::Fixed(mut shared) => {
                let shared_alone = Arc::make_mut(&mut shared);
                change(shared_alone);
                // What was made for requests so far has the former settings.
                shared_alone.narrowed = shared_alone.narrowed.clone();
                Self::Fixed(shared)
            }
            #[cfg(feature = "rules")]
            Self::Live(live) => Self::Live(live.fork(|shared| {
                let mut shared = shared.clone();
                change(&mut shared);
                shared
            })),
        }
    }

    /// The same limits on another backend.
    pub(super) fn moved<C: Backend, E>(
        self,
        build: impl FnOnce(&Shared<B>) -> Result<Shared<C>, E>,
    ) -> Result<Current<C>, E> {
        match self {
            Self::Fixed(shared) => build(&shared).map(Current::fixed),
            #[cfg(feature = "rules")]
            Self::Live(live) => live.try_fork(build).map(Current::Live),
        }
    }
}

impl<B: Backend> Clone for Current<B> {
    fn clone(&self) -> Self {
        match self {
            Self::Fixed(shared) => Self::Fixed(Arc::clone(shared)),
            #[cfg(feature = "rules")]
            Self::Live(live) => Self::Live(Arc::clone(live)),
        }
    }
}
