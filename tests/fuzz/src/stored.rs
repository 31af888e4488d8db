//! Stores any bytes as a key's value on a real Redis. The scripts answer: with the decision that
//! the core makes on the state that the bytes are, and with an error if they are none.

#![no_main]

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use throttle_core::algorithm::State;
use throttle_core::backend::{Call, KeyStep, Receipt};
use throttle_core::{Algorithm, Backend, BackendErrorKind, Key, ManualClock, Policy, PolicySet};
use throttle_fuzz::limits::{START, algorithm, exception, micros};
use throttle_redis::{RedisBackend, Single};
use throttle_test_servers::{Server, redis};
use tokio::runtime::{Builder, Runtime};

/// The victim's key on the server: the prefix, the tag, the policy, and the key as readable text.
const NAME: &str = "throttle{all}p:tvictim";
/// No script takes nearly as long, unless it hangs.
const LONGEST: Duration = Duration::from_secs(8);

struct Store {
    backend: RedisBackend,
    /// One that waits in the runtime: the fuzzer's timer interrupts a thread that reads.
    connection: redis::aio::MultiplexedConnection,
    clock: ManualClock,
    runtime: Runtime,
    _server: Server,
}

impl Store {
    fn start() -> Self {
        let (server, clock) = (Server::start(), ManualClock::new(START));
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let backend = {
            let _inside = runtime.enter();
            let builder = RedisBackend::builder(Single::new(&server.url()).expect("a URL"));
            builder
                .readable_keys()
                .deadline(LONGEST)
                .clock(clock.clone())
                .build()
                .expect("options")
        };
        let client = redis::Client::open(server.url()).expect("a URL");
        let patient = redis::AsyncConnectionConfig::new().set_response_timeout(Some(LONGEST));
        let connection =
            runtime.block_on(client.get_multiplexed_async_connection_with_config(&patient));
        let connection = connection.expect("a server that answers");
        Self {
            backend,
            connection,
            clock,
            runtime,
            _server: server,
        }
    }

    fn put(&mut self, value: &[u8]) {
        let mut set = redis::cmd("SET");
        self.runtime
            .block_on(set.arg(NAME).arg(value).exec_async(&mut self.connection))
            .expect("SET");
    }

    fn held(&mut self) -> Option<Vec<u8>> {
        self.runtime
            .block_on(
                redis::cmd("GET")
                    .arg(NAME)
                    .query_async(&mut self.connection),
            )
            .expect("GET")
    }

    fn check(&mut self, by: Algorithm, value: &[u8], of: &mut Unstructured<'_>) -> Result<()> {
        let set = PolicySet::new(Policy::new("p", by).expect("a name")).expect("a set");
        let prepared = Arc::new(self.backend.prepare(set.clone()).expect("small limits"));
        let key = || Key::from("victim");
        self.clock
            .set(START.after_micros(if of.ratio(1, 2)? { 0 } else { micros(of)? }));
        self.put(value);
        let state = State::from_wire(&by, value);
        let calls = [Call::from(key())
            .costing(of.int_in_range(0..=6)?)
            .reserving(of.int_in_range(0..=2)?)];
        let answer = self
            .runtime
            .block_on(self.backend.decide(&prepared, &calls));
        let now = throttle_core::Clock::now(&self.clock);
        let held = self.held();
        match (answer, state) {
            (Ok(decision), Some(state)) => {
                let mut states = [state.written_under(&by)];
                assert_eq!(
                    decision,
                    set.decide(&mut states, now, &calls),
                    "{}",
                    value.escape_ascii()
                );
                if decision.statuses()[0].charged() > 0 {
                    // A script keeps a zero's sign, which no writer gives it.
                    let held = held.and_then(|held| State::from_wire(&by, &held)?.to_wire(&by));
                    assert_eq!(held, states[0].to_wire(&by), "{}", value.escape_ascii());
                } else {
                    assert_eq!(held.as_deref(), Some(value), "law 1");
                }
                if let Some(receipt) = Receipt::of(&decision, &calls) {
                    let settled = self
                        .backend
                        .settle(&prepared, receipt.actual(of.int_in_range(0..=8)?));
                    self.runtime.block_on(settled).expect("a charge just made");
                }
            }
            // The reply about a log has the runs that matter now, so what is wrong with the others
            // is not seen.
            (Ok(decision), None) => {
                assert_eq!(
                    by.name(),
                    "sliding_log",
                    "{decision:?} about {}",
                    value.escape_ascii()
                );
            }
            (Err(error), state) => {
                assert_eq!(
                    error.kind(),
                    BackendErrorKind::Protocol,
                    "{error} about {}",
                    value.escape_ascii()
                );
                // Of another writer's value the scripts check the length alone. If they charge over
                // one whose numbers are no whole ones, the error says that the request may have
                // been charged.
                assert!(
                    held.as_deref() == Some(value) || !error.is_uncharged(),
                    "{error} about {}",
                    value.escape_ascii()
                );
                // A state so far away that the server accepts no expiry for it.
                assert!(
                    state.is_none_or(|state| by.fresh_at(&state).micros_since(now) > 1 << 50),
                    "{error} about {}, {by:?} at {now:?}, {calls:?}: {:?}",
                    value.escape_ascii(),
                    std::error::Error::source(&error),
                );
            }
        }
        // The other scripts answer, too, whatever stands there.
        self.put(value);
        let policy = &set.policies()[0];
        if let Ok(exception) = exception(of, policy, now) {
            let _ = self.runtime.block_on(self.backend.run(
                &prepared,
                0,
                KeyStep::Except(key(), exception),
            ));
        }
        let fresh = set.decide(&mut [by.fresh()], now, &[Call::from(key())]);
        self.put(value);
        if let Some(receipt) = Receipt::of(&fresh, &[Call::from(key())]) {
            let _ = self.runtime.block_on(
                self.backend
                    .settle(&prepared, receipt.actual(of.int_in_range(0..=3)?)),
            );
        }
        let inspected = self.runtime.block_on(self.backend.inspect(policy, &key()));
        assert!(
            inspected.is_ok() || State::from_wire(&by, &self.held().unwrap_or_default()).is_none()
        );
        assert!(
            self.backend.stats().breaker_openings == 0,
            "a value is no failure of the store"
        );
        // A reset mends whatever stood there.
        self.runtime
            .block_on(self.backend.run(&prepared, 0, KeyStep::Reset(key())))
            .expect(
                "a store that \
            answers",
            );
        let mended = self
            .runtime
            .block_on(self.backend.decide(&prepared, &[Call::from(key())]))
            .expect("no state");
        assert_eq!(mended, fresh);
        Ok(())
    }
}

/// The bytes of a state, mostly of a form that is one.
fn value(of: &mut Unstructured<'_>, by: Algorithm) -> Result<Vec<u8>> {
    let other = algorithm(of)?;
    let writer = if of.ratio(1, 2)? { by } else { other };
    let mut state = writer.fresh().written_under(&writer);
    for _ in 0..of.int_in_range(0..=3_u8)? {
        let back = i64::try_from(micros(of)? >> 8).unwrap_or(0);
        let at = throttle_core::Timestamp::from_micros(START.as_micros() - back);
        state = writer
            .decide(state, at, of.int_in_range(0..=5)?)
            .0
            .written_under(&writer);
    }
    if of.ratio(1, 4)? {
        let policy = Policy::new("p", by).expect("a name");
        state = state.excepted(exception(of, &policy, START)?);
    }
    let mut bytes = state.to_wire(&writer).unwrap_or_default();
    for _ in 0..of.int_in_range(0..=3_u8)? {
        match of.int_in_range(0..=4_u8)? {
            0 if !bytes.is_empty() => {
                let at = of.choose_index(bytes.len())?;
                bytes[at] = of.arbitrary()?;
            }
            // A number in place of another.
            1 | 2 if bytes.len() > 10 => {
                let at = 2 + 8 * of.choose_index((bytes.len() - 2) / 8)?;
                let number: f64 = match of.int_in_range(0..=3_u8)? {
                    0 => of.arbitrary()?,
                    1 => f64::from(of.int_in_range(-3..=20)?),
                    2 => {
                        (START.as_micros()
                            + (of.arbitrary::<i64>()? >> of.int_in_range(12..=60)?))
                            as f64
                    }
                    _ => *of.choose(&[
                        9_007_199_254_740_992.0,
                        -9_007_199_254_740_992.0,
                        1e300,
                        f64::NAN,
                        f64::INFINITY,
                        -0.0,
                    ])?,
                };
                bytes.splice(at..at + 8, number.to_le_bytes());
            }
            3 => bytes.truncate(of.int_in_range(0..=bytes.len())?),
            _ => bytes.extend(of.arbitrary::<[u8; 8]>()?),
        }
    }
    Ok(bytes)
}

thread_local! {
    static STORE: RefCell<Store> = RefCell::new(Store::start());
}

fn check(of: &mut Unstructured<'_>) -> Result<()> {
    let by = algorithm(of)?;
    let value = if of.ratio(1, 16)? {
        of.arbitrary()?
    } else {
        value(of, by)?
    };
    STORE.with_borrow_mut(|store| store.check(by, &value, of))
}

fuzz_target!(|bytes: &[u8]| {
    let _ = check(&mut Unstructured::new(bytes));
});
