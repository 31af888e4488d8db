//! Writes a store while it is used: one shard after the other is copied, slot by slot while no keys
//! are added, and then written.

use std::collections::HashMap;
use std::hash::Hasher;
use std::io::{self, Write};

use siphasher::sip128::{Hasher128, SipHasher13};

use super::MAGIC;
use crate::algorithm::{Algorithm, Repr, State};
use crate::memory::policies::UNNUMBERED;
use crate::memory::slot::{Content, Label};
use crate::memory::store::Store;
use crate::time::Timestamp;

impl Store {
    /// Writes all keys that are live at `now`. Returns how many, overflow buckets included.
    pub(in crate::memory) fn write(&self, to: &mut impl Write, now: Timestamp) -> io::Result<u64> {
        let mut snapshot = Snapshot {
            store: self,
            to,
            digest: SipHasher13::new(),
            parameters: HashMap::new(),
            horizon: Timestamp::MIN,
            keys: 0,
        };
        snapshot.put(MAGIC)?;
        snapshot.put(&now.as_micros().to_le_bytes())?;
        snapshot.put(&self.key_hasher.secret())?;
        snapshot.put(&(self.shards.len() as u64).to_le_bytes())?;
        for index in 0..self.shards.len() {
            snapshot.put_shard(index, now)?;
        }
        snapshot.put(b"e")?;
        snapshot.put(&snapshot.horizon.as_micros().to_le_bytes())?;
        snapshot.put(&snapshot.keys.to_le_bytes())?;
        let digest = snapshot.digest.finish128().as_u128();
        snapshot.to.write_all(&digest.to_le_bytes())?;
        snapshot.to.flush()?;
        Ok(snapshot.keys)
    }
}

struct Snapshot<'a, W> {
    store: &'a Store,
    to: &'a mut W,
    digest: SipHasher13,
    /// The numbers of the parameters that were written, by policy, tag, and whether they are a
    /// key's own.
    parameters: HashMap<(u16, Vec<u8>, bool), u32>,
    /// The latest instant at which a state had become fresh that is not in the snapshot.
    horizon: Timestamp,
    keys: u64,
}

impl<W: Write> Snapshot<'_, W> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.digest.write(bytes);
        self.to.write_all(bytes)
    }

    fn put_shard(&mut self, index: usize, now: Timestamp) -> io::Result<()> {
        let policies = &self.store.shared.policies;
        let shard = &self.store.shards[index];
        // A large state is copied on its own, so that requests wait for one at most.
        let (mut small, mut large): (Vec<Content>, Vec<Label>) = (Vec::new(), Vec::new());
        {
            // Keys stay where they are, and requests of known keys go on.
            let _rest = shard.lock_rest();
            for content in (0..shard.table.end()).filter_map(|index| shard.table.get_now(index)) {
                match content.algorithm(policies) {
                    Some(algorithm) if algorithm.is_small() => small.push(content),
                    _ => large.push(content.label()),
                }
            }
            self.horizon = self.horizon.max(shard.absent.horizon());
        }
        for content in &small {
            if let Some(algorithm) = content.algorithm(policies) {
                self.put_key(index, content, algorithm, Repr::Words(content.words()), now)?;
            }
        }
        for label in large {
            let copied = {
                let shard = shard.lock();
                let content = shard.find(label).and_then(|index| shard.table.get(index));
                content.and_then(|content| {
                    let (repr, algorithm) = shard.rest.state(&content, policies)?;
                    Some((content, repr.into_owned(), **algorithm))
                })
            };
            // It may have been forgotten meanwhile.
            if let Some((content, repr, algorithm)) = copied {
                self.put_key(index, &content, &algorithm, repr, now)?;
            }
        }
        Ok(())
    }

    fn put_key(
        &mut self,
        shard: usize,
        content: &Content,
        algorithm: &Algorithm,
        repr: Repr,
        now: Timestamp,
    ) -> io::Result<()> {
        let (label, fresh_at) = (content.label(), algorithm.repr_fresh_at(&repr));
        if fresh_at <= now {
            self.horizon = self.horizon.max(fresh_at);
            return Ok(());
        }
        let tag = algorithm.tag();
        let (exception, repr) = repr.without_exception();
        let Some(state) = State::of(repr).to_wire(algorithm) else {
            return Ok(());
        };
        let numbers = &state[tag.len()..];
        let parameters =
            self.put_parameters((label.policy(), tag, content.writer() == UNNUMBERED))?;
        if let Some(exception) = exception.filter(|exception| exception.until > now) {
            let bytes = exception.to_wire();
            self.put(b"x")?;
            self.put(&(bytes.len() as u16).to_le_bytes())?;
            self.put(&bytes)?;
        }
        let (kind, number) = match label {
            label if label.is_overflow() => (b'o', shard as u128),
            label => (
                if label.is_digested() { b'd' } else { b'k' },
                label.number(),
            ),
        };
        self.put(&[kind])?;
        self.put(&parameters.to_le_bytes())?;
        self.put(&number.to_le_bytes())?;
        self.put(&(numbers.len() as u32).to_le_bytes())?;
        self.put(numbers)?;
        self.keys += 1;
        Ok(())
    }

    /// The number of parameters, which are written before their first key.
    fn put_parameters(&mut self, parameters: (u16, Vec<u8>, bool)) -> io::Result<u32> {
        if let Some(known) = self.parameters.get(&parameters) {
            return Ok(*known);
        }
        let next = self.parameters.len() as u32;
        let (policy, tag, is_own) = parameters.clone();
        self.parameters.insert(parameters, next);
        let name = self.store.shared.policies.name(policy).as_bytes();
        self.put(if is_own { b"q" } else { b"p" })?;
        self.put(&[name.len() as u8])?;
        self.put(name)?;
        self.put(&(tag.len() as u16).to_le_bytes())?;
        self.put(&tag)?;
        Ok(next)
    }
}
