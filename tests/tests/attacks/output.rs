//! Attacks on what responses and logs show: caches, injected headers, leaks, logs and labels.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::support::{Site, Store, builder, field, from, list, ok, send, text, three, three_by};
use axum::Router;
use axum::routing::any;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, SET_COOKIE, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode};
use throttle_core::backend::{Answer, Call, ExceptedKey, KeyStep, Receipt};
use throttle_core::{Backend, MemorySet, PolicySet};
use throttle_tower::client_ip::{ClientIp, TrustedProxies};
use throttle_tower::extract::Extension;
use throttle_tower::{
    ConfigError, Header, Key, KeyExtractor, LimitReport, OnMissing, Rate, ThrottleLayer, all,
    headers, limit,
};

#[tokio::test]
async fn attack_52_refusals_are_not_stored() {
    let site = Site::new(three_by(ClientIp::peer()));
    site.admitted((0..3).map(|_| from("203.0.113.9"))).await;
    let refused = site.send(from("203.0.113.9")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(field(&refused, "cache-control"), Some("no-store"));

    let keyed = limit("keyed", three())
        .by(Header::new("x-api-key"))
        .on_missing(OnMissing::Reject(StatusCode::FORBIDDEN));
    assert_eq!(
        field(
            &Site::new(keyed).send(from("203.0.113.9")).await,
            "cache-control"
        ),
        Some("no-store")
    );

    // A custom refusal without `Cache-Control` gets the same header; one that sets it keeps its
    // own.
    for (own, expected) in [
        (None, "no-store"),
        (Some("private, max-age=1"), "private, max-age=1"),
    ] {
        let never = limit("never", three())
            .by(ClientIp::peer())
            .cost(|_: &Parts| 4);
        let site = Site::built(never, |builder| {
            let builder = builder.response(move |refusal| {
                let mut response = Response::new(Bytes::from_static(b"slow down"));
                *response.status_mut() = refusal.status;
                if let Some(own) = own {
                    response
                        .headers_mut()
                        .insert(CACHE_CONTROL, HeaderValue::from_static(own));
                }
                response
            });
            Router::new()
                .route("/", any(ok))
                .layer(builder.build().unwrap())
        });
        assert_eq!(
            field(&site.send(from("203.0.113.9")).await, "cache-control"),
            Some(expected)
        );
    }
    // Admitted responses keep their own.
    assert_eq!(
        field(&site.send(from("203.0.113.10")).await, "cache-control"),
        None
    );
}

#[tokio::test]
async fn attack_52_what_is_cached_for_all_says_nothing_of_one() {
    for (cache_control, public) in [
        ("public, max-age=60", true),
        ("max-age=60, s-maxage=600", true),
        ("PUBLIC", true),
        ("private, max-age=60", false),
        ("no-store", false),
        ("max-age=60", false),
    ] {
        let cached = move || async move { ([(CACHE_CONTROL, cache_control)], "ok") };
        let site = |hide: bool| {
            Site::built(three_by(ClientIp::peer()), |builder| {
                let builder =
                    builder.hide_headers_if(move |_, fields| hide && headers::is_public(fields));
                Router::new()
                    .route("/", any(cached))
                    .layer(builder.build().unwrap())
            })
        };
        let shown = async |site: &Site| {
            let response = site.send(from("203.0.113.9")).await;
            assert_eq!(response.status(), StatusCode::OK);
            ["ratelimit", "ratelimit-policy"].map(|name| field(&response, name).is_some())
        };
        let hiding = site(true);
        assert_eq!(shown(&hiding).await, [!public; 2], "{cache_control}");
        assert_eq!(shown(&site(false)).await, [true; 2], "{cache_control}");
        // The budget is still spent, and the refusal, which is not stored, carries the headers.
        assert_eq!(
            hiding.admitted((0..2).map(|_| from("203.0.113.9"))).await,
            2
        );
        let refused = hiding.send(from("203.0.113.9")).await;
        assert_eq!(list(&refused, "ratelimit").len(), 1);
        assert!(refused.headers().contains_key("retry-after"));
    }
}

async fn assert_quoted(name: &str, unit: &str) {
    let policy = || limit(name, three()).by(ClientIp::peer()).unit(unit);
    let (name_is_sound, unit_is_sound) = (sound(name), sound(unit));
    let layer = ThrottleLayer::new(policy());
    assert_eq!(
        layer.is_ok(),
        name_is_sound && unit_is_sound,
        "{name:?} {unit:?}"
    );
    let Err(error) = layer else {
        let site = Site::new(policy());
        for n in 0..4 {
            let response = site.send(from("203.0.113.9")).await;
            let members = [
                list(&response, "ratelimit"),
                list(&response, "ratelimit-policy"),
            ];
            for member in &members {
                assert_eq!(member.len(), 1);
                assert_eq!(member[0].0, name);
            }
            let integers = |member: &[(String, i64)]| {
                member.iter().map(|(_, value)| *value).collect::<Vec<_>>()
            };
            assert_eq!(integers(&members[1][0].1), [3, 60]);
            assert_eq!(integers(&members[0][0].1)[0], (2 - n).max(0));
            if n == 3 {
                let problem: serde_json::Value =
                    serde_json::from_str(&text(response).await).unwrap();
                assert_eq!(problem["violated-policies"], serde_json::json!([name]));
            }
        }
        return;
    };
    for shown in [error.to_string(), format!("{error:?}")] {
        assert!(shown.chars().all(|c| !c.is_control()), "{shown:?}");
    }
}

fn sound(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| (0x20..=0x7e).contains(&byte))
}

#[tokio::test]
async fn attack_53_hostile_names_are_refused_or_quoted() {
    let names = [
        "a\"b",
        "a\\b",
        "\\\"",
        "a\", \"b\";q=1",
        "a;q=99",
        "a, b",
        " ",
        "café",
        "\u{1f4a5}",
        "a\r\nset-cookie: x=y",
        "a\nb",
        "a\0b",
        "\u{7f}",
        "\t",
        "",
        "</script>",
    ];
    for name in names {
        assert_quoted(name, "content-bytes").await;
        assert_quoted("policy", name).await;
    }
    assert_quoted(&"n".repeat(64), "u").await;
    assert_quoted(&"n".repeat(65), "u").await;

    // The name adds no other member to the header.
    let site = Site::new(limit("a\", \"b\";q=1", three()).by(ClientIp::peer()));
    let response = site.send(from("203.0.113.9")).await;
    assert_eq!(
        field(&response, "ratelimit-policy"),
        Some(r#""a\", \"b\";q=1";q=3;w=60"#)
    );
    assert!(!response.headers().contains_key(SET_COOKIE));
}

/// A login page that knows `ada`, and limits her by name and unknown users by address.
fn login(hide: bool) -> Site {
    let by_name = Header::new("x-user")
        .accept(|name| name == b"ada")
        .or(ClientIp::peer());
    let limits = all([
        limit("login", three().burst(50)).by(by_name),
        limit("site", three().burst(90)).by(ClientIp::peer()),
    ]);
    let denied = async || {
        (
            StatusCode::UNAUTHORIZED,
            [(WWW_AUTHENTICATE, "Basic")],
            "wrong name or password",
        )
    };
    Site::built(limits, |builder| {
        let builder =
            builder.hide_headers_if(move |status, _| hide && status == StatusCode::UNAUTHORIZED);
        Router::new()
            .route("/", any(denied))
            .layer(builder.build().unwrap())
    })
}

async fn attempt(
    site: &Site,
    peer: &str,
    user: &str,
) -> (StatusCode, Vec<(String, String)>, String) {
    let response = site.send(from(peer).header("x-user", user)).await;
    let fields = response.headers().iter();
    let fields = fields
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect();
    (response.status(), fields, text(response).await)
}

#[tokio::test]
async fn attack_54_a_known_user_looks_like_an_unknown_one() {
    let site = login(true);
    // The victim sends requests from an address of her own.
    for _ in 0..10 {
        attempt(&site, "203.0.113.9", "ada").await;
    }
    let known = attempt(&site, "198.51.100.7", "ada").await;
    let unknown = attempt(&site, "198.51.100.8", "eve").await;
    assert_eq!(known, unknown);
    assert_eq!(known.0, StatusCode::UNAUTHORIZED);

    // With the headers, any client that knows her name could read her traffic.
    let telling = login(false);
    for _ in 0..10 {
        attempt(&telling, "203.0.113.9", "ada").await;
    }
    assert_ne!(
        attempt(&telling, "198.51.100.7", "ada").await,
        attempt(&telling, "198.51.100.8", "eve").await
    );
}

/// A store that records how many keys each question is about.
#[derive(Clone)]
struct Questions {
    store: Store,
    asked: Arc<Mutex<Vec<usize>>>,
}

impl Backend for Questions {
    type Prepared = MemorySet;
    type Decide = <Store as Backend>::Decide;
    type Done = <Store as Backend>::Done;

    fn can_fail(&self) -> bool {
        false
    }

    fn prepare(&self, set: PolicySet) -> Result<MemorySet, ConfigError> {
        self.store.prepare(set)
    }

    fn set(prepared: &MemorySet) -> &PolicySet {
        Store::set(prepared)
    }

    fn decide(&self, prepared: &Arc<MemorySet>, calls: &[Call]) -> Self::Decide {
        self.asked
            .lock()
            .unwrap()
            .push(calls.iter().filter(|call| call.key().is_some()).count());
        self.store.decide(prepared, calls)
    }

    fn settle(&self, prepared: &Arc<MemorySet>, receipt: Receipt) -> Self::Done {
        self.asked.lock().unwrap().push(0);
        self.store.settle(prepared, receipt)
    }

    fn run(
        &self,
        prepared: &Arc<MemorySet>,
        policy: usize,
        step: KeyStep,
    ) -> Answer<Vec<ExceptedKey>> {
        self.store.run(prepared, policy, step)
    }

    fn reset_all(&self, prefix: &str) -> Self::Done {
        self.store.reset_all(prefix)
    }
}

/// Timing reveals no more than the response: a known and an unknown name cause the same questions
/// to the store.
#[tokio::test]
async fn attack_54_a_known_user_takes_the_same_questions_as_an_unknown_one() {
    let (asked, looked_up): (Arc<Mutex<Vec<usize>>>, Arc<AtomicUsize>) = Default::default();
    let lookups = Arc::clone(&looked_up);
    let is_known = move |name: &[u8]| {
        lookups.fetch_add(1, Ordering::Relaxed);
        name == b"ada"
    };
    let by_name = Header::new("x-user").accept(is_known).or(ClientIp::peer());
    let limits = all([
        limit("login", three()).by(by_name),
        limit("site", three().burst(90)).by(ClientIp::peer()),
    ]);
    let (builder, _, store) = builder(limits);
    let layer = builder
        .backend(Questions {
            store,
            asked: Arc::clone(&asked),
        })
        .build()
        .unwrap();
    let app = Router::new().route("/", any(ok)).layer(layer);

    let work = async |peer: &str, user: &str| {
        let status = send(&app, from(peer).header("x-user", user)).await.status();
        (
            status,
            std::mem::take(&mut *asked.lock().unwrap()),
            looked_up.swap(0, Ordering::Relaxed),
        )
    };
    // Admitted, and then refused: each with one question about two keys, after one lookup.
    for expected in [
        StatusCode::OK,
        StatusCode::OK,
        StatusCode::OK,
        StatusCode::TOO_MANY_REQUESTS,
    ] {
        let known = work("198.51.100.7", "ada").await;
        assert_eq!(known, (expected, vec![2], 1));
        assert_eq!(work("198.51.100.8", "eve").await, known);
    }
}

#[tokio::test]
async fn attack_54_no_key_and_no_exemption_is_ever_shown() {
    let secret = "s3cret-token";
    let by = || (Header::new("x-api-key"), ClientIp::peer());
    for exempt in [false, true] {
        let site = Site::new(three_by(by()).when(move |_| !exempt));
        for _ in 0..5 {
            let response = site
                .send(from("203.0.113.9").header("x-api-key", secret))
                .await;
            let names: Vec<_> = response
                .headers()
                .keys()
                .map(|name| name.as_str().to_owned())
                .collect();
            assert!(
                names
                    .iter()
                    .all(|name| !name.starts_with("x-") && !name.contains("white")),
                "{names:?}"
            );
            if exempt {
                assert!(
                    names.iter().all(|name| !name.contains("ratelimit")),
                    "{names:?}"
                );
            }
            let all = format!("{:?}", response.headers()) + &text(response).await;
            for part in [secret, "203.0.113", "x-api-key"] {
                assert!(!all.contains(part), "{all}");
            }
        }
    }
}

const HOSTILE: &str = "\u{1b}[31m\r\nINFO ok";

/// Every text that a program may log passes through here.
fn assert_harmless(shown: &str) {
    assert!(!shown.contains("INFO ok"), "{shown:?}");
    assert!(shown.chars().all(|c| !c.is_control()), "{shown:?}");
}

#[tokio::test]
async fn attack_55_hostile_keys_appear_nowhere_raw() {
    assert_harmless(&format!("{:?}", Key::from(HOSTILE)));
    assert_harmless(&format!(
        "{:?}",
        Key::builder()
            .bytes(HOSTILE.as_bytes())
            .text(&HOSTILE.repeat(99))
            .finish()
    ));

    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let (hook, refusals) = (Arc::clone(&seen), Arc::clone(&seen));
    let by = Extension::by(|key: &String| key.clone());
    let keyed = three_by(by).on_missing(OnMissing::Reject(StatusCode::FORBIDDEN));
    assert_harmless(&format!("{keyed:?}"));
    let site = Site::built(keyed, |builder| {
        assert_harmless(&format!("{builder:?}"));
        let layer = builder
            .on_decision(move |event| hook.lock().unwrap().push(format!("{event:?}")))
            .response(move |refusal| {
                refusals.lock().unwrap().push(format!("{refusal:?}"));
                refusal.default_response()
            })
            .build()
            .unwrap();
        assert_harmless(&format!("{layer:?}"));
        Router::new().route("/", any(ok)).layer(layer)
    });
    for n in 0..6 {
        // The last request has no key.
        let request = if n < 5 {
            from("203.0.113.9").extension(HOSTILE.to_owned())
        } else {
            from("203.0.113.9")
        };
        // The value of a header cannot harm a terminal, but it is secret.
        let response = site
            .send(request.header("authorization", "Bearer INFO ok"))
            .await;
        if let Some(report) = response.extensions().get::<LimitReport>() {
            assert_harmless(&format!("{report:?}"));
        }
        assert_harmless(&format!("{:?}", response.headers()));
        assert_harmless(&text(response).await);
    }
    assert_harmless(&format!("{:?}", site.store));
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 6 + 3);
    seen.iter().for_each(|shown| assert_harmless(shown));
}

#[test]
fn attack_55_hostile_settings_are_escaped_in_errors() {
    fn shown(error: &(impl std::error::Error + 'static)) -> [String; 2] {
        [error.to_string(), format!("{error:?}")]
    }
    let by = ClientIp::peer;
    let errors = [
        shown(&ThrottleLayer::new(limit(HOSTILE, three()).by(by())).unwrap_err()),
        shown(&ThrottleLayer::new(limit(HOSTILE, three().burst(0)).by(by())).unwrap_err()),
        shown(&ThrottleLayer::new(limit("p", three()).by(Header::new(HOSTILE))).unwrap_err()),
        shown(&ThrottleLayer::new(limit("p", three()).by(by()).unit(HOSTILE)).unwrap_err()),
        shown(&HOSTILE.parse::<Rate>().unwrap_err()),
        shown(&format!("1/{HOSTILE}").parse::<Rate>().unwrap_err()),
        shown(&TrustedProxies::new([HOSTILE]).unwrap_err()),
        shown(&ClientIp::header(HOSTILE, TrustedProxies::new(["10.0.0.1"]).unwrap()).unwrap_err()),
    ];
    for error in errors.iter().flatten() {
        assert!(error.chars().all(|c| !c.is_control()), "{error:?}");
    }
}
