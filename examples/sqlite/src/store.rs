//! A backend of one's own. It runs the conformance kit in `tests.rs`.

use std::future::ready;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use throttle_tower::throttle_core::algorithm::State;
use throttle_tower::throttle_core::backend::{
    Answer, BackendErrorKind, Call, ExceptedKey, KeyDigest, KeyStep, Receipt,
};
use throttle_tower::throttle_core::{
    Algorithm, Backend, BackendError, Clock, ConfigError, Decision, PolicySet, SystemClock,
};

/// The longest time by which the clocks of two processes differ. A row is kept so much longer.
pub(crate) const CLOCKS_APART: Duration = Duration::from_secs(600);

const TABLE: &str = "
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = NORMAL;
    CREATE TABLE IF NOT EXISTS states (
        policy TEXT NOT NULL, key BLOB NOT NULL, state BLOB NOT NULL, kept_until INTEGER NOT NULL,
        PRIMARY KEY (policy, key)
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS states_kept_until ON states (kept_until);";

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// States of limits in a file of SQLite, shared by the processes that open it.
#[derive(Clone)]
pub(crate) struct Sqlite<C = SystemClock> {
    connection: Arc<Mutex<Connection>>,
    digest: KeyDigest,
    clock: C,
}

impl<C: Clock> Sqlite<C> {
    /// Opens the file. All processes need the same secret.
    pub(crate) fn open(path: &str, secret: &[u8; 16], clock: C) -> rusqlite::Result<Self> {
        let connection = Connection::open(path)?;
        // The longest time that a decision waits for other processes.
        connection.busy_timeout(Duration::from_secs(1))?;
        connection.execute_batch(TABLE)?;
        let connection = Arc::new(Mutex::new(connection));
        Ok(Self {
            connection,
            digest: KeyDigest::new(secret),
            clock,
        })
    }

    /// Deletes the rows that no decision needs.
    pub(crate) fn forget(&self) -> Answer<usize> {
        let now = self.clock.now().as_micros();
        self.run_in_transaction(move |rows| {
            Ok(rows.execute("DELETE FROM states WHERE kept_until <= ?1", [now])?)
        })
    }

    /// Runs a step on a thread that may block. A step whose future is dropped runs once or not at
    /// all.
    fn run_in_transaction<T: Send + 'static>(
        &self,
        step: impl FnOnce(&Transaction<'_>) -> Result<T, Failure> + Send + 'static,
    ) -> Answer<T> {
        let connection = Arc::clone(&self.connection);
        let failed =
            |why: Failure| BackendError::new(BackendErrorKind::Unavailable).with_source(why);
        let run = move || {
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            // `IMMEDIATE` takes the lock of all writers first. A database that locks rows has to
            // lock them in one order: two steps that hold a row each would wait for each other.
            let begun = connection.transaction_with_behavior(TransactionBehavior::Immediate);
            let rows = begun.map_err(|why| failed(why.into()).uncharged())?;
            let done = step(&rows).map_err(|why| failed(why).uncharged())?; // it is rolled back
            rows.commit().map_err(|why| failed(why.into()))?; // it may have been written
            Ok(done)
        };
        Box::pin(async move {
            let ran = tokio::task::spawn_blocking(run).await;
            ran.unwrap_or_else(|why| Err(failed(why.into())))
        })
    }
}

/// The row of one key in one policy, for parameters that read or write it.
struct Row<'r> {
    rows: &'r Transaction<'r>,
    policy: &'r str,
    key: [u8; 16],
    by: &'r Algorithm,
}

impl Row<'_> {
    /// The state, or that of an unused key.
    fn load(&self) -> Result<State, Failure> {
        let select = "SELECT state FROM states WHERE policy = ?1 AND key = ?2";
        let row = self
            .rows
            .query_row(select, params![self.policy, self.key], |row| row.get(0));
        let state = match row.optional()? {
            Some::<Vec<u8>>(bytes) => State::from_wire(self.by, &bytes).ok_or("it is no state")?,
            None => self.by.fresh(),
        };
        Ok(state.written_under(self.by))
    }

    fn store(&self, state: &State) -> Result<(), Failure> {
        let bytes = state
            .to_wire(self.by)
            .ok_or("another algorithm made the state")?;
        let kept_until = state.kept_until(self.by, CLOCKS_APART).as_micros();
        let insert = "INSERT OR REPLACE INTO states VALUES (?1, ?2, ?3, ?4)";
        self.rows
            .execute(insert, params![self.policy, self.key, bytes, kept_until])?;
        Ok(())
    }
}

impl<C: Clock> Backend for Sqlite<C> {
    type Prepared = PolicySet;
    type Decide = Answer<Decision>;
    type Done = Answer<()>;

    fn prepare(&self, set: PolicySet) -> Result<PolicySet, ConfigError> {
        Ok(set)
    }

    fn set(prepared: &PolicySet) -> &PolicySet {
        prepared
    }

    fn decide(&self, set: &Arc<PolicySet>, calls: &[Call]) -> Answer<Decision> {
        if let Err(error) = set.check_keys(calls) {
            return Box::pin(ready(Err(error)));
        }
        let (set, calls, clock, digest) =
            (set.clone(), calls.to_vec(), self.clock.clone(), self.digest);
        self.run_in_transaction(move |rows| {
            let mut stored = Vec::new();
            let mut states = Vec::new();
            for (policy, call) in set.policies().iter().zip(&calls) {
                let by = call.parameters(policy);
                let key = call.key().map(|key| digest.of(key));
                let row = key.map(|key| Row {
                    rows,
                    policy: policy.name(),
                    key,
                    by,
                });
                states.push(row.as_ref().map_or_else(|| Ok(by.fresh()), Row::load)?);
                stored.push(row);
            }
            let former = states.clone();
            let decision = set.decide(&mut states, clock.now(), &calls);
            for ((row, former), state) in stored.iter().zip(former).zip(states) {
                if let Some(row) = row.as_ref().filter(|_| state != former) {
                    row.store(&state)?;
                }
            }
            Ok(decision)
        })
    }

    fn settle(&self, set: &Arc<PolicySet>, receipt: Receipt) -> Answer<()> {
        let (set, clock, digest) = (set.clone(), self.clock.clone(), self.digest);
        self.run_in_transaction(move |rows| {
            for item in receipt.items() {
                let policy = set.policy(item.policy())?;
                let (key, by) = (digest.of(item.key()), item.parameters(policy));
                let row = Row {
                    rows,
                    policy: policy.name(),
                    key,
                    by,
                };
                let mut state = row.load()?;
                item.apply_to(policy, &mut state, clock.now());
                row.store(&state)?;
            }
            Ok(())
        })
    }

    /// Resets a key. Exceptions and bans are left out, as `has_exceptions` says by its default.
    fn run(&self, set: &Arc<PolicySet>, policy: usize, step: KeyStep) -> Answer<Vec<ExceptedKey>> {
        let delete = "DELETE FROM states WHERE policy = ?1 AND key = ?2";
        let error = match (set.policy(policy), &step) {
            (Ok(policy), KeyStep::Reset(key)) => {
                let id = (policy.name().to_owned(), self.digest.of(key));
                return self.run_in_transaction(move |rows| {
                    rows.execute(delete, id)?;
                    Ok(Vec::new())
                });
            }
            (Ok(_), _) => step.unsupported(),
            (Err(error), _) => error,
        };
        Box::pin(ready(Err(error)))
    }

    fn reset_all(&self, prefix: &str) -> Answer<()> {
        // `LIKE` would read `%` and `_` of a name as patterns, and ignore case.
        let delete = "DELETE FROM states WHERE substr(policy, 1, length(?1)) = ?1";
        let prefix = prefix.to_owned();
        self.run_in_transaction(move |rows| {
            rows.execute(delete, [prefix])?;
            Ok(())
        })
    }
}
