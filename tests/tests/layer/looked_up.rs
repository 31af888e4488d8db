//! Refusals before a lookup: where the keys that are looked up cannot change the decision.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::StatusCode;
use proptest::prelude::*;
use throttle_core::{BackendErrorKind, Key};
use throttle_tower::limit::IntoLimitTree;
use throttle_tower::{
    Constant, Gcra, Limit, LimitReport, LimitTree, OnError, Rate, ThrottleLayer, all, any, limit,
    plans,
};
use tower::{Layer, ServiceExt};

use crate::common::{Memory, Remote, Strict, get, left, memory, shared};

#[derive(Clone, Debug)]
enum Node {
    Limit(Leaf),
    All(Vec<Self>),
    Any(Vec<Self>),
}

#[derive(Clone, Debug)]
struct Leaf {
    /// Counted from the left, and the number in the name.
    place: usize,
    burst: u64,
    cost: u64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Known,
    LookedUp,
    /// Does not apply.
    Skipped,
}

fn node() -> impl Strategy<Value = Node> {
    let kind =
        prop_oneof![4 => Just(Kind::Known), 2 => Just(Kind::LookedUp), 1 => Just(Kind::Skipped)];
    let leaf = (1..=3_u64, 0..=4_u64, kind);
    let leaf = leaf.prop_map(|(burst, cost, kind)| {
        Node::Limit(Leaf {
            place: 0,
            burst,
            cost,
            kind,
        })
    });
    let members = |member| prop::collection::vec(member, 1..=3);
    leaf.prop_recursive(3, 8, 3, move |member| {
        prop_oneof![
            members(member.clone()).prop_map(Node::All),
            members(member).prop_map(Node::Any)
        ]
    })
    .prop_map(|mut node| {
        node.number(&mut 0);
        node
    })
}

impl Node {
    fn number(&mut self, next: &mut usize) {
        match self {
            Self::Limit(leaf) => {
                leaf.place = *next;
                *next += 1;
            }
            Self::All(members) | Self::Any(members) => {
                members.iter_mut().for_each(|member| member.number(next));
            }
        }
    }

    fn leaves(&self) -> Vec<&Leaf> {
        match self {
            Self::Limit(leaf) => vec![leaf],
            Self::All(members) | Self::Any(members) => {
                members.iter().flat_map(Self::leaves).collect()
            }
        }
    }

    fn compose(&self, limit: &impl Fn(&Leaf) -> Limit) -> LimitTree {
        let compose = |members: &[Self]| {
            members
                .iter()
                .map(|member| member.compose(limit))
                .collect::<Vec<_>>()
        };
        match self {
            Self::Limit(leaf) => limit(leaf).into_limit_tree(),
            Self::All(members) => all(compose(members)),
            Self::Any(members) => any(compose(members)),
        }
    }

    /// Whether it refuses if all keys that are looked up have room; `None` if it does not apply.
    fn refuses(&self, left: &[u64]) -> Option<bool> {
        let below = |members: &[Self]| {
            members
                .iter()
                .filter_map(|member| member.refuses(left))
                .collect::<Vec<_>>()
        };
        match self {
            Self::Limit(leaf) if leaf.kind == Kind::Skipped => None,
            Self::Limit(leaf) => Some(leaf.kind == Kind::Known && leaf.cost > left[leaf.place]),
            Self::All(members) => Some(below(members))
                .filter(|all| !all.is_empty())
                .map(|all| all.contains(&true)),
            Self::Any(members) => Some(below(members))
                .filter(|any| !any.is_empty())
                .map(|any| !any.contains(&false)),
        }
    }

    /// The limits that a refusal without a lookup announces: not those of an `any` that a lookup
    /// may make admit.
    fn announced(&self, left: &[u64]) -> Vec<String> {
        let is_open = self.refuses(left) != Some(true)
            && self.leaves().iter().any(|leaf| leaf.kind == Kind::LookedUp);
        match self {
            Self::Limit(leaf) => Some(leaf)
                .filter(|leaf| leaf.kind == Kind::Known)
                .map(Leaf::name)
                .into_iter()
                .collect(),
            Self::Any(_) if is_open => Vec::new(),
            Self::All(members) | Self::Any(members) => members
                .iter()
                .flat_map(|member| member.announced(left))
                .collect(),
        }
    }
}

impl Leaf {
    fn name(&self) -> String {
        format!("p{}", self.place)
    }

    /// The limit, where no key has to be looked up.
    fn plain(&self) -> Limit {
        self.finish(shared(&self.name(), self.burst))
    }

    fn looked_up(&self, lookups: &Arc<AtomicUsize>) -> Limit {
        if self.kind != Kind::LookedUp {
            return self.plain();
        }
        let lookups = Arc::clone(lookups);
        let key = move |_: &http::request::Parts| {
            let lookups = Arc::clone(&lookups);
            async move {
                lookups.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                Some(Key::CONSTANT)
            }
        };
        self.finish(
            limit(
                self.name(),
                Gcra::new(Rate::per_minute(1)).burst(self.burst),
            )
            .by_async(key),
        )
    }

    fn finish(&self, limit: Limit) -> Limit {
        // A function, because a number above the burst is an error.
        let (cost, applies) = (self.cost, self.kind != Kind::Skipped);
        limit
            .cost(move |_: &http::request::Parts| cost)
            .when(move |_| applies)
    }
}

fn remaining(store: &Memory, leaves: &[&Leaf]) -> Vec<u64> {
    leaves
        .iter()
        .map(|leaf| left(store, &leaf.name(), leaf.burst))
        .collect()
}

async fn decides_like_a_layer_without_lookups(node: Node) -> Result<(), TestCaseError> {
    let (lookups, leaves) = (Arc::new(AtomicUsize::new(0)), node.leaves());
    let [store, plain_store] = [memory(), memory()];
    let layer = ThrottleLayer::builder(node.compose(&|leaf| leaf.looked_up(&lookups)))
        .report_in(throttle_tower::ReportIn::Both)
        .backend(store.clone())
        .build()
        .unwrap();
    let plain = ThrottleLayer::builder(node.compose(&Leaf::plain))
        .report_in(throttle_tower::ReportIn::Both)
        .backend(plain_store.clone())
        .build()
        .unwrap();
    for _ in 0..4 {
        let before = remaining(&store, &leaves);
        let is_certain = node.refuses(&before) == Some(true);
        lookups.store(0, Ordering::SeqCst);
        let response = layer.layer(Strict::default()).oneshot(get()).await.unwrap();
        let expected = plain.layer(Strict::default()).oneshot(get()).await.unwrap();
        prop_assert_eq!(response.status(), expected.status());
        prop_assert_eq!(remaining(&store, &leaves), remaining(&plain_store, &leaves));
        let unknown = leaves
            .iter()
            .filter(|leaf| leaf.kind == Kind::LookedUp)
            .count();
        prop_assert_eq!(
            lookups.load(Ordering::SeqCst),
            if is_certain { 0 } else { unknown },
            "{:?}",
            before
        );
        if is_certain && unknown > 0 {
            prop_assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
            let report = response
                .extensions()
                .get::<LimitReport>()
                .expect("a refusal has a report");
            let announced: Vec<&str> = report.statuses().map(|(policy, _)| policy.name()).collect();
            prop_assert_eq!(announced, node.announced(&before));
        }
    }
    prop_assert_eq!(
        layer.settlements().settled,
        0,
        "nothing was charged that had to be given back"
    );
    Ok(())
}

/// Whatever the composition: a request is looked up only if it may be admitted, and is then decided
/// and charged as if all keys had been known at once.
#[test]
fn law_14_lookup_changes_no_decision_of_any_composition() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    proptest!(ProptestConfig::with_cases(1_000), |(node in node())| {
        runtime.block_on(decides_like_a_layer_without_lookups(node))?;
    });
}

/// Beside a limit that refuses, an `all` with a key to look up announces its other limits, and an
/// `any` does not.
#[tokio::test]
async fn law_14_refusal_without_a_lookup_announces_what_it_has_asked() {
    let leaf = |cost, kind| {
        Node::Limit(Leaf {
            place: 0,
            burst: 1,
            cost,
            kind,
        })
    };
    let members = || vec![leaf(1, Kind::Known), leaf(1, Kind::LookedUp)];
    for inner in [
        Node::All(members()),
        Node::Any(members()),
        Node::All(vec![Node::All(members())]),
    ] {
        for nested in [
            vec![leaf(2, Kind::Known), inner.clone()],
            vec![inner, leaf(2, Kind::Known)],
        ] {
            let mut node = Node::All(nested);
            node.number(&mut 0);
            decides_like_a_layer_without_lookups(node).await.unwrap();
        }
    }
}

/// It fails between the peek that refuses and the question about the wait. The request is not
/// delayed by a third one.
#[tokio::test]
async fn law_12_store_that_fails_after_a_refusing_peek_is_not_asked_again() {
    for (rule, status, looked_up) in [
        (OnError::Closed, StatusCode::SERVICE_UNAVAILABLE, 1),
        (OnError::Open, StatusCode::OK, 2),
    ] {
        let lookups = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&lookups);
        let tiers = plans("plan", [("free", Gcra::new(Rate::per_minute(9)))])
            .by(Constant)
            .lookup(move |_| {
                counted.fetch_add(1, Ordering::SeqCst);
                std::future::ready(Some("free"))
            });
        let forgetful = tiers.cache(1, Duration::ZERO).unknown("free");
        let remote = Remote::faltering(false);
        let layer = ThrottleLayer::builder(all((shared("once", 1), forgetful)))
            .on_error(rule)
            .backend(remote.clone())
            .build()
            .unwrap();
        let service = layer.layer(Strict::default());
        let (failing, mut questions) = (remote.clone(), 0);
        remote.before_each(move || {
            questions += 1;
            failing.trouble((questions == 4).then_some(BackendErrorKind::Unavailable));
        });
        assert_eq!(
            service.clone().oneshot(get()).await.unwrap().status(),
            StatusCode::OK
        );
        assert_eq!(
            remote.decisions.load(Ordering::SeqCst),
            2,
            "a peek and the decision"
        );
        assert_eq!(service.oneshot(get()).await.unwrap().status(), status);
        assert_eq!(
            (
                remote.decisions.load(Ordering::SeqCst),
                lookups.load(Ordering::SeqCst)
            ),
            (4, looked_up)
        );
    }
}
