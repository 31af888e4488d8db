//! What would happen to a request, and what happens to it.

use std::convert::Infallible;
use std::net::IpAddr;
use std::task::{Context, Waker};
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response, StatusCode};
use proptest::prelude::*;
use throttle_core::backend::{Exception, Treatment};
use throttle_core::{Gcra, ManualClock, MemoryBackend, Rate, Timestamp};
use tower::{Layer, ServiceExt, service_fn};

use crate::{Explanation, Handle, Registry, Rules, Verdict};
use throttle_tower::Header;
use throttle_tower::ThrottleLayer;
use throttle_tower::extract::{MatchedRoute, PeerAddr};
use throttle_tower::plans::Tier;

const FILE: &str = r#"
version = 1
compose = ["per-ip", { any = ["own", "pool"] }, "login", "per-user", "exports"]

[[limit]]
name = "per-ip"
gcra = { rate = "3/minute" }
by = "client-ip"

[[limit]]
name = "own"
fixed-window = { rate = "4/minute" }
by = "api-key"
on-missing = "skip"
cost = "size"

[[limit]]
name = "pool"
sliding-window = { rate = "6/minute" }
by = "constant"
cost = "size"

[[limit]]
name = "login"
sliding-log = { rate = "2/minute" }
by = "api-key"
match = { methods = ["POST"], routes = ["/login"] }
on-missing = { reject = 401 }

[[plans]]
name = "per-user"
by = "api-key"
lookup = "plan-of"
unknown = "free"
tiers = { free = { token-bucket = { rate = "2/minute" } }, pro = { token-bucket = { rate = "5/minute" } } }
when = { not = "internal" }

[[concurrency]]
name = "exports"
most = 1
match = { paths = ["/exports/**"] }
"#;

fn registry() -> Registry {
    let size = |parts: &Parts| {
        parts
            .headers
            .get("x-size")
            .and_then(|size| size.to_str().ok()?.parse().ok())
            .unwrap_or(1)
    };
    Registry::new()
        .key("api-key", Header::new("x-api-key"))
        .cost("size", size)
        .classes("by-path", |parts: &Parts| {
            if parts.uri.path() == "/login" {
                "high"
            } else {
                "low"
            }
        })
        .condition("internal", |parts: &Parts| {
            parts.headers.contains_key("x-internal")
        })
        .lookup("plan-of", |key: String| async move {
            key.starts_with("pro").then_some("pro")
        })
}

type Memory = MemoryBackend<ManualClock>;

fn live() -> (ThrottleLayer<Memory>, Handle, ManualClock) {
    live_by(FILE)
}

fn live_by(file: &str) -> (ThrottleLayer<Memory>, Handle, ManualClock) {
    let clock = ManualClock::default();
    let memory = MemoryBackend::builder().clock(clock.clone()).build();
    let rules = Rules::from_str("throttle.toml", file, registry())
        .unwrap_or_else(|error| panic!("{error}"));
    let (layer, handle) = rules.layer(memory).unwrap();
    (layer, handle, clock)
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    method: &'static str,
    path: &'static str,
    key: Option<&'static str>,
    size: u64,
    is_internal: bool,
}

fn request(sent: Sent) -> Request<()> {
    let mut request = Request::builder()
        .method(sent.method)
        .uri(sent.path)
        .header("x-size", sent.size);
    if let Some(key) = sent.key {
        request = request.header("x-api-key", key);
    }
    if sent.is_internal {
        request = request.header("x-internal", "yes");
    }
    let mut request = request.body(()).unwrap();
    request
        .extensions_mut()
        .insert(PeerAddr(IpAddr::from([203, 0, 113, 9])));
    request
        .extensions_mut()
        .insert(MatchedRoute(sent.path.into()));
    request
}

async fn explain(handle: &Handle, sent: Sent) -> Explanation {
    handle.explain(&request(sent).into_parts().0).await.unwrap()
}

async fn send(layer: &ThrottleLayer<Memory>, sent: Sent) -> StatusCode {
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
    layer
        .layer(inner)
        .oneshot(request(sent))
        .await
        .unwrap()
        .status()
}

const POST: Sent = Sent {
    method: "POST",
    path: "/login",
    key: Some("ada"),
    size: 1,
    is_internal: false,
};

#[tokio::test]
async fn explanation_tells_what_applies_and_why_the_rest_does_not() {
    let (layer, handle, _clock) = live();
    assert_eq!(send(&layer, POST).await, StatusCode::OK);
    let explained = explain(&handle, Sent { size: 4, ..POST }).await;
    let text = "admitted\n\
                limit \"per-ip\" by \"client-ip\": admits: 2 of 3 left, costs 1, all left again \
                in 20s\n\
                limit \"own\" by \"api-key\": refuses: 3 of 4 left, costs 4, admits it in 60s, \
                all left again in 60s\n\
                limit \"pool\" by \"constant\": admits: 6 of 6 left, costs 4\n\
                limit \"login\" by \"api-key\": admits: 1 of 2 left, costs 1, all left again in \
                60s\n\
                limit \"per-user\" by \"api-key\": admits: 1 of 2 left, costs 1, all left again \
                in 30s\n\
                limit \"exports\" by \"constant\": does not apply: its path is not among \
                match.paths";
    assert_eq!(explained.to_string(), text);
    let refused = explain(
        &handle,
        Sent {
            key: None,
            is_internal: true,
            ..POST
        },
    )
    .await;
    let text = "refused\n\
                limit \"per-ip\" by \"client-ip\": admits: 2 of 3 left, costs 1, all left again \
                in 20s\n\
                limit \"own\" by \"api-key\": does not apply: it has no key, and on-missing \
                is \"skip\"\n\
                limit \"pool\" by \"constant\": admits: 6 of 6 left, costs 1\n\
                limit \"login\" by \"api-key\": refuses with 401 Unauthorized, because the \
                request has no key\n\
                limit \"per-user\" by \"api-key\": does not apply: when: \"internal\" holds\n\
                limit \"exports\" by \"constant\": does not apply: its path is not among \
                match.paths";
    assert_eq!(refused.to_string(), text);
    let other = explain(
        &handle,
        Sent {
            method: "GET",
            path: "/exports/1",
            key: Some("pro1"),
            ..POST
        },
    )
    .await;
    let [.., login, per_user, exports] = other.limits.as_slice() else {
        panic!("{other}")
    };
    assert_eq!(
        login.verdict,
        Verdict::Skips("its method is not among match.methods".to_owned())
    );
    assert_eq!(per_user.left.map(|left| (left.tier, left.of)), Some((1, 5)));
    assert_eq!(
        (
            exports.left.map(|left| (left.units, left.of)),
            other.is_admitted
        ),
        (Some((1, 1)), true)
    );
    let elsewhere = explain(
        &handle,
        Sent {
            path: "/logout",
            ..POST
        },
    )
    .await;
    assert_eq!(
        elsewhere.limits[3].verdict,
        Verdict::Skips("its route is not among match.routes".to_owned())
    );
    let mut without_route = request(POST).into_parts().0;
    without_route.extensions.remove::<MatchedRoute>();
    let verdict = handle
        .explain(&without_route)
        .await
        .unwrap()
        .limits
        .swap_remove(3)
        .verdict;
    assert_eq!(
        verdict,
        Verdict::Skips("it has no route, and match.routes needs one".to_owned())
    );
}

#[tokio::test]
async fn lookup_of_a_file_may_answer_with_parameters_of_the_identitys_own() {
    let file = "version = 1\n[[plans]]\nname = \"plan\"\nby = \"api-key\"\nlookup \
        = \"row-of\"\nunknown = \"free\"\n\
                tiers = { free = { gcra = { rate = \"60/hour\" } } }";
    let registry = registry().lookup("row-of", |key: String| async move {
        let count = key.parse().ok()?;
        Some(Tier::own(Gcra::new(Rate::per_hour(count))))
    });
    let rules =
        Rules::from_str("throttle.toml", file, registry).unwrap_or_else(|error| panic!("{error}"));
    let memory = || {
        MemoryBackend::builder()
            .clock(ManualClock::default())
            .build()
    };
    let (layer, handle) = rules.layer(memory()).unwrap();
    let of = |key| Sent {
        key: Some(key),
        ..POST
    };
    assert_eq!(send(&layer, of("5")).await, StatusCode::OK);
    let explained = explain(&handle, of("5")).await;
    let text = "admitted\nlimit \"plan\" by \"api-key\": admits: 4 of 5 left, costs 1, its own \
        parameters, all left again \
                in 720s";
    assert_eq!(explained.to_string(), text);
    let other = explain(&handle, of("7")).await;
    assert_eq!(
        other.limits[0].left.map(|left| (left.of, left.tier)),
        Some((7, throttle_core::Policy::OWN))
    );
    let zero = explain(&handle, of("0")).await;
    assert_eq!(
        zero.limits[0].left.map(|left| (left.of, left.tier)),
        Some((60, 0)),
        "an error is a failed lookup"
    );
}

#[tokio::test]
async fn explanation_names_the_budget_that_requests_without_a_key_share() {
    let file = "version = 1\n[[limit]]\nname = \"own\"\nby = \"api-key\"\nfixed-window = { rate \
        = \"1/minute\" }";
    let rules = Rules::from_str("f", file, registry()).unwrap();
    let clock = ManualClock::default();
    let (layer, handle) = rules
        .layer(MemoryBackend::builder().clock(clock).build())
        .unwrap();
    let keyless = Sent { key: None, ..POST };
    let own = "limit \"own\" by \"api-key\"";
    let unused = format!(
        "admitted\n{own}: admits: 1 of 1 left, costs 1, shared by all requests without a key"
    );
    assert_eq!(explain(&handle, keyless).await.to_string(), unused);
    assert_eq!(send(&layer, keyless).await, StatusCode::OK);
    let used = format!(
        "refused, admitted in 60s\n{own}: refuses: 0 of 1 left, costs 1, shared by all requests \
            without a key, \
         admits it in 60s, all left again in 60s"
    );
    assert_eq!(explain(&handle, keyless).await.to_string(), used);
    let keyed = format!("admitted\n{own}: admits: 1 of 1 left, costs 1");
    assert_eq!(
        explain(&handle, POST).await.to_string(),
        keyed,
        "a budget of its own"
    );
}

#[tokio::test]
async fn audited_limit_is_explained_by_what_it_would_do() {
    let file = "version = 1\n[[limit]]\nname = \"new\"\nby = \"constant\"\nmode = \"audit\"\n\
                fixed-window = { rate = \"1/minute\" }\n[[limit]]\nname = \"old\"\nby \
                = \"constant\"\n\
                fixed-window = { rate = \"2/minute\" }";
    let (layer, handle, _clock) = live_by(file);
    assert_eq!(send(&layer, POST).await, StatusCode::OK);
    let text = "admitted\n\
                limit \"new\" by \"constant\": would refuse, but is audited: 0 of 1 left, costs \
                1, admits it in 60s, all left \
                again in 60s\n\
                limit \"old\" by \"constant\": admits: 1 of 2 left, costs 1, all left again in 60s";
    assert_eq!(explain(&handle, POST).await.to_string(), text);
    let change = handle
        .replace(&file.replace("\"audit\"", "\"enforce\""))
        .unwrap();
    assert_eq!(
        change.to_string(),
        "revision 2\nlimit \"new\": mode was \"audit\", is \"enforce\""
    );
    assert_eq!(
        send(&layer, POST).await,
        StatusCode::TOO_MANY_REQUESTS,
        "what was charged stays charged"
    );
}

#[tokio::test]
async fn refusal_is_explained_with_when_it_ends() {
    let (layer, handle, clock) = live();
    assert_eq!(
        [send(&layer, POST).await, send(&layer, POST).await],
        [StatusCode::OK; 2]
    );
    let refused = explain(&handle, POST).await;
    assert!(
        refused
            .to_string()
            .starts_with("refused, admitted in 60s\n"),
        "{refused}"
    );
    assert_eq!(
        refused.limits[3].left.and_then(|left| left.retry_after),
        Some(Duration::from_secs(60)),
        "the log"
    );
    assert_eq!(
        refused.limits[4].left.and_then(|left| left.retry_after),
        Some(Duration::from_secs(30)),
        "the bucket"
    );
    assert_eq!(
        refused.limits[0].left.and_then(|left| left.retry_after),
        Some(Duration::ZERO),
        "one is left"
    );
    clock.advance(Duration::from_micros(59_999_999));
    assert_eq!(
        explain(&handle, POST).await.retry_after,
        Some(Duration::from_micros(1))
    );
    clock.advance(Duration::from_micros(1));
    let admitted = explain(&handle, POST).await;
    assert_eq!(
        (admitted.is_admitted, admitted.retry_after),
        (true, Some(Duration::ZERO))
    );
    let never = explain(&handle, Sent { size: 7, ..POST }).await;
    assert!(
        never.to_string().contains(
            "limit \"own\" by \"api-key\": refuses: 4 of 4 left, costs 7, never admits it"
        )
    );
    assert_eq!((never.is_admitted, never.retry_after), (false, None));
    let keyless = explain(&handle, Sent { key: None, ..POST }).await;
    assert_eq!((keyless.is_admitted, keyless.retry_after), (false, None));
}

#[tokio::test]
async fn limit_that_was_lowered_below_the_requests_in_flight_has_none_left() {
    let most = |most: u64| FILE.replace("most = 1", &format!("most = {most}"));
    let (layer, handle, _clock) = live();
    handle.replace(&most(3)).unwrap();
    let export = Sent {
        method: "GET",
        path: "/exports/1",
        key: Some("pro1"),
        ..POST
    };
    let inner = service_fn(async |_: Request<()>| {
        std::future::pending::<Result<Response<()>, Infallible>>().await
    });
    let mut served = [(); 3].map(|()| Box::pin(layer.layer(inner).oneshot(request(export))));
    for served in &mut served {
        assert!(
            served
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
    }
    let left = async || {
        let mut explained = explain(&handle, export).await;
        let exports = explained.limits.pop().unwrap();
        assert_eq!(
            explained.retry_after.is_none(),
            exports.verdict == Verdict::Refuses
        );
        (
            exports.verdict,
            exports
                .left
                .map(|left| (left.units, left.of, left.retry_after)),
        )
    };
    assert_eq!(left().await, (Verdict::Refuses, Some((0, 3, None))));
    handle.replace(&most(1)).unwrap();
    assert_eq!(
        left().await,
        (Verdict::Refuses, Some((0, 1, None))),
        "three of one are taken"
    );
    drop(served);
    assert_eq!(
        left().await,
        (Verdict::Admits, Some((1, 1, Some(Duration::ZERO))))
    );
}

#[tokio::test]
async fn key_that_is_reset_is_unused_and_no_other() {
    let (layer, handle, _clock) = live();
    let head = |sent: Sent| request(sent).into_parts().0;
    assert_eq!(
        [send(&layer, POST).await, send(&layer, POST).await],
        [StatusCode::OK; 2]
    );
    assert!(
        handle
            .reset(
                "login",
                &head(Sent {
                    key: Some("bob"),
                    ..POST
                })
            )
            .await
            .unwrap()
    );
    assert!(!explain(&handle, POST).await.is_admitted);
    assert!(handle.reset("login", &head(POST)).await.unwrap());
    let explained = explain(&handle, POST).await;
    assert_eq!(explained.limits[3].left.map(|left| left.units), Some(2));
    assert_eq!(
        explained.limits[4].left.map(|left| left.units),
        Some(0),
        "of that limit only"
    );
    assert!(
        !handle
            .reset(
                "login",
                &head(Sent {
                    method: "GET",
                    ..POST
                })
            )
            .await
            .unwrap(),
        "it does not apply"
    );
    assert!(
        !handle.reset("exports", &head(POST)).await.unwrap(),
        "permits come back by themselves"
    );
    assert!(!handle.reset("nothing", &head(POST)).await.unwrap());
}

#[tokio::test]
async fn explanation_tells_that_the_layer_does_not_apply_and_why() {
    let (layer, handle, _clock) = live();
    let text = FILE.replacen(
        "version = 1",
        "version = 1\nwhen = { not = \"internal\" }",
        1,
    );
    handle.replace(&text).unwrap();
    assert!(explain(&handle, POST).await.layer_skips.is_none());
    let internal = Sent {
        is_internal: true,
        key: None,
        ..POST
    };
    let explained = explain(&handle, internal).await;
    let text = "admitted: the layer does not apply: when: \"internal\" holds\n\
                limit \"per-ip\" by \"client-ip\": does not apply: the layer does not apply\n\
                limit \"own\" by \"api-key\": does not apply: the layer does not apply\n\
                limit \"pool\" by \"constant\": does not apply: the layer does not apply\n\
                limit \"login\" by \"api-key\": does not apply: the layer does not apply\n\
                limit \"per-user\" by \"api-key\": does not apply: the layer does not apply\n\
                limit \"exports\" by \"constant\": does not apply: the layer does not apply";
    assert_eq!(explained.to_string(), text);
    assert!(
        !handle
            .reset("per-ip", &request(internal).into_parts().0)
            .await
            .unwrap(),
        "nothing is reset for it"
    );
    for _ in 0..4 {
        assert_eq!(send(&layer, internal).await, StatusCode::OK);
    }
    assert_eq!(
        explain(&handle, POST).await.limits[0]
            .left
            .map(|left| left.units),
        Some(3),
        "nothing was charged"
    );
    let program = ThrottleLayer::builder(()).when(|_: &Parts| false);
    let (_layer, handle) = handle.rules().layer_with(program).unwrap();
    let explained = explain(&handle, POST).await;
    assert_eq!(
        explained.layer_skips.as_deref(),
        Some("the program's condition does not hold")
    );
    assert_eq!(
        (explained.is_admitted, explained.retry_after),
        (true, Some(Duration::ZERO))
    );
}

fn sent() -> impl Strategy<Value = Sent> {
    let method = prop::sample::select(vec!["GET", "POST"]);
    let path = prop::sample::select(vec!["/login", "/exports/1", "/other"]);
    let key = prop::option::of(prop::sample::select(vec!["ada", "bob", "pro1"]));
    (method, path, key, 0..8_u64, any::<bool>()).prop_map(
        |(method, path, key, size, is_internal)| Sent {
            method,
            path,
            key,
            size,
            is_internal,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn law_14_the_decision_that_follows_is_as_explained(
        steps in prop::collection::vec((sent(), 0..40_u64), 1..40), has_classes in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let classes = "by = \"constant\"\nclasses = \"by-path\"\nreserve = { high = 0, low = 3 }\n";
        let file = if has_classes { FILE.replace("by = \"constant\"\n", classes) } else { FILE.to_owned() };
        let (layer, handle, clock) = live_by(&file);
        for (sent, seconds) in steps {
            clock.advance(Duration::from_secs(seconds));
            let explained = runtime.block_on(explain(&handle, sent));
            prop_assert_eq!(&runtime.block_on(explain(&handle, sent)), &explained, "it changes \
                nothing");
            let status = runtime.block_on(send(&layer, sent));
            prop_assert_eq!(status == StatusCode::OK, explained.is_admitted, "{:?}: {}", sent, explained);
            if let Some(wait) = explained.retry_after.filter(|_| !explained.is_admitted) {
                clock.advance(wait);
                prop_assert!(runtime.block_on(explain(&handle, sent)).is_admitted, "{sent:?}: {explained}");
            }
        }
    }
}

#[tokio::test]
async fn class_of_a_request_and_its_reserve_are_explained() {
    let classes = "by = \"constant\"\nclasses = \"by-path\"\nreserve = { low = 3, high = 0 }";
    let file = format!(
        "version = 1\n[[limit]]\nname = \"all\"\nfixed-window = {{ rate = \"4/minute\" }}\ncost \
            = \"size\"\n{classes}\n\
         [[concurrency]]\nmost = 5\n{classes}"
    );
    let (layer, handle, _clock) = live_by(&file);
    let low = Sent {
        path: "/other",
        ..POST
    };
    assert_eq!(
        (send(&layer, low).await, send(&layer, low).await),
        (StatusCode::OK, StatusCode::TOO_MANY_REQUESTS)
    );
    let text = "refused, admitted in 60s\n\
                limit \"all\" by \"constant\": refuses: 0 of 4 left, costs 1, class \"low\", \
                which leaves 3 free, admits \
                it in 60s, all left again in 60s\n\
                limit \"in-flight\" by \"constant\": admits: 2 of 5 left, costs 1, class \"low\", \
                which leaves 3 free";
    assert_eq!(explain(&handle, low).await.to_string(), text);
    let never = explain(&handle, Sent { size: 2, ..low }).await.limits[0].to_string();
    assert!(
        never.contains("which leaves 3 free, never admits it"),
        "{never}"
    );
    let blocked = Exception {
        treatment: Treatment::Blocked,
        until: Timestamp::from_micros(i64::from(u32::MAX)),
    };
    assert!(
        handle
            .except("all", &request(low).into_parts().0, Some(blocked))
            .await
            .unwrap()
    );
    let unknown = explain(&handle, Sent { size: 2, ..low }).await.limits[0].to_string();
    assert!(
        unknown.contains("by an exception, not known when it admits it"),
        "{unknown}"
    );
    assert!(
        handle
            .except("all", &request(low).into_parts().0, None)
            .await
            .unwrap()
    );
    let high = explain(&handle, POST).await;
    assert_eq!(
        (high.is_admitted, high.limits[0].class.as_deref()),
        (true, Some("high"))
    );
    assert_eq!(
        high.limits[0].left.map(|left| (left.units, left.reserve)),
        Some((3, 0))
    );
}
