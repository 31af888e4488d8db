use std::sync::Arc;

use throttle_core::{Backend, PolicyName};

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
    /// The limits, for observers.
    pub(crate) version: LayerVersion,
    pub(crate) prepared: Arc<B::Prepared>,
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
    /// The same for the requests to which not all limits apply, if many are selected.
    pub(super) narrowed: Option<SelectionTable<Arc<Self>>>,
}

impl<B: Backend> SharedLayer<B> {
    /// What this process decides by when the store does not, if a limit says so. The test is a
    /// constant of a store in memory, so a program with no other store links nothing of shares.
    #[inline]
    pub(super) fn share(&self) -> Option<&Shares> {
        self.share.as_ref().filter(|_| self.backend.can_fail())
    }

    pub(super) fn name_of(&self, limit: &LimitSettings) -> &PolicyName {
        &self.version.info().limits()[limit.limit_index].name
    }
}

impl<B: Backend> Clone for SharedLayer<B> {
    fn clone(&self) -> Self {
        Self {
            backend: self.backend.clone(),
            version: self.version.clone(),
            prepared: Arc::clone(&self.prepared),
            applied: Arc::clone(&self.applied),
            selections: Arc::clone(&self.selections),
            uses: self.uses,
            sources: Arc::clone(&self.sources),
            permits: Arc::clone(&self.permits),
            queues: Arc::clone(&self.queues),
            share: self.share.clone(),
            options: self.options.clone(),
            announced: Arc::clone(&self.announced),
            narrowed: self.narrowed.clone(),
        }
    }
}
