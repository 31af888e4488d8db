//! Names and bounds of policies, tiers and sets, and sets of one name in one store.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use throttle_core::backend::Call;
use throttle_core::{
    Backend, BackendErrorKind, Gcra, Key, LocalShare, ManualClock, MemoryBackend, Policy,
    PolicySet, PolicyTree, Rate,
};

fn per_minute(name: &str, count: u64) -> Policy {
    Policy::new(name, Gcra::new(Rate::per_minute(count))).unwrap()
}

fn set(rule: impl Into<PolicyTree>) -> PolicySet {
    PolicySet::new(rule).unwrap()
}

fn memory() -> MemoryBackend<ManualClock> {
    MemoryBackend::builder()
        .clock(ManualClock::default())
        .build()
}

fn call() -> [Call; 1] {
    [Call::from(Key::from("key"))]
}

#[test]
fn shares_of_one_store_decide_each_by_their_own_numbers() {
    let (store, limits) = (memory(), set(per_minute("per-ip", 60)));
    let [half, third] =
        [2, 3].map(|n| LocalShare::new(&store, &limits, NonZeroU32::new(n).unwrap()).unwrap());
    let left = |share: &LocalShare| share.decide(&call(), BackendErrorKind::Timeout).remaining();
    assert_eq!((left(&half), left(&third), left(&half)), (29, 18, 27));
}

#[test]
fn unit_of_a_policy_is_that_of_each_tier() {
    let tiers = [1, 2, 3].map(|count| (format!("t{count}"), Gcra::new(Rate::per_minute(count))));
    let policy = Policy::tiered("p", tiers)
        .unwrap()
        .with_unit("tokens")
        .unwrap();
    assert_eq!(policy.unit(), Some("tokens"));
    assert!(
        policy
            .tiers()
            .all(|(_, tier)| tier.unit() == Some("tokens"))
    );
    assert_eq!(
        policy.under(policy.tier(2).algorithm()).unit(),
        Some("tokens")
    );
}

#[test]
fn tiers_are_found_by_exact_names_and_unknown_numbers_are_the_first() {
    let tiers = ["a", "b", "c"].into_iter().zip([1, 2, 3]);
    let policy = Policy::tiered(
        "p",
        tiers.map(|(name, n)| (name, Gcra::new(Rate::per_minute(n)))),
    )
    .unwrap();
    assert_eq!(
        ["a", "c", "A", "d"].map(|name| policy.tier_named(name)),
        [Some(0), Some(2), None, None]
    );
    assert_eq!(
        [0, 2, 3, 255].map(|tier| policy.tier_name(tier)),
        [Some("a"), Some("c"), None, Some("own")]
    );
    assert_eq!(
        [1, 2, 3, 254].map(|tier| policy.tier(tier).algorithm().capacity()),
        [2, 3, 1, 1]
    );
    let last = PolicyTree::All(vec![per_minute("q", 7).into(), policy.into()]);
    assert!(set(last).is_tiered() && !set(per_minute("q", 7)).is_tiered());
}

#[test]
fn own_parameters_are_checked_like_any_limit_and_against_the_tiers() {
    let gcra = |count, seconds| Gcra::new(Rate::new(count, Duration::from_secs(seconds)));
    let policy = Policy::tiered("plan", [("free", gcra(10, 60)), ("pro", gcra(100, 600))]).unwrap();
    let error = |own| policy.own(own).unwrap_err().to_string();
    let zero = error(gcra(0, 1));
    assert!(
        zero.starts_with("policy \"plan\": rate count is 0: "),
        "{zero}"
    );
    let burst = error(gcra(1, 1).burst(0));
    assert!(
        burst.starts_with("policy \"plan\": burst is 0: "),
        "{burst}"
    );
    // A hundred times as long as the shortest tier, and as short as the longest.
    for (seconds, fits) in [(5, false), (6, true), (6_000, true), (6_001, false)] {
        assert_eq!(policy.own(gcra(7, seconds)).is_ok(), fits, "{seconds} s");
    }
    let other = policy
        .own(throttle_core::SlidingLog::new(Rate::per_minute(50)))
        .unwrap();
    assert_eq!(policy.under(&other).algorithm().capacity(), 50);
    assert!(!policy.under(&other).is_tiered());
}

#[test]
fn a_burst_of_zero_is_to_be_raised() {
    let error = Gcra::new(Rate::per_minute(1)).burst(0).build().unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("between 1 and") && text.contains("raise it") && !text.contains("lower it"),
        "{text}"
    );
}

/// The bounds of everything that headers show: 1 to 64 characters, from a space to a tilde.
#[test]
fn names_units_and_tiers_are_1_to_64_printable_ascii_characters() {
    let gcra = || Gcra::new(Rate::per_minute(1));
    let plain = || Policy::new("p", gcra()).unwrap();
    for (text, fits) in [
        ("", false),
        ("a", true),
        (" ~", true),
        (&"x".repeat(64), true),
        (&"x".repeat(65), false),
        ("\x7f", false),
        ("a\tb", false),
        ("\x1f", false),
        ("é", false),
    ] {
        let named = Policy::new(text, gcra());
        let unit = plain().with_unit(text);
        let tier = Policy::tiered("p", [(text, gcra())]);
        assert_eq!(
            [named.is_ok(), unit.is_ok(), tier.is_ok()],
            [fits; 3],
            "{text:?}"
        );
        for (field, error) in [
            ("policy name", named.err()),
            ("unit", unit.err()),
            ("tier", tier.err()),
        ] {
            let Some(error) = error else { continue };
            assert_eq!(error.field(), field);
            let policy = (field != "policy name").then_some("p");
            assert_eq!(error.policy(), policy, "{error}");
            assert_eq!(
                error.to_string().starts_with("policy \"p\": "),
                policy.is_some(),
                "{error}"
            );
            assert_eq!(
                error.value().contains("65 characters long"),
                text.len() == 65,
                "{error}"
            );
        }
    }
}

#[test]
fn an_error_of_an_algorithm_names_its_policy_and_keeps_the_innermost() {
    let error = Policy::new("p", Gcra::new(Rate::per_minute(1)).burst(0)).unwrap_err();
    assert_eq!((error.policy(), error.field()), (Some("p"), "burst"));
    let error = Policy::tiered("p", [("t", Gcra::new(Rate::per_minute(1)).burst(0))]).unwrap_err();
    assert_eq!(
        (error.policy(), error.clone().in_policy("q").policy()),
        (Some("p"), Some("q"))
    );
}

#[test]
fn a_set_names_each_policy_once_and_has_bounds() {
    let all = |names: &[usize]| {
        PolicySet::new(PolicyTree::All(
            names
                .iter()
                .map(|n| per_minute(&format!("p{n}"), 1).into())
                .collect(),
        ))
    };
    for twice in [[0, 0, 1], [0, 1, 0], [1, 0, 0]] {
        let error = all(&twice).unwrap_err();
        assert_eq!(
            (error.field(), error.value()),
            ("policy name", "\"p0\" twice")
        );
    }
    let many: Vec<usize> = (0..=PolicySet::MAX_POLICIES).collect();
    assert_eq!(all(&many[1..]).unwrap().policies().len(), 1_023);
    assert_eq!(all(&many).unwrap_err().value(), "1024");
    let any = |members| PolicyTree::Any(members, Default::default());
    for empty in [
        PolicyTree::All(vec![]),
        any(vec![]),
        PolicyTree::All(vec![per_minute("p", 1).into(), any(vec![])]),
    ] {
        assert_eq!(PolicySet::new(empty).unwrap_err().field(), "all or any");
    }
    let nested = |depth| {
        (0..depth).fold(PolicyTree::from(per_minute("p", 1)), |tree, _| {
            any(vec![tree])
        })
    };
    assert!(PolicySet::new(nested(PolicySet::MAX_DEPTH)).is_ok());
    assert_eq!(
        PolicySet::new(nested(PolicySet::MAX_DEPTH + 1))
            .unwrap_err()
            .value(),
        "129"
    );
}

#[test]
fn a_set_of_no_policies_admits_every_request_on_any_backend() {
    let backend = memory();
    let none = Arc::new(backend.prepare(PolicySet::none()).unwrap());
    let decision = backend.decide_now(&none, &[]);
    assert_eq!(
        (
            decision.is_admitted(),
            decision.remaining(),
            decision.binding()
        ),
        (true, u64::MAX, None)
    );
    assert_eq!(PolicySet::none().node(0), throttle_core::PolicyNode::All);
}
