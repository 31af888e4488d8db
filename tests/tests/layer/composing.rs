//! Limits and compositions as a layer builds them.

use http::StatusCode;
use throttle_tower::limit::IntoLimitTree;
use throttle_tower::{
    Constant, Gcra, Header, InFlight, OnMissing, Rate, ThrottleLayer, all, any, limit,
};
use tower::{Layer, ServiceExt};

use crate::common::{Strict, get, left, memory, shared};

/// By default the first member that admits is charged. Otherwise each one is, also below an `all`.
#[tokio::test]
async fn any_charges_the_first_member_that_admits_or_every_one() {
    let pools = || {
        any([
            shared("full", 1).cost(|_: &_| 2),
            shared("own", 9),
            shared("pool", 9),
        ])
    };
    let every = || pools().charge_every_admitting();
    for (limits, remaining) in [
        (pools(), [1, 8, 9]),
        (every(), [1, 8, 8]),
        (all([pools()]), [1, 8, 9]),
        (all([every()]), [1, 8, 8]),
        (any([every()]), [1, 8, 8]),
    ] {
        let store = memory();
        let layer = ThrottleLayer::builder(limits)
            .backend(store.clone())
            .build()
            .unwrap();
        assert_eq!(
            layer
                .layer(Strict::default())
                .oneshot(get())
                .await
                .unwrap()
                .status(),
            StatusCode::OK
        );
        let left =
            [("full", 1), ("own", 9), ("pool", 9)].map(|(name, burst)| left(&store, name, burst));
        assert_eq!(left, remaining);
    }
}

/// A mistake is an error that names its limit, wherever the limit stands.
#[test]
fn mistake_in_a_limit_is_an_error_when_the_layer_is_built() {
    let wrong = || limit("wrong", Gcra::new(Rate::per_minute(1)));
    let found = OnMissing::Reject(StatusCode::FOUND);
    for (wrong, field) in [
        (wrong().by(Header::new("two words")), "header"),
        (wrong().by(Constant).on_missing(found), "on_missing"),
        (
            wrong()
                .by_async(|_| async { Some(1_u64) })
                .on_missing(found),
            "on_missing",
        ),
        (wrong().by(Constant).cost(2), "cost"),
        (wrong().by(Constant).unit(""), "unit"),
    ] {
        for limits in [
            wrong.clone().into_limit_tree(),
            any([shared("right", 1), wrong]),
        ] {
            let error = ThrottleLayer::new(limits).map(drop).unwrap_err();
            assert_eq!((error.policy(), error.field()), (Some("wrong"), field));
        }
    }
}

/// The name tells limits apart, whatever they count.
#[test]
fn name_that_stands_twice_in_a_layer_is_an_error() {
    let rate = |name: &str| shared(name, 1).into_limit_tree();
    let permits = |name: &str| limit(name, InFlight::new(1)).by(Constant).into_limit_tree();
    for (limits, is_right) in [
        ([rate("a"), rate("b"), rate("b")], false),
        ([rate("a"), permits("b"), permits("b")], false),
        ([permits("b"), rate("a"), rate("b")], false),
        (
            [rate("a"), all([rate("b")]), any([rate("c"), rate("b")])],
            false,
        ),
        ([rate("a"), permits("b"), permits("c")], true),
    ] {
        let built = ThrottleLayer::new(all(limits.to_vec())).map(drop);
        assert_eq!(built.as_ref().is_ok(), is_right, "{limits:?}");
        assert!(
            built
                .err()
                .is_none_or(|error| error.to_string().contains("\"b\"")),
            "{limits:?}"
        );
    }
}
