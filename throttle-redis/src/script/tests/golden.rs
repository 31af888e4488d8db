//! The golden vectors through the scripts.

use std::collections::HashMap;

use throttle_core::Key;
use throttle_core::backend::Receipt;

use self::file::{Expect, File, Op};
use super::machine::{Machine, call};

#[path = "../../../../throttle-core/tests/support/golden.rs"]
#[expect(
    dead_code,
    reason = "the loader is the core's, which also reads other files and builds single algorithms"
)]
mod file;

#[test]
fn law_08_golden_through_the_scripts() {
    let file: File =
        serde_json::from_str(include_str!("../../../../throttle-core/tests/golden.json")).unwrap();
    let key = Key::from("golden");
    let mut ops = 0;
    for suite in &file.suites {
        let mut machine = Machine::of(suite.spec.set());
        let policies = machine.set().policies().len();
        let mut receipts = HashMap::new();
        for (index, op) in suite.ops.iter().enumerate() {
            let (decision, cost, expect) = match op {
                Op::Take { t, cost, expect } => {
                    machine.go_to(*t);
                    let calls = vec![call(&key, Some(*cost)); policies];
                    let decision = machine.decide(std::slice::from_ref(&calls)).remove(0);
                    receipts.insert(index, Receipt::of(&decision, &calls));
                    (decision, *cost, expect)
                }
                Op::Refund { t, of, expect } => {
                    machine.go_to(*t);
                    let receipt = receipts
                        .remove(of)
                        .flatten()
                        .expect("a refund names an admitted take, once");
                    machine.settle(&receipt.actual(0));
                    (
                        machine
                            .decide(&[vec![call(&key, Some(0)); policies]])
                            .remove(0),
                        0,
                        expect,
                    )
                }
            };
            let reported = Expect::reported(&suite.spec, &decision, cost);
            let got = match op {
                Op::Take { .. } => reported,
                Op::Refund { .. } => Expect {
                    binding: None,
                    ..reported
                },
            };
            assert_eq!(&got, expect, "{} op {index}", suite.name);
            ops += 1;
        }
    }
    assert!(ops > 1_000, "{ops}");
}
