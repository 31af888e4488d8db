//! How the kit starts a backend: a server for the whole binary, a prefix for each test, one clock
//! for both.

use std::future::Future;
use std::sync::LazyLock;
use std::time::Duration;

use bb8_redis::{RedisConnectionManager, bb8};
use throttle_core::{ManualClock, Timestamp};
use throttle_redis::{Pool, RedisBackend, RedisBuilder, Single as OneServer};
use throttle_test_servers::Shared;
use tokio::runtime::Runtime;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));

pub(crate) struct Fixture {
    backend: RedisBackend,
    clock: ManualClock,
    shared: Option<Shared>,
}

impl Fixture {
    /// Tests share machines with other work, and do not measure how fast an answer arrives.
    pub(crate) fn new(builder: RedisBuilder, shared: Option<Shared>) -> Self {
        let clock = ManualClock::default();
        let _inside = RUNTIME.enter();
        let patient = builder
            .clock(clock.clone())
            .deadline(Duration::from_secs(10));
        Self {
            backend: patient.build().expect("valid options"),
            clock,
            shared,
        }
    }

    /// A backend with a prefix of its own on the server that all tests share.
    fn shared(builder: impl FnOnce(&Shared) -> RedisBuilder) -> Self {
        let shared = Shared::new();
        Self::new(builder(&shared).prefix(shared.prefix()), Some(shared))
    }

    pub(crate) fn backend(&self) -> RedisBackend {
        self.backend.clone()
    }

    pub(crate) fn set_time(&self, now: Timestamp) {
        self.clock.set(now);
    }

    pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
        RUNTIME.block_on(future)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared
            && !std::thread::panicking()
        {
            let eternal = shared.own_keys_without_ttl();
            assert!(
                eternal.is_empty(),
                "{} keys would stay for ever",
                eternal.len()
            );
        }
    }
}

/// A harness around a fixture.
macro_rules! harness {
    ($(#[$doc:meta])* $name:ident $(, $option:ident = $value:literal)*; $stand:expr) => {
        $(#[$doc])*
        pub(crate) struct $name($crate::fixture::Fixture);

        impl throttle_core::conformance::Harness for $name {
            type Backend = throttle_redis::RedisBackend;

            $(const $option: bool = $value;)*

            fn start() -> Self {
                Self($stand)
            }

            fn backend(&self) -> Self::Backend {
                self.0.backend()
            }

            fn set_time(&self, now: throttle_core::Timestamp) {
                self.0.set_time(now);
            }

            fn block_on<F: Future>(&self, future: F) -> F::Output {
                $crate::fixture::Fixture::block_on(future)
            }
        }
    };
}

pub(crate) use harness;

fn one_server(shared: &Shared) -> RedisBuilder {
    RedisBackend::builder(OneServer::new(&shared.url()).expect("a URL"))
}

harness!(
    /// One multiplexed connection, decisions batched: the default.
    Single;
    Fixture::shared(one_server)
);
harness!(
    /// A pool of three.
    Pooled, IS_ADAPTER = true;
    Fixture::shared(|shared| RedisBackend::builder(Pool::new(&shared.url(), 3).expect("a URL")))
);
harness!(
    /// The pool that an application has, of three.
    AppPool, IS_ADAPTER = true;
    Fixture::shared(|shared| {
        let _inside = RUNTIME.enter();
        let manager = RedisConnectionManager::new(shared.url()).expect("a URL");
        let pool = bb8::Pool::builder().max_size(3).build_unchecked(manager);
        RedisBackend::builder(Pool::existing(pool))
    })
);
harness!(
    /// One multiplexed connection, each decision in a call of its own, keys readable.
    OneByOne, IS_ADAPTER = true;
    Fixture::shared(|shared| one_server(shared).max_batch(1).readable_keys())
);
harness!(
    /// As the first, with refusals cached in the process.
    Cached, KEEPS_REFUSALS = true;
    Fixture::shared(|shared| one_server(shared).deny_cache(10_000))
);
