//! The question that one request sends to the store.

use std::sync::Arc;

use smallvec::SmallVec;
use throttle_core::Timestamp;
use throttle_core::backend::Call;

use super::prepared::Prepared;

/// One request's question about one set.
#[derive(Clone)]
pub(crate) struct Ask {
    pub(crate) prepared: Arc<Prepared>,
    /// One call per policy.
    pub(crate) calls: SmallVec<[Call; 3]>,
    /// The names of the keys of the policies that apply.
    pub(crate) names: SmallVec<[Vec<u8>; 3]>,
    pub(crate) slot: u16,
    /// An instant that has passed, by the server's clock, for a request that was due then.
    pub(crate) as_of: Option<Timestamp>,
}

impl Ask {
    /// What the decision costs the server, in microseconds.
    pub(crate) fn work(&self) -> u32 {
        let asked = self.calls.iter().zip(&self.prepared.work).filter(|(call, _)| call.key().is_some());
        asked.map(|(_, work)| work).sum()
    }

    /// One word per policy: the cost, or nothing where it does not apply.
    pub(crate) fn costs(&self) -> impl Iterator<Item = CostText> + '_ {
        self.calls.iter().map(|call| match call.key() {
            Some(_) => cost_text(call.cost()),
            None => CostText::new(),
        })
    }
}

pub(crate) type CostText = SmallVec<[u8; 20]>;

/// 2^53, more than any capacity: a greater cost is refused just the same, and would not be exact as a double.
pub(crate) const MOST: u64 = 1 << 53;

pub(crate) fn cost_text(cost: u64) -> CostText {
    match cost {
        0..=9 => SmallVec::from_slice(&[b'0' + cost as u8]),
        _ => SmallVec::from_slice(cost.min(MOST).to_string().as_bytes()),
    }
}
