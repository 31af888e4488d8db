use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use throttle_core::backend::{Answer, Call, ExceptedKey, KeyStep, Receipt};
use throttle_core::{Backend, Decision, PolicyName, PolicySet, Timestamp};

use super::announcement::Announcement;
use super::local_shares::Shares;
use super::optional_steps::OptionalSteps;
use super::options::Options;
use super::permits::Permits;
use super::queues::Queues;
use super::selection_table::SelectionTable;
use crate::client_ip::first_requests::KnownSources;
use crate::event::LayerVersion;
use crate::limit::{LimitSettings, Selection};

/// What the clones of a layer and its services share.
pub(crate) struct SharedLayer<B: Backend> {
    pub(crate) backend: B,
    pub(crate) prepared: Arc<B::Prepared>,
    /// The same for the requests to which not all limits apply, if many are selected.
    pub(super) narrowed: Option<SelectionTable<Arc<Self>>>,
    pub(super) common: LayerCommon,
}

/// The part of a layer that does not depend on the type of its backend.
pub(crate) struct LayerCommon {
    /// The limits, for observers.
    pub(crate) version: LayerVersion,
    /// How each policy of the set is applied.
    pub(crate) applied: Arc<[LimitSettings]>,
    /// What finds the limits that apply, of compositions with a `select`.
    pub(crate) selections: Arc<[Arc<Selection>]>,
    pub(super) uses: OptionalSteps,
    /// Which sources of the client's address have found clients.
    pub(super) sources: Arc<KnownSources>,
    pub(crate) permits: Arc<Permits>,
    pub(super) queues: Arc<Queues>,
    /// What this process decides by when the store does not, if a limit says so.
    pub(super) share: Option<Shares>,
    pub(crate) options: Options,
    /// Also part of every report, so that a request clones one pointer only.
    pub(crate) announced: Arc<Announcement>,
}

impl<B: Backend> Deref for SharedLayer<B> {
    type Target = LayerCommon;

    #[inline]
    fn deref(&self) -> &LayerCommon {
        &self.common
    }
}

impl<B: Backend> SharedLayer<B> {
    pub(super) fn erased(self: &Arc<Self>) -> Arc<dyn ErasedLayer> {
        Arc::<Self>::clone(self)
    }
}

impl<B: Backend> DerefMut for SharedLayer<B> {
    fn deref_mut(&mut self) -> &mut LayerCommon {
        &mut self.common
    }
}

impl LayerCommon {
    pub(super) fn name_of(&self, limit: &LimitSettings) -> &PolicyName {
        &self.version.info().limits()[limit.limit_index].name
    }
}

/// A layer on a backend of any type, for the steps that few layers take: the setter that turns them
/// on stores a pointer to their functions, so a program that does not call it does not contain
/// them.
pub(crate) trait ErasedLayer: Deref<Target = LayerCommon> + Send + Sync {
    fn set(&self) -> &PolicySet;
    fn can_fail(&self) -> bool;
    /// What this process decides by when the store does not, if a limit says so.
    fn share(&self) -> Option<&Shares>;
    fn now(&self, calls: &[Call]) -> Option<Timestamp>;
    fn decide_at_once(&self, calls: &[Call]) -> Option<Decision>;
    fn decide(&self, calls: &[Call]) -> Answer<Decision>;
    fn decide_as_of(&self, calls: &[Call], at: Timestamp) -> Answer<Decision>;
    fn settle(&self, receipt: Receipt) -> Answer<()>;
    fn run(&self, index: usize, step: KeyStep) -> Answer<Vec<ExceptedKey>>;
}

impl<B: Backend> ErasedLayer for SharedLayer<B> {
    fn set(&self) -> &PolicySet {
        B::set(&self.prepared)
    }

    fn can_fail(&self) -> bool {
        self.backend.can_fail()
    }

    /// The test is a constant in layers whose backend cannot fail.
    #[inline]
    fn share(&self) -> Option<&Shares> {
        self.share.as_ref().filter(|_| self.backend.can_fail())
    }

    fn now(&self, calls: &[Call]) -> Option<Timestamp> {
        self.backend.now(&self.prepared, calls)
    }

    fn decide_at_once(&self, calls: &[Call]) -> Option<Decision> {
        self.backend.decide_at_once(&self.prepared, calls)
    }

    fn decide(&self, calls: &[Call]) -> Answer<Decision> {
        Box::pin(self.backend.decide(&self.prepared, calls))
    }

    fn decide_as_of(&self, calls: &[Call], at: Timestamp) -> Answer<Decision> {
        Box::pin(self.backend.decide_as_of(&self.prepared, calls, at))
    }

    fn settle(&self, receipt: Receipt) -> Answer<()> {
        Box::pin(self.backend.settle(&self.prepared, receipt))
    }

    fn run(&self, index: usize, step: KeyStep) -> Answer<Vec<ExceptedKey>> {
        self.backend.run(&self.prepared, index, step)
    }
}
