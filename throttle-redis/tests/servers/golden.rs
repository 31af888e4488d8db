//! Law 8, one answer: a real server decides the golden vectors. That it decides any trace as the
//! algorithms do is a part of the conformance kit, and that those do as the reference does is a law
//! of the core.

#[path = "../../../throttle-core/tests/support/golden.rs"]
#[allow(dead_code, reason = "the tests of the core use the rest")]
mod vectors;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use self::vectors::{Expect, Op, load};
use throttle_core::backend::{Call, Receipt};
use throttle_core::{Backend, Cost, Decision, Key, ManualClock, Timestamp};
use throttle_redis::{RedisBackend, RedisSet, Single};
use throttle_test_servers::Shared;

/// A set on a server, whose time the test sets.
struct Bench {
    backend: RedisBackend,
    prepared: Arc<RedisSet>,
    clock: ManualClock,
}

impl Bench {
    async fn decide(&self, t: i64, calls: &[Call]) -> Decision {
        self.clock.set(Timestamp::from_micros(t));
        self.backend
            .decide(&self.prepared, calls)
            .await
            .expect("a decision")
    }

    async fn settle(&self, t: i64, receipt: Receipt) {
        self.clock.set(Timestamp::from_micros(t));
        self.backend
            .settle(&self.prepared, receipt)
            .await
            .expect("settled");
    }
}

#[tokio::test]
async fn law_08_golden_through_a_real_server() {
    let file = load();
    let mut ops = 0;
    for suite in &file.suites {
        let (shared, clock) = (Shared::new(), ManualClock::default());
        let builder = RedisBackend::builder(Single::new(&shared.url()).expect("a URL"))
            .prefix(shared.prefix());
        let backend = builder
            .clock(clock.clone())
            .deadline(Duration::from_secs(10))
            .build()
            .expect("valid options");
        let prepared = Arc::new(backend.prepare(suite.spec.set()).expect("a set"));
        let bench = Bench {
            backend,
            prepared,
            clock,
        };
        let policies = RedisBackend::set(&bench.prepared).policies().len();
        let calls = |cost| {
            let key = Key::from("golden");
            let call = Cost::new(cost).map_or_else(
                |_| Call::peek(key.clone()),
                |cost| Call::new(key.clone(), cost),
            );
            vec![call; policies]
        };
        let mut receipts = HashMap::new();
        for (index, op) in suite.ops.iter().enumerate() {
            let (got, expect) = match op {
                Op::Take { t, cost, expect } => {
                    let decision = bench.decide(*t, &calls(*cost)).await;
                    receipts.insert(index, Receipt::of(&decision, &calls(*cost)));
                    (Expect::reported(&suite.spec, &decision, *cost), expect)
                }
                Op::Refund { t, of, expect } => {
                    let receipt = receipts
                        .remove(of)
                        .flatten()
                        .expect("a refund names an admitted take, once");
                    bench.settle(*t, receipt.actual(0)).await;
                    let peeked = bench.decide(*t, &calls(0)).await;
                    (
                        Expect {
                            binding: None,
                            ..Expect::reported(&suite.spec, &peeked, 0)
                        },
                        expect,
                    )
                }
            };
            assert_eq!(&got, expect, "{} op {index}", suite.name);
        }
        ops += suite.ops.len();
        assert!(
            shared.own_keys_without_ttl().is_empty(),
            "keys that would stay for ever"
        );
    }
    assert!(ops > file.suites.len());
}
