//! Charges by the client's account and by the server's.

use std::collections::BTreeMap;

use throttle_test_servers::Server;

use crate::app::{App, Heard, Sample, TINY};

/// A policy and one of its keys.
type Account = (String, String);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Admitted by the store.
    pub(crate) acknowledged: u64,
    /// Perhaps admitted by the store: no answer arrived.
    pub(crate) unknown: u64,
    /// The charges recorded on the server.
    pub(crate) executed: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger(pub(crate) BTreeMap<Account, Entry>);

impl Ledger {
    /// Compares both accounts.
    pub(crate) fn of<'a>(app: &App, servers: impl Iterator<Item = &'a Server>) -> Self {
        let mut ledger = Self::default();
        for sample in app.samples() {
            ledger.count(&sample);
        }
        for server in servers {
            for name in server.keys(&format!("{}{{*", app.mode.prefix())) {
                let name = String::from_utf8(name).expect("readable names");
                let value: Vec<u8> = server.query(&["GET", &name]);
                ledger.entry(account(&name)).executed += used(&value);
            }
        }
        ledger
    }

    fn count(&mut self, sample: &Sample) {
        for &policy in sample.path.policies() {
            let other = if policy == "far" { "other-" } else { "" };
            let entry = self.entry((policy.to_owned(), format!("{other}{}", sample.key)));
            match sample.heard {
                Heard::Admitted => entry.acknowledged += 1,
                Heard::Degraded {
                    uncharged: false, ..
                } => entry.unknown += 1,
                Heard::Refused
                | Heard::Degraded {
                    uncharged: true, ..
                } => {}
            }
        }
    }

    fn entry(&mut self, account: Account) -> &mut Entry {
        self.0.entry(account).or_default()
    }

    pub(crate) fn total(&self) -> Entry {
        self.0.values().fold(Entry::default(), |sum, entry| Entry {
            acknowledged: sum.acknowledged + entry.acknowledged,
            unknown: sum.unknown + entry.unknown,
            executed: sum.executed + entry.executed,
        })
    }

    /// No more charges are lost than a failover may lose, none is made twice, and no budget is
    /// exceeded by more.
    pub(crate) fn check(&self, lost: u64) {
        let mut missing = 0;
        for (account, entry) in &self.0 {
            assert!(
                entry.executed <= entry.acknowledged + entry.unknown,
                "charged twice: {account:?} {entry:?}"
            );
            missing += entry.acknowledged.saturating_sub(entry.executed);
            if account.0 == "tiny" {
                assert!(entry.executed <= TINY, "{account:?} {entry:?}");
                assert!(entry.acknowledged <= TINY + lost, "{account:?} {entry:?}");
            }
        }
        assert!(
            missing <= lost,
            "{missing} acknowledged charges are missing: {:?}",
            self.0
        );
    }

    /// Two policies that are charged in one step never differ.
    pub(crate) fn check_that_pairs_agree(&self) {
        for ((_, key), left) in self.0.iter().filter(|((policy, _), _)| policy == "left") {
            let right = self
                .0
                .get(&("right".to_owned(), key.clone()))
                .copied()
                .unwrap_or_default();
            assert_eq!(
                left.executed, right.executed,
                "half a decision was charged to {key}"
            );
        }
    }
}

/// `prefix{tag}policy:key` or `prefix{key}policy:`, where keys begin with the kind of their part.
fn account(name: &str) -> Account {
    let (_, rest) = name.split_once('{').expect("a tag");
    let (tag, rest) = rest.split_once('}').expect("a tag");
    let (policy, key) = rest.split_once(':').expect("a policy");
    let key = if key.is_empty() { tag } else { key };
    (policy.to_owned(), key[1..].to_owned())
}

/// The last number of a fixed window's state.
fn used(value: &[u8]) -> u64 {
    let used = value
        .last_chunk()
        .map(|bytes| f64::from_le_bytes(*bytes))
        .expect("the state of a fixed window");
    assert!((0.0..1e9).contains(&used), "{used} used");
    used as u64
}
