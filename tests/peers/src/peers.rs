//! throttle and governor, all contenders behind one small trait; further crates are in `rivals`.

use std::hint::black_box;
use std::net::IpAddr;
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::middleware::StateInformationMiddleware;
use governor::state::keyed::DashMapStateStore;
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use throttle_core::backend::Call;
use throttle_core::{Backend, Gcra, Key, MemoryBackend, MemorySet, Policy, PolicySet, Rate};

/// One limit for all keys: one unit each `every`, and `burst` at once.
#[derive(Clone, Copy)]
pub struct Limit {
    pub every: Duration,
    pub burst: u32,
}

impl Limit {
    /// For a key that is used all the time: it is live and never refused, because its debt only
    /// grows.
    pub const NEVER_REFUSES: Self = Self {
        every: Duration::from_millis(1),
        burst: 4_000_000_000,
    };
    /// For a key that is rarely used: one unit keeps it live for longer than a measurement takes.
    pub const STAYS_LIVE: Self = Self {
        every: Duration::from_secs(600),
        burst: 7_000_000,
    };
    /// One unit, then none for an hour.
    pub const REFUSES: Self = Self {
        every: Duration::from_secs(3_600),
        burst: 1,
    };
    /// Ten a second and twenty at once.
    pub const REALISTIC: Self = Self {
        every: Duration::from_millis(100),
        burst: 20,
    };

    fn quota(self) -> Quota {
        let burst = self.burst.try_into().expect("a burst is not zero");
        Quota::with_period(self.every)
            .expect("a period is not zero")
            .allow_burst(burst)
    }
}

/// Decides one request, and reads all parts of the decision as a caller would.
pub trait Peer: Sync {
    fn decide(&self, address: IpAddr) -> bool;
}

pub struct Throttle {
    backend: MemoryBackend,
    set: MemorySet,
}

impl Throttle {
    pub fn new(limit: Limit, max_keys: usize) -> Self {
        let gcra = Gcra::new(Rate::new(1, limit.every)).burst(limit.burst.into());
        Self::with(
            Policy::new("peer", gcra)
                .expect("the limit is valid")
                .into(),
            max_keys,
        )
    }

    pub fn with(rule: throttle_core::PolicyTree, max_keys: usize) -> Self {
        let backend = MemoryBackend::builder().max_keys(max_keys).build();
        let set = backend
            .prepare(PolicySet::new(rule).expect("the set is valid"))
            .expect(
                "the \
            backend has room",
            );
        Self { backend, set }
    }

    /// Decides with one call per policy.
    #[inline]
    pub fn ask(&self, calls: &[Call]) -> bool {
        let decision = self.backend.decide_now(&self.set, calls);
        black_box((
            decision.remaining(),
            decision.retry_after(),
            decision.reset_after(),
        ));
        decision.is_admitted()
    }
}

impl Peer for Throttle {
    #[inline]
    fn decide(&self, address: IpAddr) -> bool {
        self.ask(&[Call::from(Key::from(address))])
    }
}

/// governor with its default answer: yes or no.
pub struct Governor(pub DefaultKeyedRateLimiter<IpAddr>);

impl Governor {
    pub fn new(limit: Limit) -> Self {
        Self(RateLimiter::dashmap(limit.quota()))
    }
}

impl Peer for Governor {
    #[inline]
    fn decide(&self, address: IpAddr) -> bool {
        self.0.check_key(&address).is_ok()
    }
}

type Informed =
    RateLimiter<IpAddr, DashMapStateStore<IpAddr>, DefaultClock, StateInformationMiddleware>;

/// governor with the remaining units, and, if it refuses, the instant to come back at.
pub struct GovernorInformed(Informed);

impl GovernorInformed {
    pub fn new(limit: Limit) -> Self {
        Self(RateLimiter::dashmap(limit.quota()).with_middleware())
    }
}

impl Peer for GovernorInformed {
    #[inline]
    fn decide(&self, address: IpAddr) -> bool {
        match self.0.check_key(&address) {
            Ok(state) => {
                black_box(state.remaining_burst_capacity());
                true
            }
            Err(refused) => {
                black_box(refused.earliest_possible());
                false
            }
        }
    }
}

/// The same with the instant converted to a duration, as a `Retry-After` header needs it: governor
/// reads the time again.
pub struct GovernorRetry(pub GovernorInformed);

impl Peer for GovernorRetry {
    #[inline]
    fn decide(&self, address: IpAddr) -> bool {
        let limiter = &self.0.0;
        match limiter.check_key(&address) {
            Ok(state) => {
                black_box(state.remaining_burst_capacity());
                true
            }
            Err(refused) => {
                black_box(refused.wait_time_from(limiter.clock().now()));
                false
            }
        }
    }
}
