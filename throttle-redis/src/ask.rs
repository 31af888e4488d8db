//! What one request asks of the store, and what it is told.

use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;
use throttle_core::Timestamp;
use throttle_core::backend::Call;

use crate::linked::Linked;

/// One request's question about one set.
#[derive(Clone)]
pub(crate) struct Ask {
    pub(crate) linked: Arc<Linked>,
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
        let asked = self.calls.iter().zip(&self.linked.work).filter(|(call, _)| call.key().is_some());
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

/// 2^53, more than any capacity: a greater cost is no different from it, and would not be exact.
pub(crate) const MOST: u64 = 1 << 53;

pub(crate) fn cost_text(cost: u64) -> CostText {
    match cost {
        0..=9 => SmallVec::from_slice(&[b'0' + cost as u8]),
        _ => SmallVec::from_slice(cost.min(MOST).to_string().as_bytes()),
    }
}

/// What the store says about one request.
pub(crate) struct Part {
    pub(crate) now: Timestamp,
    /// The flag, then the values of the policies that apply.
    pub(crate) body: Bytes,
}

impl Part {
    pub(crate) fn flag(&self) -> Option<u8> {
        self.body.first().copied()
    }

    /// The values as the script has read them, empty where there was none.
    pub(crate) fn values(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.body.get(1..).unwrap_or_default();
        std::iter::from_fn(move || {
            let (len, after) = rest.split_first_chunk()?;
            let (value, after) = after.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            rest = after;
            Some(value)
        })
    }
}

/// Takes a reply about several requests apart: its time, then each request's flag and as many values as policies apply to it. `None`
/// if it is cut short or goes on.
pub(crate) fn split(reply: Vec<u8>, applying: impl Iterator<Item = usize>) -> Option<Vec<Part>> {
    let mut rest = Bytes::from(reply);
    let now = time(*rest.split_to_checked(8)?.first_chunk()?)?;
    let mut parts = Vec::with_capacity(applying.size_hint().0);
    for values in applying {
        let mut end = 1;
        for _ in 0..values {
            let len = u32::from_le_bytes(*rest.get(end..)?.first_chunk()?);
            end = end.checked_add(4)?.checked_add(len as usize)?;
        }
        parts.push(Part { now, body: rest.split_to_checked(end)? });
    }
    rest.is_empty().then_some(parts)
}

trait SplitChecked: Sized {
    fn split_to_checked(&mut self, at: usize) -> Option<Self>;
}

impl SplitChecked for Bytes {
    fn split_to_checked(&mut self, at: usize) -> Option<Self> {
        (at <= self.len()).then(|| self.split_to(at))
    }
}

/// A script's number, if it is a whole one.
fn time(bytes: [u8; 8]) -> Option<Timestamp> {
    let micros = f64::from_le_bytes(bytes);
    let whole = micros as i64;
    (whole as f64 == micros).then(|| Timestamp::from_micros(whole))
}
