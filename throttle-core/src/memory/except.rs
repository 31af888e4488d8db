//! Sets, lifts and lists exceptions, and counts strikes. Such a state is kept with its exception
//! and the parameters that wrote it, and not in its slot.

use std::borrow::Cow;

use super::entry::Entry;
use super::slot::Label;
use super::store::{MemorySet, Store};
use crate::algorithm::{Ban, Exception, Repr};
use crate::backend::ExceptedKey;
use crate::key::Key;
use crate::time::Timestamp;

impl Store {
    /// Sets an exception for one key, or lifts it.
    ///
    /// # Errors
    ///
    /// Why the key can have no slot. Nothing is changed then.
    pub(super) fn except(
        &self,
        set: &MemorySet,
        policy: usize,
        key: &Key,
        exception: Option<Exception>,
        now: Timestamp,
    ) -> Result<(), &'static str> {
        let is_lifted = exception.is_none();
        self.change(set, policy, key, (is_lifted, now), |_| Some(exception))
    }

    /// Counts a strike. Returns the ban that it has begun.
    ///
    /// # Errors
    ///
    /// Why the key can have no slot. The strike does not count then.
    pub(super) fn strike(
        &self,
        set: &MemorySet,
        policy: usize,
        key: &Key,
        ban: &Ban,
        now: Timestamp,
    ) -> Result<Option<ExceptedKey>, &'static str> {
        let mut begun = None;
        self.change(set, policy, key, (false, now), |over| {
            let struck = ban.strike(over, now)?;
            begun = Some(struck.exception.clone()).filter(|_| struck.is_ban);
            Some(Some(struck.exception))
        })?;
        Ok(begun.map(|exception| {
            let label = Label::new(self.key_hasher.hash(key), set.policies[policy].number());
            ExceptedKey {
                key: name(label),
                exception,
            }
        }))
    }

    /// Puts over a key's state what `step` makes of what stands there, if it is to change. A key
    /// that was never used is left alone if `only_if_used` is set.
    fn change(
        &self,
        set: &MemorySet,
        policy: usize,
        key: &Key,
        (only_if_used, now): (bool, Timestamp),
        step: impl FnOnce(Option<&Exception>) -> Option<Option<Exception>>,
    ) -> Result<(), &'static str> {
        let policy = &set.policies[policy];
        let (parameters, hash) = (policy.of_call(0, None), self.key_hasher.hash(key));
        let label = Label::new(hash, policy.number());
        let mut shard = self.shard(hash).lock();
        if shard.find(label).is_none() {
            if only_if_used {
                return Ok(());
            }
            if shard.earliest(now) > now {
                return Err(
                    "the clock is behind, and the key may have been used before it was set back: \
                        try again when \
                            the clock has caught up",
                );
            }
        }
        // It needs a slot as a charge does.
        let mut entry = Entry::locate(parameters, label, (1, now), &mut shard, &[], &self.shared);
        let has_room = !entry.is_overflow();
        let changed = if has_room {
            step(entry.cell.exception())
        } else {
            None
        };
        let is_changed = changed.is_some();
        if let Some(exception) = changed {
            entry.cell.except(exception);
        }
        entry.store(is_changed, &mut shard, &self.shared);
        if has_room {
            Ok(())
        } else {
            Err("the store is full of live keys: raise max_keys")
        }
    }

    /// The exceptions of a policy that are in force, at most so many.
    pub(super) fn exceptions(
        &self,
        set: &MemorySet,
        policy: usize,
        most: usize,
        now: Timestamp,
    ) -> Vec<ExceptedKey> {
        let mut found = Vec::new();
        let number = set.policies[policy].number();
        for shard in &self.shards {
            let shard = shard.lock();
            for content in (0..shard.table.end()).filter_map(|index| shard.table.get(index)) {
                if let Some((Cow::Borrowed(Repr::Excepted(exception, _)), _)) =
                    shard.rest.state(&content, &self.shared.policies)
                    && (content.label().policy() == number
                        && exception.until > now
                        && found.len() < most)
                {
                    found.push(ExceptedKey {
                        key: name(content.label()),
                        exception: (**exception).clone(),
                    });
                }
            }
        }
        found
    }
}

/// What a list calls a key.
fn name(label: Label) -> String {
    format!("{:032x}", label.number())
}
