//! The golden vectors.

use std::collections::HashMap;

use throttle_core::backend::{Call, Receipt};
use throttle_core::{Cost, Key};

use crate::remote::Remote;
use crate::support::golden::{Expect, Op, load};

#[test]
fn law_08_golden_through_a_real_server() {
    let file = load();
    let mut ops = 0;
    for suite in &file.suites {
        let remote = Remote::new();
        let bench = remote.bench(suite.spec.set());
        let policies = bench.set().policies().len();
        let calls = |cost| {
            let key = Key::from("golden");
            vec![
                Cost::new(cost).map_or_else(|_| Call::peek(key.clone()), |cost| Call::new(key.clone(), cost));
                policies
            ]
        };
        let mut receipts = HashMap::new();
        for (index, op) in suite.ops.iter().enumerate() {
            let (got, expect) = match op {
                Op::Take { t, cost, expect } => {
                    let decision = bench.decide(*t, &calls(*cost));
                    receipts.insert(index, Receipt::of(&decision, &calls(*cost)));
                    (Expect::told(&suite.spec, &decision, *cost), expect)
                }
                Op::Refund { t, of, expect } => {
                    let receipt = receipts.remove(of).flatten().expect("a refund names an admitted take, once");
                    bench.settle(*t, receipt.actual(0));
                    (Expect { binding: None, ..Expect::told(&suite.spec, &bench.decide(*t, &calls(0)), 0) }, expect)
                }
            };
            assert_eq!(&got, expect, "{} op {index}", suite.name);
        }
        ops += suite.ops.len();
    }
    assert!(ops > file.suites.len());
}
