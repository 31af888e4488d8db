//! Builds a store from a snapshot.

use std::sync::Arc;

use siphasher::sip128::SipHasher13;

use super::{MAGIC, RestoreError};
use crate::algorithm::{Algorithm, Cell, Exception, Repr, State};
use crate::memory::key_hash::{KeyHash, KeyHasher};
use crate::memory::policies::Parameters;
use crate::memory::shard::{Shard, StateWriter};
use crate::memory::slot::Label;
use crate::memory::store::Store;
use crate::time::Timestamp;

impl Store {
    /// A store of the keys that are still live at `now`.
    pub(in crate::memory) fn read(
        bytes: &[u8],
        max_keys: usize,
        now: Timestamp,
    ) -> Result<Self, RestoreError> {
        let mut rest = bytes
            .strip_prefix(MAGIC)
            .ok_or(RestoreError::NotASnapshot)?;
        let (body, digest) = bytes
            .split_last_chunk::<16>()
            .ok_or(RestoreError::Damaged)?;
        if SipHasher13::new().hash(body).as_u128() != u128::from_le_bytes(*digest) {
            return Err(RestoreError::Damaged);
        }
        let saved_at = Timestamp::from_micros(i64::from_le_bytes(take(&mut rest)?));
        let store = Self::with_hasher(max_keys, KeyHasher::of_secret(&take(&mut rest)?));
        let mut restored = RestoreProgress {
            store,
            saved_at,
            now,
            parameters: Vec::new(),
            exception: None,
            keys: 0,
        };
        let shards = u64::from_le_bytes(take(&mut rest)?);
        loop {
            let [kind] = take(&mut rest)?;
            match kind {
                b'p' | b'q' => restored.take_parameters(kind == b'q', &mut rest)?,
                b'k' | b'd' | b'o' => restored.take_key(kind, shards, &mut rest)?,
                b'x' => restored.take_exception(&mut rest)?,
                b'e' => break,
                _ => return Err(RestoreError::Damaged),
            }
        }
        let horizon = Timestamp::from_micros(i64::from_le_bytes(take(&mut rest)?));
        // A horizon in the future would put off every new key.
        let horizon = if saved_at > now {
            horizon.min(now)
        } else {
            horizon
        };
        if u64::from_le_bytes(take(&mut rest)?) != restored.keys || rest.len() != digest.len() {
            return Err(RestoreError::Damaged);
        }
        restored
            .store
            .shards
            .iter()
            .for_each(|shard| shard.lock().absent.raise_horizon(horizon));
        Ok(restored.store)
    }
}

struct RestoreProgress {
    store: Store,
    saved_at: Timestamp,
    now: Timestamp,
    parameters: Vec<Parameters>,
    /// That of the next key.
    exception: Option<Exception>,
    keys: u64,
}

impl RestoreProgress {
    fn take_parameters(&mut self, own: bool, rest: &mut &[u8]) -> Result<(), RestoreError> {
        let [len] = take(rest)?;
        let name = take_slice(rest, len.into())?;
        let len = u16::from_le_bytes(take(rest)?);
        let algorithm =
            Algorithm::from_tag(take_slice(rest, len.into())?).ok_or(RestoreError::Damaged)?;
        let name = str::from_utf8(name).map_err(|_| RestoreError::Damaged)?;
        let parameters = self
            .store
            .shared
            .policies
            .restore(name, algorithm, own)
            .map_err(RestoreError::TooManyPolicies)?;
        self.parameters.push(parameters);
        Ok(())
    }

    fn take_exception(&mut self, rest: &mut &[u8]) -> Result<(), RestoreError> {
        let len = u16::from_le_bytes(take(rest)?);
        let read = Exception::from_wire(take_slice(rest, len.into())?)
            .filter(|(_, beneath)| beneath.is_empty());
        let (exception, _) = read.ok_or(RestoreError::Damaged)?;
        self.exception = Some(exception);
        Ok(())
    }

    fn take_key(&mut self, kind: u8, shards: u64, rest: &mut &[u8]) -> Result<(), RestoreError> {
        let parameters = u32::from_le_bytes(take(rest)?);
        let parameters = self
            .parameters
            .get(parameters as usize)
            .ok_or(RestoreError::Damaged)?;
        let number = u128::from_le_bytes(take(rest)?);
        let len = u32::from_le_bytes(take(rest)?);
        let algorithm = &parameters.algorithm;
        let state = [&algorithm.tag(), take_slice(rest, len as usize)?].concat();
        let state = State::from_wire(algorithm, &state).ok_or(RestoreError::Damaged)?;
        self.keys += 1;
        let repr = self.as_of_now(algorithm, state.repr);
        let exception = self
            .exception
            .take()
            .filter(|exception| exception.until > self.now);
        if kind == b'o' {
            self.insert_bucket(parameters, &repr, number as u64, shards);
            return Ok(());
        }
        let written = match &exception {
            Some(_) => StateWriter::beside(Arc::clone(algorithm)),
            None => StateWriter::by(parameters.of_call()),
        };
        let repr = repr.beneath(exception.map(Box::new));
        let hash = KeyHash {
            number,
            digested: kind == b'd',
        };
        let shard = self.store.shard(hash);
        if !is_live(algorithm, &repr, self.now, shard) {
            return Ok(());
        }
        let (mut shard, label) = (shard.lock(), Label::new(hash, parameters.policy));
        // A key has one state. Which of two counts would depend on where they lie.
        if shard.find(label).is_some() {
            return Err(RestoreError::Damaged);
        }
        if !self.store.shared.reserve() {
            return Err(RestoreError::TooManyKeys {
                max_keys: self.store.max_keys(),
            });
        }
        shard.insert(label, repr, written);
        Ok(())
    }

    /// Puts an overflow bucket into every shard that holds keys of its former one. Of two that
    /// meet, the one with less left stays.
    fn insert_bucket(&self, parameters: &Parameters, repr: &Repr, shard: u64, shards: u64) {
        let scaled = |index: u64| {
            (
                u128::from(index) * self.store.shards.len() as u128,
                u128::from(shards.max(1)),
            )
        };
        let (first, of) = scaled(shard);
        let (after, _) = scaled(shard.saturating_add(1));
        let shards_of_bucket =
            (first / of) as usize..(after.div_ceil(of) as usize).min(self.store.shards.len());
        let (label, policies) = (
            Label::overflow(parameters.of_call()),
            &self.store.shared.policies,
        );
        let left =
            |by: &Algorithm, repr: Repr| Cell::new(by, None, repr, self.now).standing().remaining;
        for shard in self.store.shards.get(shards_of_bucket).unwrap_or_default() {
            if !is_live(&parameters.algorithm, repr, self.now, shard) {
                continue;
            }
            let mut shard = shard.lock();
            if let Some(index) = shard.find(label) {
                let content = shard.table.get(index);
                let known = content
                    .as_ref()
                    .and_then(|content| shard.rest.state(content, policies));
                let new = left(&parameters.algorithm, repr.clone());
                if known.is_some_and(|(known, by)| left(by, known.into_owned()) <= new) {
                    continue;
                }
                shard.remove(index, &self.store.shared);
            }
            shard.insert(label, repr.clone(), StateWriter::by(parameters.of_call()));
        }
    }

    /// The state of a snapshot from the future, as if no time had passed since: a clock that was
    /// stepped back buys nothing, and locks no key out until it has caught up.
    fn as_of_now(&self, algorithm: &Algorithm, repr: Repr) -> Repr {
        if self.saved_at <= self.now {
            return repr;
        }
        Cell::new(algorithm, None, repr, self.saved_at).moved_to(self.now)
    }
}

/// Whether a state still counts. One that does not is as if the store had forgotten it.
fn is_live(algorithm: &Algorithm, repr: &Repr, now: Timestamp, shard: &Shard) -> bool {
    let fresh_at = algorithm.repr_fresh_at(repr);
    if fresh_at > now {
        return true;
    }
    shard.lock().absent.raise_horizon(fresh_at);
    false
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], RestoreError> {
    let (first, rest) = bytes.split_first_chunk().ok_or(RestoreError::Damaged)?;
    *bytes = rest;
    Ok(*first)
}

fn take_slice<'a>(bytes: &mut &'a [u8], len: usize) -> Result<&'a [u8], RestoreError> {
    let (first, rest) = bytes.split_at_checked(len).ok_or(RestoreError::Damaged)?;
    *bytes = rest;
    Ok(first)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::{Gcra, SlidingLog};
    use crate::backend::Call;
    use crate::key::Key;
    use crate::policy::Policy;
    use crate::rate::Rate;
    use crate::set::{PolicySet, PolicyTree};

    const NOW: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

    fn snapshot() -> Vec<u8> {
        let store = Store::new(20);
        let policies = [
            Policy::new("a", Gcra::new(Rate::per_day(9))).unwrap(),
            Policy::new("b", SlidingLog::new(Rate::per_day(9))).unwrap(),
        ];
        let set = store
            .prepare(PolicySet::new(PolicyTree::All(policies.map(Into::into).into())).unwrap())
            .unwrap();
        for key in 0..20_u64 {
            _ = store.decide(
                &set,
                &[Call::from(Key::from(key)), Call::from(Key::from(key))],
                NOW,
            );
        }
        let mut bytes = Vec::new();
        store.write(&mut bytes, NOW).unwrap();
        bytes
    }

    fn signed(mut bytes: Vec<u8>) -> Vec<u8> {
        let digest = SipHasher13::new().hash(&bytes).as_u128();
        bytes.extend(digest.to_le_bytes());
        bytes
    }

    #[test]
    fn attack_39_snapshot_with_a_key_twice_or_a_wrong_end_is_refused() {
        let store = Store::new(20);
        let policy = Policy::new("a", Gcra::new(Rate::per_day(9))).unwrap();
        let set = store.prepare(PolicySet::new(policy).unwrap()).unwrap();
        _ = store.decide(&set, &[Call::from(Key::from(1))], NOW);
        let mut bytes = Vec::new();
        store.write(&mut bytes, NOW).unwrap();
        // The record of the key has two numbers, and the last one the horizon, the number of keys
        // and the digest.
        let (records, end) = bytes.split_at(bytes.len() - 33);
        let key = &records[records.len() - 41..];
        for (keys, counted, extra, is_read) in [
            (1, 1_u64, 0, true),
            (2, 2, 0, false),
            (1, 2, 0, false),
            (1, 1, 1, false),
        ] {
            let again = key.repeat(keys - 1);
            let body = [
                records,
                &again,
                &end[..9],
                &counted.to_le_bytes(),
                &vec![0; extra],
            ]
            .concat();
            let read = Store::read(&signed(body), 20, NOW);
            assert_eq!(
                read.is_ok(),
                is_read,
                "{keys} records, {counted} counted, {extra} bytes more"
            );
        }
    }

    proptest! {
        /// With a digest that fits, so that every field meets its reader.
        #[test]
        fn attack_39_any_bytes_are_restored_or_refused(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
            let mut bytes = snapshot();
            let end = bytes.len() - 16;
            for (at, byte) in changes {
                let at = MAGIC.len() + at.index(end - MAGIC.len());
                bytes[at] = byte;
            }
            bytes.truncate(end);
            if let Ok(store) = Store::read(&signed(bytes), 40, NOW) {
                prop_assert!(store.keys() <= 40);
            }
        }
    }
}
