//! The rules in force over HTTP.

use std::convert::Infallible;

use axum::Router;
use axum::body::{Body, to_bytes};
use http::{Request, Response, StatusCode};
use serde_json::{Value, json};
use throttle_core::{ManualClock, MemoryBackend};
use tower::{Layer, ServiceExt, service_fn};

use super::requests::Fallible;
use crate::{Handle, Registry, Rules};
use throttle_tower::extract::{MatchedRoute, PeerAddr};
use throttle_tower::{Header, ThrottleLayer};

const FILE: &str = r#"version = 1
[[limit]]
name = "login"
by = ["client-ip", "header:x-tenant"]
sliding-log = { rate = "5/15m" }
match = { methods = ["POST"], routes = ["/login"] }
on-missing = { reject = 403 }
on-error = "closed"
"#;

fn memory() -> MemoryBackend<ManualClock> {
    MemoryBackend::builder()
        .clock(ManualClock::default())
        .build()
}

fn live() -> (ThrottleLayer<MemoryBackend<ManualClock>>, Handle) {
    Rules::from_str(
        "throttle.toml",
        FILE,
        Registry::new().key("own", Header::new("x")),
    )
    .unwrap()
    .layer(memory())
    .unwrap()
}

async fn answer(handle: &Handle, method: &str, uri: &str, body: &str) -> (StatusCode, Value) {
    let app: Router = Router::new().nest("/admin", handle.admin());
    let request = Request::builder()
        .method(method)
        .uri(uri)
        .body(Body::from(body.to_owned()))
        .unwrap();
    let response = app.oneshot(request).await.unwrap();
    let status = response.status();
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (
        status,
        serde_json::from_slice(&body)
            .unwrap_or_else(|_| String::from_utf8_lossy(&body).into_owned().into()),
    )
}

const LOGIN: &str = r#"{"method": "POST", "uri": "/login", "route": "/login", "peer": "203.0.113.9", "headers": {"X-Tenant": "acme"}}"#;

/// The description in a query.
fn about(name: &str) -> String {
    let escaped: String = LOGIN.bytes().map(|byte| format!("%{byte:02x}")).collect();
    format!("/admin/limits/{name}?request={escaped}")
}

#[tokio::test]
async fn rules_are_shown_with_the_text_in_force_and_the_last_failure() {
    let (_layer, handle) = live();
    handle.replace("version = 2\nlimit = []").unwrap_err();
    let (status, shown) = answer(&handle, "GET", "/admin/rules", "").await;
    assert_eq!(
        (status, &shown["file"], &shown["revision"]),
        (StatusCode::OK, &json!("throttle.toml"), &json!(1))
    );
    assert_eq!(
        (shown["text"].as_str(), shown["hash"].as_str().map(str::len)),
        (Some(FILE), Some(32))
    );
    assert!(
        shown["last_error"]
            .as_str()
            .unwrap()
            .starts_with("throttle.toml:1:11: version is 2"),
        "{shown}"
    );
    assert!(
        shown["failing_since"].as_u64() >= shown["loaded_at"].as_u64()
            && shown["loaded_at"].as_u64() > Some(1_700_000_000)
    );
    handle.replace(&FILE.replace("5/15m", "6/15m")).unwrap();
    let (_, shown) = answer(&handle, "GET", "/admin/rules", "").await;
    assert_eq!(
        [
            &shown["revision"],
            &shown["failing_since"],
            &shown["last_error"]
        ],
        [&json!(2), &Value::Null, &Value::Null]
    );
}

#[tokio::test]
async fn request_is_explained_and_its_key_reset() {
    let (_layer, handle) = live();
    let login = json!({"name": "login", "by": ["client-ip", "header:x-tenant"], "verdict": "admits", "cost": 1,
        "left": 5, "of": 5, "retry_after_ms": 0, "resets_in_ms": 0, "has_key": true, "tier": 0});
    let expected = json!({"admitted": true, "held": false, "retry_after_ms": 0, "limits": [login]});
    assert_eq!(
        answer(&handle, "POST", "/admin/explain", LOGIN).await,
        (StatusCode::OK, expected)
    );
    assert_eq!(
        answer(&handle, "GET", &about("login"), "").await,
        (StatusCode::OK, login)
    );
    assert_eq!(
        answer(&handle, "DELETE", &about("login"), "").await,
        (StatusCode::OK, json!({"reset": true}))
    );
    let (_, get) = answer(&handle, "POST", "/admin/explain", r#"{"uri": "/login"}"#).await;
    let why = "its method is not among match.methods";
    assert_eq!(
        (&get["limits"][0]["verdict"], &get["limits"][0]["why"]),
        (&json!("skips"), &json!(why))
    );
    let (_, keyless) = answer(
        &handle,
        "POST",
        "/admin/explain",
        &LOGIN.replace("X-Tenant", "x-other"),
    )
    .await;
    let why = "the request has no key, and on-missing answers 403";
    assert_eq!(
        (&keyless["admitted"], &keyless["limits"][0]["why"]),
        (&json!(false), &json!(why))
    );
}

#[tokio::test]
async fn each_of_several_limits_is_shown_and_reset_by_its_name() {
    let limit = |name: &str| {
        format!("[[limit]]\nname = \"{name}\"\nby = \"constant\"\ngcra = {{ rate = \"3/h\" }}\n")
    };
    let file = format!("version = 1\n{}{}", limit("first"), limit("second"));
    let (layer, handle) = Rules::from_str("f", &file, Registry::new())
        .unwrap()
        .layer(memory())
        .unwrap();
    let service = layer.layer(service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(()))
    }));
    service.oneshot(Request::new(())).await.unwrap();
    for (reset, left) in [("second", [2, 3]), ("first", [3, 3])] {
        let answered = answer(&handle, "DELETE", &about(reset), "").await;
        assert_eq!(
            answered,
            (StatusCode::OK, json!({"reset": true})),
            "{reset}"
        );
        for (name, left) in ["first", "second"].into_iter().zip(left) {
            let (status, shown) = answer(&handle, "GET", &about(name), "").await;
            assert_eq!(
                (status, &shown["name"], &shown["left"]),
                (StatusCode::OK, &json!(name), &json!(left))
            );
        }
    }
    assert_eq!(
        answer(&handle, "DELETE", &about("third"), "").await.0,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn what_cannot_be_read_is_answered_with_what_to_write() {
    let (_layer, handle) = live();
    for (body, expected) in [
        ("", "describe the request as in {\"method\""),
        (
            r#"{"uri": "/", "mehtod": "GET"}"#,
            "unknown field `mehtod`, expected one of",
        ),
        (
            r#"{"method": "G T", "uri": "/"}"#,
            "method is \"G T\": it must be a method of HTTP",
        ),
        (
            r#"{"uri": "no path"}"#,
            "uri is \"no path\": it must be a path",
        ),
        (r#"{"uri": "login"}"#, "uri is \"login\": it must be a path"),
        (
            r#"{"uri": "/", "headers": {"a b": "c"}}"#,
            "headers is \"a b\": it and its value",
        ),
        (
            r#"{"uri": "/", "headers": {"a": "\u0000"}}"#,
            "headers is \"a\": it and its value",
        ),
        (
            r#"{"uri": "/", "peer": "somewhere"}"#,
            "invalid IP address syntax",
        ),
    ] {
        let (status, answer) = answer(&handle, "POST", "/admin/explain", body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
        assert!(
            answer["error"].as_str().unwrap().contains(expected),
            "{answer}"
        );
    }
    for method in ["GET", "DELETE"] {
        let (status, answer) = answer(&handle, method, &about("%22%1b%5c"), "").await;
        assert_eq!(
            (status, &answer["error"]),
            (
                StatusCode::NOT_FOUND,
                &json!(r#"there is no limit "\"\u{1b}\\"; GET /rules shows which there are"#)
            )
        );
    }
    let long = format!("{{\"uri\": \"/{}\"}}", "a".repeat(65 * 1024));
    let (status, shown) = answer(&handle, "POST", "/admin/explain", &long).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(
        shown["error"]
            .as_str()
            .unwrap()
            .ends_with("in at most 64 KiB"),
        "{shown}"
    );
    for method in ["GET", "DELETE"] {
        let (status, shown) = answer(&handle, method, "/admin/limits/login", "").await;
        let error = shown["error"]
            .as_str()
            .unwrap_or_else(|| panic!("no JSON: {shown}"));
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(
            error.contains("missing field `request`: write ?request=…, and describe"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn name_that_is_no_text_is_answered_in_json() {
    let (_layer, handle) = live();
    for method in ["GET", "DELETE"] {
        let (status, shown) = answer(&handle, method, &about("%FF"), "").await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        let error = shown["error"]
            .as_str()
            .unwrap_or_else(|| panic!("no JSON: {shown}"));
        assert!(error.ends_with(": write a limit's name"), "{error}");
    }
}

#[tokio::test]
async fn key_is_shown_in_json_as_the_file_says_it() {
    for (by, expected) in [
        ("\"client-ip\"", json!("client-ip")),
        ("[\"client-ip\", \"route\"]", json!(["client-ip", "route"])),
        (
            "{ client-ip = { ipv4 = 24, ipv6 = 48 } }",
            json!({"client-ip": {"ipv4": 24, "ipv6": 48}}),
        ),
        (
            "{ first-of = [\"own\", [\"header:x\", \"method\"]] }",
            json!({"first-of": ["own", ["header:x", "method"]]}),
        ),
        (
            "{ header = \"x\", normalize = \"lowercase\" }",
            json!({"header": "x", "normalize": "lowercase"}),
        ),
    ] {
        let file = format!(
            "version = 1\n[[limit]]\nname = \"p\"\nby = {by}\ngcra = {{ rate = \"3/h\" }}\n"
        );
        let registry = Registry::new().key("own", Header::new("x"));
        let (_layer, handle) = Rules::from_str("f", &file, registry)
            .unwrap()
            .layer(memory())
            .unwrap();
        let (_, shown) = answer(&handle, "POST", "/admin/explain", r#"{"uri": "/"}"#).await;
        assert_eq!(shown["limits"][0]["by"], expected);
    }
    let file = "version = 1\n[[concurrency]]\nmost = 1";
    let (_layer, handle) = Rules::from_str("f", file, Registry::new())
        .unwrap()
        .layer(memory())
        .unwrap();
    let (_, shown) = answer(&handle, "POST", "/admin/explain", r#"{"uri": "/"}"#).await;
    assert_eq!(shown["limits"][0]["by"], json!("constant"));
}

#[tokio::test]
async fn request_that_waits_for_its_turn_is_shown_as_held() {
    let limit = |name, wait: &str| {
        let rate = "fixed-window = { rate = \"1/10s\" }";
        format!("[[limit]]\nname = \"{name}\"\nby = \"constant\"\n{rate}\n{wait}\n")
    };
    for (waits, expected) in [
        (
            ["wait-up-to = \"10s\"", "wait-up-to = \"1m\""],
            [json!(true), json!("holds"), json!("holds")],
        ),
        (
            ["wait-up-to = \"10s\"", ""],
            [json!(false), json!("holds"), json!("refuses")],
        ),
        (
            ["wait-up-to = \"9s\"", "wait-up-to = \"1m\""],
            [json!(false), json!("refuses"), json!("holds")],
        ),
    ] {
        let file = format!(
            "version = 1\n{}{}",
            limit("a", waits[0]),
            limit("b", waits[1])
        );
        let (layer, handle) = Rules::from_str("f", &file, Registry::new())
            .unwrap()
            .layer(memory())
            .unwrap();
        let service = layer.layer(service_fn(async |_: Request<()>| {
            Ok::<_, Infallible>(Response::new(()))
        }));
        service.oneshot(Request::new(())).await.unwrap();
        let (_, shown) = answer(&handle, "POST", "/admin/explain", r#"{"uri": "/"}"#).await;
        let verdict = |place: usize| shown["limits"][place]["verdict"].clone();
        assert_eq!(
            [shown["held"].clone(), verdict(0), verdict(1)],
            expected,
            "{shown}"
        );
        assert_eq!(
            (&shown["admitted"], &shown["retry_after_ms"]),
            (&json!(false), &json!(10_000))
        );
        let (head, ()) = Request::new(()).into_parts();
        let said = handle.explain(&head).await.unwrap().to_string();
        let start = if expected[0] == json!(true) {
            "held, admitted in 10s"
        } else {
            "refused, admitted in 10s"
        };
        assert!(said.starts_with(start), "{said}");
    }
}

#[tokio::test]
async fn store_that_fails_is_answered_as_such() {
    let rules = Rules::from_str("throttle.toml", FILE, Registry::new()).unwrap();
    let (_layer, handle) = rules
        .layer(Fallible {
            fails: true,
            ..Fallible::new(memory())
        })
        .unwrap();
    for (method, uri, body) in [
        ("POST", "/admin/explain".to_owned(), LOGIN),
        ("DELETE", about("login"), ""),
    ] {
        let (status, answer) = answer(&handle, method, &uri, body).await;
        assert_eq!(status, StatusCode::BAD_GATEWAY, "{answer}");
        let error = "the store did not answer: the rate-limit store could not be reached; ";
        assert!(
            answer["error"].as_str().unwrap().starts_with(error),
            "{answer}"
        );
    }
}

/// Waits are rounded up, so that who waits for so many milliseconds does not come too early.
#[tokio::test]
async fn explanation_of_a_refusal_has_its_numbers_in_whole_milliseconds() {
    let file = "version = 1\nwhen = \"open\"\n[[limit]]\nname = \"thirds\"\nby \
        = \"header:x-tenant\"\ncost = 2\n\
                gcra = { rate = \"3/s\", burst = 2 }\n[[limit]]\nname = \"never\"\nby \
                = \"constant\"\ncost = \"five\"\n\
                gcra = { rate = \"1/s\", burst = 4 }";
    let registry = Registry::new()
        .cost(
            "five",
            |parts: &http::request::Parts| if parts.method == "PUT" { 5 } else { 1 },
        )
        .condition("open", |parts: &http::request::Parts| {
            parts.uri.path() != "/closed"
        });
    let rules = Rules::from_str("f", file, registry).unwrap();
    let (layer, handle) = rules.layer(memory()).unwrap();
    let service = layer.layer(service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(()))
    }));
    service.oneshot(Request::new(())).await.unwrap();
    let (_, shown) = answer(&handle, "POST", "/admin/explain", r#"{"uri": "/"}"#).await;
    let limit = |name, numbers: [Value; 5]| {
        let [cost, left, of, retry_after_ms, resets_in_ms] = numbers;
        json!({"name": name, "by": if name == "never" { "constant" } else { "header:x-tenant" },
            "verdict": if left.as_u64() < cost.as_u64() { "refuses" } else { "admits" }, "cost": cost, "left": left, "of": of,
            "retry_after_ms": retry_after_ms, "resets_in_ms": resets_in_ms, "has_key": name == "never", "tier": 0})
    };
    let thirds = limit(
        "thirds",
        [json!(2), json!(0), json!(2), json!(667), json!(667)],
    );
    let never = limit(
        "never",
        [json!(1), json!(3), json!(4), json!(0), json!(1_000)],
    );
    assert_eq!(
        shown,
        json!({"admitted": false, "held": false, "retry_after_ms": 667, "limits": [thirds, never]})
    );
    let (_, shown) = answer(
        &handle,
        "POST",
        "/admin/explain",
        r#"{"uri": "/", "method": "PUT"}"#,
    )
    .await;
    let never = limit(
        "never",
        [json!(5), json!(3), json!(4), Value::Null, json!(1_000)],
    );
    assert_eq!(
        (&shown["retry_after_ms"], &shown["limits"][1]),
        (&Value::Null, &never)
    );
    let (_, shown) = answer(&handle, "POST", "/admin/explain", r#"{"uri": "/closed"}"#).await;
    assert_eq!(
        (&shown["admitted"], &shown["layer_skips"]),
        (&json!(true), &json!("when: \"open\" does not hold"))
    );
}

#[tokio::test]
async fn explanation_has_the_class_and_its_reserve_where_there_are_classes() {
    let limit = |name, rest| {
        format!(
            "[[limit]]\nname = \"{name}\"\nby = \"constant\"\ngcra = {{ rate = \"5/s\" }}\n{rest}\n"
        )
    };
    let classes = limit("classes", "classes = \"all-low\"\nreserve = { low = 2 }");
    let file = format!("version = 1\n{classes}{}", limit("plain", ""));
    let registry = Registry::new().classes("all-low", |_: &http::request::Parts| "low");
    let (_layer, handle) = Rules::from_str("f", &file, registry)
        .unwrap()
        .layer(memory())
        .unwrap();
    let (_, shown) = answer(&handle, "POST", "/admin/explain", LOGIN).await;
    let fields = ["class", "reserve", "left", "of"];
    assert_eq!(
        fields.map(|field| &shown["limits"][0][field]),
        [&json!("low"), &json!(2), &json!(3), &json!(5)]
    );
    assert_eq!(
        fields.map(|field| &shown["limits"][1][field]),
        [&Value::Null, &Value::Null, &json!(5), &json!(5)]
    );
}

/// The name of a limit as a key of it is spoken of, with the description of a request or without.
fn keys(name: &str) -> [String; 2] {
    let about = about(name).replace("/limits/", "/keys/");
    [about.split('?').next().unwrap().to_owned(), about]
}

#[tokio::test]
async fn key_is_treated_otherwise_until_an_instant_listed_and_lifted() {
    let clock = ManualClock::default();
    let store = MemoryBackend::builder().clock(clock.clone()).build();
    let (_layer, handle) = Rules::from_str("throttle.toml", FILE, Registry::new())
        .unwrap()
        .layer(store)
        .unwrap();
    let [bare, about_key] = keys("login");
    let left = async || {
        let shown = answer(&handle, "GET", &about("login"), "").await.1;
        (
            shown["left"].as_u64().unwrap(),
            shown["excepted"] == json!(true),
        )
    };
    for (treatment, shown, during) in [
        (r#""exempt""#, json!("exempt"), 5),
        (r#""blocked""#, json!("blocked"), 0),
        (
            r#""limit", "limit": "sliding-log = { rate = \"50/15m\" }""#,
            json!({"algorithm": "sliding_log", "count": 50, "period_us": 900_000_000, "capacity": 50}),
            50,
        ),
    ] {
        let body = format!(r#"{{"request": {LOGIN}, "treatment": {treatment}, "until": 60}}"#);
        assert_eq!(
            answer(&handle, "PUT", &bare, &body).await,
            (StatusCode::OK, json!({"set": true}))
        );
        assert_eq!(left().await, (during, true), "{treatment}");
        let (_, listed) = answer(&handle, "GET", &bare, "").await;
        let [key] = listed["keys"].as_array().unwrap().as_slice() else {
            panic!("one key: {listed}")
        };
        assert_eq!(
            (&key["treatment"], &key["until"], key["key"].is_string()),
            (&shown, &json!(60), true)
        );
    }
    assert_eq!(
        answer(&handle, "DELETE", &about_key, "").await,
        (StatusCode::OK, json!({"lifted": true}))
    );
    assert_eq!(
        (left().await, answer(&handle, "GET", &bare, "").await.1),
        ((5, false), json!({"keys": []}))
    );
    let body = format!(r#"{{"request": {LOGIN}, "treatment": "blocked", "for": "1h"}}"#);
    assert_eq!(
        answer(&handle, "PUT", &bare, &body).await.1,
        json!({"set": true})
    );
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let over = throttle_core::Timestamp::EPOCH + now + std::time::Duration::from_secs(3_600);
    assert_eq!(left().await, (0, true));
    clock.set(over);
    assert_eq!(left().await, (5, false));
}

#[tokio::test]
async fn drained_key_has_nothing_left_and_its_exception_is_lifted() {
    let (_layer, handle) = live();
    let [bare, _] = keys("login");
    for treatment in [r#""exempt", "for": "1h""#, r#""drained""#, r#""drained""#] {
        let body = format!(r#"{{"request": {LOGIN}, "treatment": {treatment}}}"#);
        assert_eq!(
            answer(&handle, "PUT", &bare, &body).await,
            (StatusCode::OK, json!({"set": true}))
        );
    }
    let shown = answer(&handle, "GET", &about("login"), "").await.1;
    assert_eq!(
        (&shown["left"], &shown["excepted"], &shown["verdict"]),
        (&json!(0), &Value::Null, &json!("refuses"))
    );
    assert_eq!(
        answer(&handle, "GET", &bare, "").await.1,
        json!({"keys": []})
    );
    let body = r#"{"request": {"uri": "/"}, "treatment": "drained"}"#;
    let (status, answered) = answer(&handle, "PUT", &bare, body).await;
    assert_eq!((status, &answered["set"]), (StatusCode::OK, &json!(false)));
    assert!(
        answered["why"]
            .as_str()
            .unwrap()
            .contains("does not apply to this request"),
        "{answered}"
    );
}

#[tokio::test]
async fn banned_key_is_listed_with_its_strikes_and_pardoned() {
    let file = format!("{FILE}ban = {{ after = 2 }}\nstrike-if = [401]\n");
    let rules = Rules::from_str("throttle.toml", &file, Registry::new()).unwrap();
    let (layer, handle) = rules.layer(memory()).unwrap();
    let wrong = service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::builder().status(401).body(Body::empty()).unwrap())
    });
    let [bare, about_key] = keys("login");
    let mut shown = Vec::new();
    for _ in 0..2 {
        let request = Request::post("/login")
            .header("x-tenant", "acme")
            .extension(MatchedRoute("/login".into()));
        let request = request
            .extension(PeerAddr([203, 0, 113, 9].into()))
            .body(())
            .unwrap();
        assert_eq!(
            layer.layer(wrong).oneshot(request).await.unwrap().status(),
            401
        );
        shown.push(answer(&handle, "GET", &bare, "").await.1["keys"][0]["treatment"].clone());
    }
    assert_eq!(
        shown[0],
        json!({"banned_until": 0, "bans": 0, "strikes": 1})
    );
    assert_eq!(
        shown[1],
        json!({"banned_until": 600, "bans": 1, "strikes": 0})
    );
    assert_eq!(
        answer(&handle, "GET", &about("login"), "").await.1["left"],
        json!(0)
    );
    assert_eq!(
        answer(&handle, "DELETE", &about_key, "").await.1,
        json!({"lifted": true})
    );
    assert_eq!(
        answer(&handle, "GET", &about("login"), "").await.1["left"],
        json!(3)
    );
}

#[tokio::test]
async fn treatment_that_cannot_be_is_answered_with_what_to_write() {
    let (_layer, handle) = live();
    let [bare, _] = keys("login");
    for (fields, expected) in [
        (r#""until": 60"#, "missing field `treatment`"),
        (
            r#""treatment": "exempt", "unitl": 60"#,
            "unknown field `unitl`",
        ),
        (
            r#""treatment": "free", "until": 60"#,
            "treatment is \"free\", without a limit: write exempt",
        ),
        (
            r#""treatment": "limit", "until": 60"#,
            "treatment is \"limit\", without a limit",
        ),
        (
            r#""treatment": "exempt", "limit": "", "until": 60"#,
            "treatment is \"exempt\", with a limit",
        ),
        (
            r#""treatment": "exempt""#,
            "until is missing, and so is for",
        ),
        (
            r#""treatment": "drained", "for": "1h""#,
            "treatment is \"drained\", without a limit: write exempt",
        ),
        (
            r#""treatment": "exempt", "until": 60, "for": "1h""#,
            "until is there, and so is for",
        ),
        (
            r#""treatment": "exempt", "for": "soon""#,
            "for is \"soon\": it must be a duration",
        ),
        (
            r#""treatment": "exempt", "until": 0"#,
            "until is 0.000000: it must be after the present time",
        ),
        (
            r#""treatment": "limit", "limit": "gcra = { rate = \"1/s\", brust = 2 }", "until": 60"#,
            "did you mean \"burst\"?",
        ),
        (
            r#""treatment": "limit", "limit": "gcra = { rate = \"1/s\" }", "until": 60"#,
            "at most 100 times as long",
        ),
        (
            r#""treatment": "limit", "limit": "gcra = { rate = \"1/m\" }\ncost = 5", "until": 60"#,
            "write one algorithm and nothing else",
        ),
    ] {
        let body = format!(r#"{{"request": {LOGIN}, {fields}}}"#);
        let (status, shown) = answer(&handle, "PUT", &bare, &body).await;
        assert!(
            shown["error"]
                .as_str()
                .is_some_and(|error| error.contains(expected)),
            "{fields}: {shown}"
        );
        assert_eq!(status, StatusCode::BAD_REQUEST, "{shown}");
    }
    let [bare, about_key] = keys("logni");
    for (method, uri) in [("GET", &bare), ("DELETE", &about_key)] {
        assert_eq!(
            answer(&handle, method, uri, "").await.0,
            StatusCode::NOT_FOUND
        );
    }
}

#[tokio::test]
async fn treatment_of_more_than_64_kib_is_answered_with_what_to_write() {
    let (_layer, handle) = live();
    let body = format!(
        r#"{{"request": {LOGIN}, "treatment": "exempt", "until": 60}}{}"#,
        " ".repeat(64 * 1024)
    );
    let (status, shown) = answer(&handle, "PUT", &keys("login")[0], &body).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(
        shown["error"]
            .as_str()
            .is_some_and(|error| error.contains("in at most 64 KiB")),
        "{shown}"
    );
}
