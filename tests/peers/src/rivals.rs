//! The time of one decision beside two newer crates. Each answers with less than throttle does:
//! rate-net with yes, or no and the wait; quota with what remains.

use std::hint::black_box;
use std::net::IpAddr;

use quota::{QuotaPolicy, QuotaPool, RefillRate};
use rate_net::{Algorithm, Decision, Eviction, Key, RateLimiter};

use crate::decide::{Keys, MILLION, compare};
use crate::peers::{Limit, Peer, Throttle};
use crate::report;

/// rate-net's GCRA ("leaky bucket"), without a bound of its store, as governor has none.
pub struct RateNet(RateLimiter);

impl RateNet {
    pub fn new(limit: Limit) -> Self {
        let limiter = RateLimiter::builder()
            .algorithm(Algorithm::LeakyBucket)
            .quota(1, limit.every)
            .burst(limit.burst)
            .eviction(Eviction::unbounded())
            .try_build();
        Self(limiter.expect("the limit is valid"))
    }
}

impl Peer for RateNet {
    #[inline]
    fn decide(&self, address: IpAddr) -> bool {
        match self.0.check(Key::ip(address)) {
            Decision::Allow => true,
            refused => {
                _ = black_box(refused);
                false
            }
        }
    }
}

/// quota's pool, whose tokens and rates are floating-point numbers.
pub struct Pool(QuotaPool<IpAddr>);

impl Pool {
    pub fn new(limit: Limit) -> Self {
        let policy = QuotaPolicy::new()
            .set_capacity(limit.burst.into())
            .set_refill_rate(RefillRate::per_sec(1.0 / limit.every.as_secs_f64()));
        Self(QuotaPool::with_key_type(policy, limit.burst.into()))
    }
}

impl Peer for Pool {
    #[inline]
    fn decide(&self, address: IpAddr) -> bool {
        black_box(self.0.consume(&address, 1)).is_ok()
    }
}

pub fn run() {
    let columns = [
        "decision",
        "threads",
        "throttle, ns",
        "rate-net, ns",
        "quota, ns",
        "rate-net ÷ throttle",
        "quota ÷ throttle",
    ];
    report::title(
        "One decision beside rate-net and quota (GCRA, IPv4 key; more than 1 is in our \
        favour)",
        &columns,
    );
    for (name, keys, limit) in [
        ("hot key, allow", Keys::Hot, Limit::NEVER_REFUSES),
        ("hot key, deny", Keys::Hot, Limit::REFUSES),
        (
            "10 k keys, allow",
            Keys::Uniform(10_000),
            Limit::NEVER_REFUSES,
        ),
        (
            "1 M keys uniform, allow, all live",
            Keys::Uniform(1_000_000),
            Limit::STAYS_LIVE,
        ),
        (
            "1 M keys uniform, deny",
            Keys::Uniform(1_000_000),
            Limit::REFUSES,
        ),
    ] {
        compare(
            name,
            keys,
            &Throttle::new(limit, MILLION),
            &RateNet::new(limit),
            &Pool::new(limit),
        );
    }
}
