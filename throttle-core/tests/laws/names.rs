//! A policy's name stands for one limit of a store: which parameters are refused, which replace the others, and what
//! both sets decide then.

use std::sync::Arc;

use throttle_core::backend::{Call, PolicyRegistry};
use throttle_core::{
    Backend, BackendErrorKind, BoxBackend, Carry, Gcra, Key, LocalShare, ManualClock, MemoryBackend, Policy, PolicySet,
    PolicyTree, Rate, SlidingWindow,
};

fn per_minute(name: &str, count: u64) -> Policy {
    Policy::new(name, Gcra::new(Rate::per_minute(count))).unwrap()
}

fn set(rule: impl Into<PolicyTree>) -> PolicySet {
    PolicySet::new(rule).unwrap()
}

fn memory() -> MemoryBackend<ManualClock> {
    MemoryBackend::builder().clock(ManualClock::default()).build()
}

fn call() -> [Call; 1] {
    [Call::from(Key::from("key"))]
}

#[test]
fn other_parameters_of_a_name_in_use_are_refused_and_change_nothing() {
    let backend = memory();
    let login = backend.prepare(set(per_minute("per-ip", 5))).unwrap();
    let error = backend.clone().prepare(set(per_minute("per-ip", 100))).unwrap_err();
    assert_eq!((error.policy(), error.field()), (Some("per-ip"), "parameters of the limit"));
    let text = error.to_string();
    for part in ["gcra 100/minute with a capacity of 100", "gcra 5/minute with a capacity of 5", ".replace_existing()"]
    {
        assert!(text.contains(part), "{text}");
    }
    let admitted = (0..30).filter(|_| backend.decide_now(&login, &call()).is_admitted()).count();
    assert_eq!(admitted, 5);
}

#[test]
fn the_same_parameters_are_the_same_limit() {
    let backend = memory();
    let first = backend.prepare(set(per_minute("per-ip", 5))).unwrap();
    let second = backend.prepare(set(per_minute("per-ip", 5))).unwrap();
    assert_eq!(backend.decide_now(&first, &call()).remaining(), 4);
    assert_eq!(backend.decide_now(&second, &call()).remaining(), 3);
}

#[test]
fn a_name_is_free_once_the_last_clone_of_its_set_is_dropped() {
    let backend = memory();
    let first = backend.prepare(set(per_minute("per-ip", 5))).unwrap();
    let clone = first.clone();
    drop(first);
    assert!(backend.prepare(set(per_minute("per-ip", 100))).is_err());
    drop(clone);
    let hundred = Arc::new(backend.prepare(set(per_minute("per-ip", 100))).unwrap());
    assert_eq!(backend.decide_now(&hundred, &call()).remaining(), 99);
    assert!(backend.in_force(&hundred).is_none(), "its own parameters are in force");
}

#[test]
fn every_name_of_a_set_is_free_once_the_set_is_dropped() {
    let backend = memory();
    let both = PolicyTree::All(vec![per_minute("a", 5).into(), per_minute("b", 5).into()]);
    drop(backend.prepare(set(both)).unwrap());
    for name in ["a", "b"] {
        assert!(backend.prepare(set(per_minute(name, 100))).is_ok(), "{name}");
    }
}

#[test]
fn a_unit_a_tier_and_a_rule_are_parameters() {
    let tiers = [("free", Gcra::new(Rate::per_minute(5)))];
    let plain = per_minute("p", 5);
    let tiered = Policy::tiered("p", tiers, Carry::Keep).unwrap();
    let window = |buckets| Policy::new("p", SlidingWindow::new(Rate::per_minute(60)).buckets(buckets)).unwrap();
    for (one, other) in [
        (plain.clone(), plain.clone().with_unit("bytes").unwrap()),
        (plain.clone(), tiered.clone()),
        (tiered.clone(), Policy::tiered("p", tiers, Carry::Reset).unwrap()),
        (window(10), window(20)),
    ] {
        let backend = memory();
        let _in_use = backend.prepare(set(one)).unwrap();
        let error = backend.prepare(set(other)).unwrap_err();
        let text = error.to_string();
        let (_, existing) = text.split_once("with other parameters, ").unwrap();
        assert!(!existing.starts_with(&format!("{}, and a name", error.value())), "both are described alike: {text}");
    }
    let [held, new] = [10, 20].map(window);
    let registry = PolicyRegistry::default();
    let in_use = registry.register(set(held.clone())).unwrap();
    let error = registry.register(set(new.clone())).unwrap_err();
    assert_eq!(error.value(), format!("{:?}", new.algorithm()), "what is new is shown in full, too");
    assert!(error.to_string().contains(&format!("with other parameters, {:?}, and a name", held.algorithm())));
    assert_eq!(format!("{in_use:?}"), format!("RegisteredSet {{ set: {:?}, .. }}", in_use.set()));
}

#[test]
fn a_set_of_which_one_policy_is_refused_replaces_nothing() {
    let backend = memory();
    let first = Arc::new(backend.prepare(set(per_minute("a", 5))).unwrap());
    let _second = backend.prepare(set(per_minute("b", 5))).unwrap();
    let members = vec![per_minute("a", 100).replace_existing().into(), per_minute("b", 100).into()];
    assert_eq!(backend.prepare(set(PolicyTree::All(members))).unwrap_err().policy(), Some("b"));
    assert_eq!(backend.decide_now(&first, &call()).remaining(), 4);
    assert!(backend.in_force(&first).is_none());
}

#[test]
fn replacing_is_in_force_for_every_set_and_each_reports_it() {
    let backend = memory();
    let former = Arc::new(backend.prepare(set(per_minute("per-ip", 5))).unwrap());
    assert!(backend.in_force(&former).is_none());
    let unrelated = backend.prepare(set(per_minute("other", 7))).unwrap();
    let changed = Arc::new(backend.prepare(set(per_minute("per-ip", 100).replace_existing())).unwrap());
    assert_eq!(backend.decide_now(&former, &call()).remaining(), 99);

    let in_force = backend.in_force(&former).expect("its parameters were replaced");
    assert_eq!(in_force.policies()[0].algorithm().capacity(), 100);
    drop(unrelated);
    let _another = backend.prepare(set(per_minute("third", 7))).unwrap();
    assert!(Arc::ptr_eq(&in_force, &backend.in_force(&former).unwrap()), "nothing about these has changed");
    assert!(backend.in_force(&changed).is_none());

    let _back = backend.prepare(set(per_minute("per-ip", 5).replace_existing())).unwrap();
    assert!(backend.in_force(&former).is_none(), "its own are in force again");
    assert_eq!(backend.in_force(&changed).unwrap().policies()[0].algorithm().capacity(), 5);
}

#[test]
fn a_boxed_backend_reports_what_is_in_force() {
    let backend = BoxBackend::new(memory());
    let former = Arc::new(backend.prepare(set(per_minute("per-ip", 5))).unwrap());
    assert!(backend.prepare(set(per_minute("per-ip", 100))).is_err());
    let _changed = backend.prepare(set(per_minute("per-ip", 100).replace_existing())).unwrap();
    assert_eq!(backend.in_force(&former).unwrap().policies()[0].algorithm().capacity(), 100);
}

#[test]
fn shares_on_one_store_follow_the_same_rule() {
    let (store, limits) = (memory(), set(per_minute("per-ip", 60)));
    let of = |processes: u32| processes.try_into().unwrap();
    let first = LocalShare::new(&store, &limits, of(2)).unwrap();
    assert!(LocalShare::new(&store, &limits, of(2)).is_ok());
    assert!(LocalShare::new(&store, &limits, of(3)).is_err());
    let _second = LocalShare::new(&store, &limits.replace_existing(), of(3)).unwrap();
    assert_eq!(first.decide(&call(), BackendErrorKind::Timeout).remaining(), 19);
}

#[test]
fn a_name_that_is_wrong_is_shown_with_the_bound_and_what_to_do() {
    let error = |name: &str| Policy::new(name, Gcra::new(Rate::per_minute(1))).unwrap_err();
    let long = error(&"x".repeat(97));
    assert_eq!(long.value(), format!("\"{}\" and so on, 97 characters long", "x".repeat(24)));
    assert!(
        long.to_string()
            .ends_with("1 to 64 printable ASCII characters, because clients read it in headers; shorten it")
    );
    assert_eq!(error("").value(), "\"\"");
    assert_eq!(error("größe").value(), "\"größe\"");
    assert!(error("größe").to_string().contains("ASCII letters"));
}

#[test]
fn a_burst_of_zero_is_to_be_raised() {
    let error = Gcra::new(Rate::per_minute(1)).burst(0).build().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("between 1 and") && text.contains("raise it") && !text.contains("lower it"), "{text}");
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
        let tier = Policy::tiered("p", [(text, gcra())], Carry::Keep);
        assert_eq!([named.is_ok(), unit.is_ok(), tier.is_ok()], [fits; 3], "{text:?}");
        for (field, error) in [("policy name", named.err()), ("unit", unit.err()), ("tier", tier.err())] {
            let Some(error) = error else { continue };
            assert_eq!(error.field(), field);
            let policy = (field != "policy name").then_some("p");
            assert_eq!(error.policy(), policy, "{error}");
            assert_eq!(error.to_string().starts_with("policy \"p\": "), policy.is_some(), "{error}");
            assert_eq!(error.value().contains("65 characters long"), text.len() == 65, "{error}");
        }
    }
}

#[test]
fn an_error_of_an_algorithm_names_its_policy_and_keeps_the_innermost() {
    let error = Policy::new("p", Gcra::new(Rate::per_minute(1)).burst(0)).unwrap_err();
    assert_eq!((error.policy(), error.field()), (Some("p"), "burst"));
    let error = Policy::tiered("p", [("t", Gcra::new(Rate::per_minute(1)).burst(0))], Carry::Keep).unwrap_err();
    assert_eq!((error.policy(), error.clone().in_policy("q").policy()), (Some("p"), Some("q")));
}

/// What is changed in a policy with tiers is changed in each tier, and nothing else is.
#[test]
fn the_unit_of_a_policy_is_that_of_each_of_its_tiers() {
    for carry in [Carry::Keep, Carry::Proportional, Carry::Reset] {
        let tiers = |counts: [u64; 3]| {
            let each = counts.map(|count| (format!("t{count}"), Gcra::new(Rate::per_minute(count))));
            Policy::tiered("p", each, carry).unwrap()
        };
        let policy = tiers([1, 2, 3]).with_unit("tokens").unwrap();
        let units = |policy: &Policy| {
            let units = policy.tiers().map(|(_, tier)| tier.unit().map(str::to_owned));
            (policy.unit().map(str::to_owned), units.collect::<Vec<_>>())
        };
        let tokens = (Some("tokens".to_owned()), vec![Some("tokens".to_owned()); 3]);
        assert_eq!((units(&policy), policy.carry()), (tokens.clone(), carry));
        // Another set replaces the limits: the unit stays, and the tiers are the new ones.
        let backend = memory();
        let former = Arc::new(backend.prepare(set(policy)).unwrap());
        let _later = backend.prepare(set(tiers([4, 5, 6]).replace_existing())).unwrap();
        let in_force = backend.in_force(&former).unwrap();
        let [in_force] = in_force.policies() else { panic!("one policy") };
        assert_eq!((units(in_force), in_force.carry()), (tokens, carry));
        assert_eq!([0, 1, 2].map(|tier| in_force.tier(tier).algorithm().capacity()), [4, 5, 6]);
    }
    assert_eq!(per_minute("p", 1).carry(), Carry::Keep, "of a policy without tiers");
}

#[test]
fn tiers_are_found_by_their_exact_names_and_unknown_numbers_stand_for_the_first() {
    let tiers = ["a", "b", "c"].into_iter().zip([1, 2, 3]);
    let policy = Policy::tiered("p", tiers.map(|(name, n)| (name, Gcra::new(Rate::per_minute(n)))), Carry::Reset);
    let policy = policy.unwrap();
    assert_eq!(["a", "c", "A", "d"].map(|name| policy.tier_named(name)), [Some(0), Some(2), None, None]);
    assert_eq!([0, 2, 3].map(|tier| policy.tier_name(tier)), [Some("a"), Some("c"), None]);
    assert_eq!([1, 2, 3, 255].map(|tier| policy.tier(tier).algorithm().capacity()), [2, 3, 1, 1]);
    let whole = set(PolicyTree::All(vec![policy.clone().into(), per_minute("q", 7).into(), rename(&policy).into()]));
    for (tiers, capacities) in
        [(&[][..], [1, 7, 1]), (&[2], [3, 7, 1]), (&[1, 1, 2], [2, 7, 3]), (&[9, 0, 3], [1, 7, 1])]
    {
        let one = whole.in_tiers(tiers);
        let capacity = |policy: &Policy| policy.algorithm().capacity();
        assert_eq!(one.policies().iter().map(capacity).collect::<Vec<_>>(), capacities, "tiers {tiers:?}");
        assert_eq!(one.policies()[0].tiers().count(), 1);
        assert_eq!([&one.policies()[0], &one.policies()[1]].map(Policy::carry), [Carry::Reset, Carry::Keep]);
    }
    let last = PolicyTree::All(vec![per_minute("q", 7).into(), policy.into()]);
    assert!(set(last).is_tiered() && !set(per_minute("q", 7)).is_tiered());
}

fn rename(policy: &Policy) -> Policy {
    let tiers = policy.tiers().map(|(name, tier)| (name, *tier.algorithm()));
    Policy::tiered("r", tiers, policy.carry()).unwrap()
}

#[test]
fn tiers_of_one_name_are_refused_wherever_they_stand_and_sixteen_are_the_most() {
    let tiers = |names: &[String]| {
        let each = names.iter().map(|name| (name, Gcra::new(Rate::per_minute(1))));
        Policy::tiered("p", each, Carry::Keep)
    };
    let names: Vec<String> = (0..17).map(|n| n.to_string()).collect();
    assert!(tiers(&names[..16]).is_ok());
    let error = tiers(&names).unwrap_err();
    assert_eq!((error.policy(), error.field(), error.value()), (Some("p"), "tiers", "17"));
    for twice in [[0, 0, 1], [0, 1, 0], [1, 0, 0]] {
        let error = tiers(&twice.map(|n| names[n].clone())).unwrap_err();
        assert_eq!((error.policy(), error.field(), error.value()), (Some("p"), "tier", "\"0\" twice"));
    }
}

/// Two capacities in proportion: their product is below 2^53, and the larger one recovers no more slowly.
#[test]
fn tiers_in_proportion_are_checked_pair_by_pair_and_to_the_unit() {
    let seconds = |count: u64, seconds: u64| (count, std::time::Duration::from_secs(seconds));
    let tiered = |tiers: &[(u64, std::time::Duration)]| {
        let each =
            tiers.iter().enumerate().map(|(n, (count, period))| (n.to_string(), Gcra::new(Rate::new(*count, *period))));
        Policy::tiered("p", each, Carry::Proportional)
    };
    let half = 1 << 26;
    for (tiers, fits) in [
        (vec![seconds(half, 1), seconds(2 * half - 1, 1)], true),
        (vec![seconds(half, 1), seconds(2 * half, 1)], false),
        (vec![seconds(10, 60), seconds(100, 60)], true),
        (vec![seconds(10, 60), seconds(100, 61)], false),
        (vec![seconds(100, 61), seconds(10, 60)], false),
        (vec![seconds(10, 60), seconds(10, 61)], true),
        (vec![seconds(5, 60), seconds(10, 60), seconds(100, 61)], false),
        (vec![seconds(100, 61), seconds(5, 61), seconds(10, 60)], false),
        (vec![seconds(10, 60), seconds(10, 60), seconds(5, 61)], true),
    ] {
        let policy = tiered(&tiers);
        assert_eq!(policy.is_ok(), fits, "{tiers:?}");
        if let Err(error) = policy {
            assert_eq!((error.policy(), error.field()), (Some("p"), "carry"));
        }
    }
}

#[test]
fn a_set_names_each_policy_once_and_is_neither_empty_nor_too_large_nor_too_deep() {
    let all = |names: &[usize]| {
        PolicySet::new(PolicyTree::All(names.iter().map(|n| per_minute(&format!("p{n}"), 1).into()).collect()))
    };
    for twice in [[0, 0, 1], [0, 1, 0], [1, 0, 0]] {
        let error = all(&twice).unwrap_err();
        assert_eq!((error.field(), error.value()), ("policy name", "\"p0\" twice"));
    }
    let many: Vec<usize> = (0..=PolicySet::MAX_POLICIES).collect();
    assert_eq!(all(&many[1..]).unwrap().policies().len(), 1_023);
    assert_eq!(all(&many).unwrap_err().value(), "1024");
    let any = |members| PolicyTree::Any(members, Default::default());
    for empty in [PolicyTree::All(vec![]), any(vec![]), PolicyTree::All(vec![per_minute("p", 1).into(), any(vec![])])] {
        assert_eq!(PolicySet::new(empty).unwrap_err().field(), "all or any");
    }
    let nested = |depth| (0..depth).fold(PolicyTree::from(per_minute("p", 1)), |tree, _| any(vec![tree]));
    assert!(PolicySet::new(nested(PolicySet::MAX_DEPTH)).is_ok());
    assert_eq!(PolicySet::new(nested(PolicySet::MAX_DEPTH + 1)).unwrap_err().value(), "129");
}

#[test]
fn a_set_of_no_policies_admits_every_request_on_any_backend() {
    let backend = memory();
    let none = Arc::new(backend.prepare(PolicySet::none()).unwrap());
    let decision = backend.decide_now(&none, &[]);
    assert_eq!((decision.is_admitted(), decision.remaining(), decision.binding()), (true, u64::MAX, None));
    assert_eq!(PolicySet::none().node(0), throttle_core::PolicyNode::All);
}

/// Parameters in force have an epoch, which changes with them and only with them.
#[test]
fn an_epoch_changes_when_the_parameters_in_force_do() {
    let registry = throttle_core::backend::PolicyRegistry::default();
    let limit = |count| set(per_minute("p", count));
    let start = registry.epoch();
    drop(registry.register(limit(5)).unwrap());
    drop(registry.register(limit(5)).unwrap());
    assert_eq!(registry.epoch(), start, "nothing has changed");
    let six = registry.register(limit(6)).unwrap();
    assert_ne!(registry.epoch(), start, "the name was free, and has other parameters now");
    assert_eq!(registry.in_force(&limit(5)).policies()[0].algorithm().capacity(), 6);
    let _seven = registry.register(limit(7).replace_existing()).unwrap();
    let replaced = six.replaced().expect("its limit was replaced");
    let other = PolicyTree::All(vec![per_minute("q", 1).into(), per_minute("r", 1).into()]);
    let _other = registry.register(set(other.clone())).unwrap();
    let both = |count| PolicyTree::All(vec![per_minute("q", count).into(), per_minute("r", count).into()]);
    let _both = registry.register(set(both(2)).replace_existing()).unwrap();
    assert!(Arc::ptr_eq(&replaced, &six.replaced().unwrap()), "other policies have changed");
}

#[test]
fn own_numbers_stand_beside_the_limit_of_their_name_and_change_nothing_for_it() {
    let backend = memory();
    let plan = per_minute("per-user", 5);
    let own = || plan.with_own(Gcra::new(Rate::per_minute(100))).unwrap();
    let before = backend.prepare(set(own())).unwrap();
    let base = Arc::new(backend.prepare(set(plan.clone())).unwrap());
    let after = Arc::new(backend.prepare(set(own())).unwrap());
    assert!(backend.in_force(&base).is_none() && backend.in_force(&after).is_none());
    assert_eq!(backend.decide_now(&base, &call()).remaining(), 4);
    assert_eq!([&before, &*after].map(|set| backend.decide_now(set, &call()).remaining()), [98, 97]);
    assert_eq!(backend.decide_now(&base, &call()).remaining(), 1);
    drop(base);
    let other = backend.prepare(set(per_minute("per-user", 6))).unwrap();
    assert_eq!(backend.decide_now(&other, &call()).remaining(), 1, "own numbers keep no name in use");
    assert_eq!(backend.decide_now(&after, &call()).statuses()[0].tier(), Policy::OWN);
    let seven = backend.prepare(set(per_minute("per-user", 7).replace_existing())).unwrap();
    assert_eq!(backend.in_force(&Arc::new(other)).unwrap().policies()[0].algorithm().capacity(), 7);
    assert!(backend.in_force(&after).is_none(), "own numbers are replaced by none");
    assert_eq!(backend.decide_now(&seven, &call()).remaining(), 0, "six were used before");
    assert_eq!(backend.decide_now(&after, &call()).remaining(), 92);
    assert!(!backend.decide_now(&seven, &call()).is_admitted());
}

#[test]
fn a_set_with_own_numbers_in_one_policy_stands_beside_others_in_all() {
    let backend = memory();
    let both = |count| set(PolicyTree::All(vec![per_minute("q", count).into(), per_minute("r", count).into()]));
    let present = backend.prepare(both(5)).unwrap();
    let own = Gcra::new(Rate::per_minute(100)).build().unwrap();
    // The customer's set was made from limits that are no longer in force.
    let former = backend.prepare(both(9).with_own([(0, own)]).unwrap()).unwrap();
    let left = |set: &_| -> Vec<u64> {
        let decision = backend.decide_now(set, &[call(), call()].concat());
        decision.statuses().iter().map(|status| status.remaining()).collect()
    };
    assert_eq!(left(&former), [99, 8]);
    assert_eq!(left(&present), [3, 3]);
}

#[test]
fn own_numbers_are_checked_like_any_limit_and_against_the_tiers() {
    let gcra = |count, seconds| Gcra::new(Rate::new(count, std::time::Duration::from_secs(seconds)));
    let plan = |carry| Policy::tiered("plan", [("free", gcra(10, 60)), ("pro", gcra(100, 60))], carry).unwrap();
    let error = |own, carry| plan(carry).with_own(own).unwrap_err().to_string();
    let zero = error(gcra(0, 1), Carry::Keep);
    assert!(zero.starts_with("policy \"plan\": rate count is 0: "), "{zero}");
    let burst = error(gcra(1, 1).burst(0), Carry::Keep);
    assert!(burst.starts_with("policy \"plan\": burst is 0: "), "{burst}");
    let log = plan(Carry::Keep).with_own(SlidingWindow::new(Rate::per_minute(5))).unwrap_err();
    assert_eq!((log.field(), log.value()), ("algorithm", "sliding_window"));
    assert!(log.to_string().ends_with("own numbers have the algorithm of a tier; use gcra"), "{log}");
    // Two of them would have to be in proportion to each other, too.
    let proportional = "policy \"plan\": carry is Proportional: numbers of a key's own are in proportion with no other \
                        key's; use Carry::Keep or Carry::Reset";
    assert_eq!(error(gcra(50, 60), Carry::Proportional), proportional);
    let own = plan(Carry::Reset).with_unit("tokens").unwrap().with_own(gcra(50, 60)).unwrap();
    assert_eq!((own.carry(), own.unit(), own.tier_name(Policy::OWN)), (Carry::Reset, Some("tokens"), Some("own")));
    assert_eq!((own.algorithm().capacity(), own.tier(Policy::OWN).unit()), (50, Some("tokens")));
}
