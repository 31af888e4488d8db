//! The store's answer about one request, and the decision that follows from it.

use bytes::{Buf, Bytes};
use smallvec::SmallVec;
use throttle_core::algorithm::State;
use throttle_core::backend::{Exception, Treatment};
use throttle_core::{Decision, Timestamp};

use super::request::Ask;
use crate::link::call_error::CallError;

/// The store's answer about one request.
pub(crate) struct Part {
    pub(crate) now: Timestamp,
    /// The flag, then the values of the policies that apply.
    pub(crate) body: Bytes,
}

impl Part {
    pub(crate) fn flag(&self) -> Option<u8> {
        self.body.first().copied()
    }

    /// The values as the script read them; empty where none was stored.
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

/// The answers about all requests of a call, in their order.
pub(crate) type Parts = SmallVec<[Part; 1]>;

/// Splits a reply about several requests: its time, then each request's flag and one value for each
/// policy that applies to it. `None` if the reply is truncated or has trailing bytes.
pub(crate) fn split(reply: Vec<u8>, applying: impl Iterator<Item = usize>) -> Option<Parts> {
    let mut rest = Bytes::from(reply);
    let now = time(*rest.first_chunk()?)?;
    rest.advance(8);
    let mut parts = Parts::with_capacity(applying.size_hint().0);
    for values in applying {
        let mut end = 1;
        for _ in 0..values {
            let len = u32::from_le_bytes(*rest.get(end..)?.first_chunk()?);
            end = end.checked_add(4)?.checked_add(len as usize)?;
        }
        parts.push(Part {
            now,
            body: (end <= rest.len()).then(|| rest.split_to(end))?,
        });
    }
    rest.is_empty().then_some(parts)
}

/// A script's number, if it is a whole one.
fn time(bytes: [u8; 8]) -> Option<Timestamp> {
    let micros = f64::from_le_bytes(bytes);
    let whole = micros as i64;
    (whole as f64 == micros).then(|| Timestamp::from_micros(whole))
}

const UNREADABLE: CallError = CallError::Malformed("a state in the script's reply cannot be read");

/// What the script replied in place of `W` and of any other flag that is unknown.
pub(crate) fn unexpected(flag: Option<u8>) -> CallError {
    CallError::Malformed(match flag {
        Some(b'W') => "a key holds something that is no state of a limit",
        _ => "the script's reply has no flag",
    })
}

/// The whole decision, computed by the library from the states that the script read.
pub(crate) fn answer(ask: &Ask, part: &Part) -> Result<Decision, CallError> {
    let admitted = match part.flag() {
        Some(b'A') => true,
        Some(b'D') => false,
        flag => return Err(unexpected(flag)),
    };
    let set = &ask.prepared.set;
    let mut states = states(ask, part).ok_or(UNREADABLE)?;
    let decision = set.decide(&mut states, part.now, &ask.calls);
    if decision.is_admitted() == admitted {
        Ok(decision)
    } else {
        Err(CallError::Malformed("the script and the library disagree"))
    }
}

/// The state that a question about one policy was decided on.
pub(crate) fn only_state(ask: &Ask, part: &Part) -> Result<State, CallError> {
    states(ask, part)
        .and_then(|mut states| states.pop())
        .ok_or(UNREADABLE)
}

/// Whether no value was written by other parameters than those that decided, or else has an
/// exception in force of which `may_be` holds.
pub(crate) fn is_own(ask: &Ask, part: &Part, may_be: fn(&Exception) -> bool) -> bool {
    let is_excepted = |value: &[u8], header: &[u8]| {
        let Some((exception, beneath)) = Exception::from_wire(value) else {
            return false;
        };
        // Strikes change nothing but while the key is banned.
        let is_as_usual =
            matches!(exception.treatment, Treatment::Struck(_)) && beneath.starts_with(header);
        is_as_usual || part.now < exception.ends() && may_be(&exception)
    };
    let mut values = part.values();
    let mut applying = ask
        .calls
        .iter()
        .zip(ask.headers())
        .filter(|(call, _)| call.key().is_some());
    applying.all(|(_, header)| {
        values.next().is_none_or(|value| {
            value.is_empty() || value.starts_with(&header) || is_excepted(value, &header)
        })
    })
}

/// The states of all policies; a policy that does not apply has a fresh state.
pub(crate) fn states(ask: &Ask, part: &Part) -> Option<SmallVec<[State; 3]>> {
    let mut values = part.values();
    let policies = ask.calls.iter().zip(ask.prepared.set.policies());
    policies
        .map(|(call, policy)| {
            let algorithm = call.parameters(policy);
            match call.key().map(|_| values.next()) {
                None | Some(Some([])) => Some(algorithm.fresh()),
                Some(None) => None,
                Some(Some(value)) => State::from_wire(algorithm, value),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::sync::Arc;

    use smallvec::smallvec;
    use throttle_core::backend::Call;
    use throttle_core::{BackendError, FixedWindow, Key, Policy, PolicySet, Rate};

    use super::*;
    use crate::script::prepared_set::PreparedSet;

    const NOW: f64 = 1_790_000_000_000_000.0;

    /// A reply at a time: a flag, then values.
    fn reply(now: f64, flag: u8, values: &[&[u8]]) -> Vec<u8> {
        let value = |value: &&[u8]| [&(value.len() as u32).to_le_bytes()[..], value].concat();
        [
            &now.to_le_bytes()[..],
            &[flag],
            &values.iter().flat_map(value).collect::<Vec<u8>>(),
        ]
        .concat()
    }

    #[test]
    fn a_reply_is_split_only_if_it_is_whole() {
        let long = vec![7; 300];
        let whole = reply(NOW, b'A', &[b"abc", &long, b""]);
        let parts = split(whole.clone(), [3].into_iter()).expect("three values");
        assert_eq!(
            parts[0].values().collect::<Vec<_>>(),
            [&b"abc"[..], &long, b""]
        );
        for cut in 0..whole.len() {
            assert!(
                split(whole[..cut].to_vec(), [3].into_iter()).is_none(),
                "{cut} bytes"
            );
        }
        assert!(split([&whole[..], b"x"].concat(), [3].into_iter()).is_none());
        for values in [0, 2, 4] {
            assert!(
                split(whole.clone(), [values].into_iter()).is_none(),
                "{values} values"
            );
        }
    }

    /// A reply that ends inside its last value or before its last flag, too.
    #[test]
    fn a_reply_about_several_requests_is_split_only_if_all_of_it_is_there() {
        for (last, values) in [(&[&b"abc"[..], b"last"][..], 2), (&[], 0)] {
            let second = reply(NOW, b'D', last).split_off(8);
            let whole = [reply(NOW, b'A', &[b"one"]), second].concat();
            let applying = || [1, values].into_iter();
            let parts = split(whole.clone(), applying()).expect("two requests");
            assert_eq!([parts[0].flag(), parts[1].flag()], [Some(b'A'), Some(b'D')]);
            assert_eq!(parts[0].values().collect::<Vec<_>>(), [b"one"]);
            assert_eq!(parts[1].values().collect::<Vec<_>>(), last);
            for cut in 0..whole.len() {
                assert!(
                    split(whole[..cut].to_vec(), applying()).is_none(),
                    "{cut} of {} bytes",
                    whole.len()
                );
            }
            assert!(split([&whole[..], b"x"].concat(), applying()).is_none());
        }
    }

    #[test]
    fn a_time_is_a_whole_number() {
        for (now, is_time) in [
            (NOW, true),
            (-1.0, true),
            (0.5, false),
            (f64::NAN, false),
            (f64::INFINITY, false),
        ] {
            assert_eq!(
                split(reply(now, b'A', &[]), [0].into_iter()).is_some(),
                is_time,
                "{now}"
            );
        }
    }

    #[test]
    fn an_answer_that_is_no_decision_says_why() {
        let policy = Policy::new("p", FixedWindow::new(Rate::per_day(1))).expect("a policy");
        let algorithm = *policy.algorithm();
        let set = PolicySet::new(policy).expect("a set");
        let (calls, names) = (
            smallvec![Call::from(Key::from("ada"))],
            smallvec![b"p:ada".to_vec()],
        );
        let ask = Ask {
            prepared: Arc::new(PreparedSet::new(set)),
            calls,
            names,
            slot: 0,
            as_of: None,
        };
        let used = algorithm
            .decide(algorithm.fresh(), Timestamp::from_micros(NOW as i64), 1)
            .0;
        let used = used.to_wire(&algorithm).expect("a value");
        let said = |flag: u8, values: &[&[u8]]| {
            let part = split(reply(NOW, flag, values), [values.len()].into_iter())
                .expect("whole")
                .remove(0);
            let error = answer(&ask, &part)
                .map(|decision| decision.is_admitted())
                .map_err(BackendError::from);
            error.map_err(|error| error.source().expect("a reason").to_string())
        };
        assert_eq!(
            (said(b'A', &[b""]), said(b'D', &[&used])),
            (Ok(true), Ok(false))
        );
        let disagree = Err("the script and the library disagree".to_owned());
        assert_eq!(
            (said(b'D', &[b""]), said(b'A', &[&used])),
            (disagree.clone(), disagree)
        );
        let unreadable = Err("a state in the script's reply cannot be read".to_owned());
        assert_eq!(
            (said(b'A', &[]), said(b'A', &[b"nonsense"])),
            (unreadable.clone(), unreadable)
        );
        assert_eq!(
            said(b'W', &[b""]),
            Err("a key holds something that is no state of a limit".to_owned())
        );
        assert_eq!(
            said(b'x', &[b""]),
            Err("the script's reply has no flag".to_owned())
        );
    }
}
