use std::sync::Arc;

use throttle_core::Backend;

use super::announced::{Announced, Replaced};
use super::local_shares::Shares;
use super::options::Options;
use super::permits::Permits;
use super::queues::Queues;
use crate::limit::{Applied, ChargeRules};
use crate::observe::BuiltOn;

/// What the clones of a layer and its services share.
pub(crate) struct Shared<B: Backend> {
    pub(super) backend: B,
    /// The backend, for observers.
    pub(super) built_on: Arc<BuiltOn>,
    pub(super) prepared: Arc<B::Prepared>,
    /// How each policy of the set is applied.
    pub(super) applied: Arc<[Applied]>,
    pub(super) uses: Uses,
    pub(super) permits: Arc<Permits>,
    pub(super) queues: Arc<Queues>,
    /// What this process decides by when the store does not, if a limit says so.
    pub(super) share: Option<Shares>,
    pub(super) options: Options,
    /// Also part of every report, so that a request clones one pointer only.
    pub(super) announced: Arc<Announced>,
    pub(super) replaced: Arc<Replaced>,
}

impl<B: Backend> Clone for Shared<B> {
    fn clone(&self) -> Self {
        Self {
            backend: self.backend.clone(),
            built_on: Arc::clone(&self.built_on),
            prepared: Arc::clone(&self.prepared),
            applied: Arc::clone(&self.applied),
            uses: self.uses,
            permits: Arc::clone(&self.permits),
            queues: Arc::clone(&self.queues),
            share: self.share.clone(),
            options: self.options.clone(),
            announced: Arc::clone(&self.announced),
            // A clone is made to have other options, for which it is written anew.
            replaced: Arc::default(),
        }
    }
}

/// Which optional steps some limit of the layer uses. A step that none uses costs a request nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Uses {
    /// A charge may change after the decision.
    pub(super) accounts: bool,
    /// A handler may change a charge.
    pub(super) handlers: bool,
    pub(super) charge_refused: bool,
    pub(super) refund_aborted: bool,
    /// A key depends on the route, or whether a limit applies does.
    pub(super) routes: bool,
    /// Whether a limit of requests in flight applies depends on the route.
    pub(super) routes_for_permits: bool,
    /// Requests may wait in a queue.
    pub(super) queues: bool,
}

impl Uses {
    pub(super) fn of(applied: &[Applied], permits: &Permits) -> Self {
        let any = |uses: fn(&ChargeRules) -> bool| applied.iter().any(|limit| uses(&limit.charge_rules));
        Self {
            accounts: any(ChargeRules::may_change),
            handlers: any(|rules| rules.settled_later),
            charge_refused: any(|rules| rules.charge_refused),
            refund_aborted: any(|rules| rules.refund_aborted),
            routes: applied.iter().any(|limit| limit.by_route || limit.for_some_routes)
                || permits.are_for_some_routes(),
            routes_for_permits: permits.are_for_some_routes(),
            queues: applied.iter().any(|limit| limit.wait_up_to.is_some()),
        }
    }
}
