//! Attacks on the client's identity: made-up keys, keys that collide or split. What a spoofed
//! address does is tested with the code that reads it, in `throttle_tower::client_ip`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{
    Dice, PROXY, Site, field, from, layer, list, ok, parameter, send, three, three_by,
};
use axum::Router;
use axum::routing::any;
use http::request::{Builder, Parts};
use http::{Request, StatusCode};
use proptest::prelude::*;
use throttle_tower::client_ip::{ClientIp, IpPrefix, TrustedProxies};
use throttle_tower::extract::{Extension, from_fn};
use throttle_tower::limit::IntoLimitTree;
use throttle_tower::{
    ConfigError, Gcra, Header, InFlight, KeyExtractor, OnMissing, Rate, ThrottleLayer, all, limit,
};

const XFF: &str = "x-forwarded-for";

fn proxy() -> TrustedProxies {
    TrustedProxies::new([PROXY]).unwrap()
}

/// A site behind the proxy, which appends to `X-Forwarded-For`.
fn behind_proxy() -> Site {
    Site::new(three_by(ClientIp::x_forwarded_for(proxy())))
}

fn forwarded_for(list: &str) -> Builder {
    from(PROXY).header(XFF, list)
}

const OTHER_HEADERS: [&str; 8] = [
    "forwarded",
    "x-real-ip",
    "true-client-ip",
    "cf-connecting-ip",
    "x-client-ip",
    "fly-client-ip",
    "x-cluster-client-ip",
    "x-original-forwarded-for",
];

#[tokio::test]
async fn attack_11_rotating_ipv6_addresses_and_networks_is_limited() {
    let by_net = ClientIp::peer().by_prefix(IpPrefix::new(24, 48).unwrap());
    let per_net = || limit("per-net", Gcra::new(Rate::per_minute(30))).by(by_net.clone());
    let tiers = || all([three_by(ClientIp::peer()), per_net()]);

    let (site, mut dice) = (Site::new(tiers()), Dice::new(11));
    let within_64 = (0..1000).map(|_| from(&format!("2001:db8:1:2:{}", groups(dice.roll()))));
    assert_eq!(site.admitted(within_64).await, 3);
    assert_eq!(site.store.keys(), 2);

    let site = Site::new(tiers());
    let within_48 = (0..1000).map(|n: u16| from(&format!("2001:db8:1:{n:x}::1")));
    assert_eq!(site.admitted(within_48).await, 30);
    assert_eq!(site.status(from("2001:db8:2::1")).await, StatusCode::OK);
}

fn groups(bits: u64) -> String {
    format!(
        "{:x}:{:x}:{:x}:{:x}",
        bits >> 48,
        bits >> 32 & 0xffff,
        bits >> 16 & 0xffff,
        bits & 0xffff
    )
}

#[tokio::test]
async fn attack_14_no_client_spends_the_budget_of_another() {
    let victim = "203.0.113.9";
    let names = OTHER_HEADERS.iter().chain(&[XFF, "x_forwarded_for"]);
    let spoofs = |request: fn() -> Builder| {
        let lists = [
            format!("for={victim}"),
            victim.to_owned(),
            format!("{victim}, {victim}"),
        ];
        let alone = names
            .clone()
            .flat_map(move |name| lists.clone().map(|list| request().header(*name, list)));
        alone.collect::<Vec<_>>()
    };
    // The attacker connects directly, through the proxy, and with a second line.
    let site = behind_proxy();
    site.admitted(spoofs(|| from("198.51.100.7"))).await;
    site.admitted(
        spoofs(|| forwarded_for("198.51.100.7"))
            .into_iter()
            .filter(|request| {
                let lines = request.headers_ref().unwrap().get_all(XFF);
                // The proxy appends the address that it saw.
                lines.iter().count() == 1
            }),
    )
    .await;
    site.admitted((0..10).map(|_| from(PROXY).header(XFF, victim).header(XFF, "198.51.100.7")))
        .await;
    assert_eq!(
        site.admitted((0..10).map(|_| forwarded_for(victim))).await,
        3
    );
}

#[tokio::test]
async fn attack_16_rotating_an_unverified_part_does_not_escape_the_address() {
    let email = |parts: &Parts| parts.uri.query()?.strip_prefix("email=").map(str::to_owned);
    let site = Site::with(
        all([
            three_by(ClientIp::peer()),
            limit("per-email", three()).by(from_fn(email)),
        ]),
        |layer| Router::new().route("/login", any(ok)).layer(layer),
    );
    let mut dice = Dice::new(16);
    let logins =
        (0..100).map(|_| from("203.0.113.9").uri(format!("/login?email={}@x", dice.token())));
    assert_eq!(site.admitted(logins).await, 3);
    // Rotating the address does not escape the victim's own limit.
    let logins = (0..100).map(|n| from(&format!("198.51.100.{n}")).uri("/login?email=ada@x"));
    assert_eq!(site.admitted(logins).await, 3);
}

#[tokio::test]
async fn attack_17_made_up_credentials_earn_no_fresh_budget() {
    let by_key = Header::new("x-api-key")
        .accept(|key| key == b"known")
        .or(ClientIp::peer());
    let (site, mut dice) = (Site::new(three_by(by_key)), Dice::new(17));
    let requests = (0..10_000).map(|_| from("203.0.113.9").header("x-api-key", dice.token()));
    assert_eq!(site.admitted(requests).await, 3);
    assert_eq!(site.store.keys(), 1);
    assert_eq!(
        site.admitted((0..4).map(|_| from("203.0.113.9").header("x-api-key", "known")))
            .await,
        3
    );
}

/// Files that users copy from.
fn samples() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut folders = vec![root.join("examples"), root.join("throttle-tower")];
    let mut files = vec![root.join("README.md")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.file_name().unwrap().to_str().unwrap() {
                "tests" | "tests.rs" | "benches" | "target" => {}
                _ if path.is_dir() => folders.push(path),
                name if name.ends_with(".md") || name.ends_with(".rs") => files.push(path),
                _ => {}
            }
        }
    }
    files
}

/// A prefix is no check: a client invents values that begin with it.
#[test]
fn attack_17_samples_compare_all_of_a_key_with_keys_that_exist() {
    let files = samples();
    for file in &files {
        let text = fs::read_to_string(file).unwrap();
        for (at, _) in text.match_indices(".accept(") {
            let check = text[at..].lines().next().unwrap();
            for part in ["starts_with", "ends_with", "is_empty", "len()", "|_|"] {
                assert!(!check.contains(part), "{file:?}: {check}");
            }
        }
    }
    // Whole programs check keys, or have a lookup of plans that knows them.
    const KEY: &str = r#"Header::new("x-api-key")"#;
    let mut keys = 0;
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let is_rustdoc = file.extension().is_some_and(|ending| ending == "rs")
            && file.iter().any(|folder| folder == "throttle-tower");
        if is_rustdoc || text.contains("unknown_as_missing") {
            continue;
        }
        for (at, _) in text.match_indices(KEY) {
            let check = text[at + KEY.len()..].trim_start();
            let is_checked = [".accept(", ".extract("]
                .iter()
                .any(|by| check.starts_with(by));
            assert!(is_checked, "{file:?} takes any key");
            keys += 1;
        }
    }
    assert!(keys >= 10, "{keys}");
}

#[tokio::test]
async fn attack_18_parts_of_a_key_do_not_run_into_each_other() {
    let site = Site::new(three_by((Header::new("a"), Header::new("b"))));
    for (a, b) in [
        ("a:b", "c"),
        ("a", "b:c"),
        ("a:", "b:c"),
        ("ab", "c"),
        ("a", "bc"),
        ("abc", "c"),
        ("a|b", "c"),
    ] {
        let requests = (0..4).map(|_| from("203.0.113.9").header("a", a).header("b", b));
        assert_eq!(site.admitted(requests).await, 3, "{a} {b}");
    }
    assert_eq!(site.store.keys(), 7);
}

proptest! {
    #![proptest_config(crate::support::cases(300))]

    /// Compares random parts with others, and with the same parts of which two are joined, with and
    /// without the bytes that an encoding might put between them.
    #[test]
    fn attack_18_equal_buckets_mean_equal_parts(
        one in proptest::collection::vec("[a:\0\x01-\x04]{0,4}", 2..4),
        random in proptest::collection::vec("[a:\0\x01-\x04]{0,4}", 1..4),
        between in "[:|/%\0\x01-\x04]{0,2}",
    ) {
        let mut joined = one.clone();
        let second = joined.remove(1);
        joined[0] += &(between + &second);
        run(async {
            // The parts travel in an extension, so that every byte is possible.
            let key = |parts: &Vec<String>| {
                parts.iter().fold(throttle_tower::Key::builder(), |key, part| key.text(part)).finish()
            };
            let with = |parts: &Vec<String>| from("203.0.113.9").extension(parts.clone());
            for other in [&random, &joined] {
                let site = Site::new(three_by(Extension::by(key)));
                assert_eq!(site.admitted((0..4).map(|_| with(&one))).await, 3);
                assert_eq!(site.admitted((0..3).map(|_| with(other))).await, if one == *other { 0 } else { 3 });
            }
        });
    }
}

#[tokio::test]
async fn attack_19_a_missing_key_is_shared_skipped_or_rejected() {
    let missing = || {
        let plain = || from("203.0.113.9");
        let twice = plain().header("x-api-key", "a").header("x-api-key", "b");
        [
            plain(),
            plain().header("x-api-key", ""),
            twice,
            plain(),
            plain(),
        ]
    };
    let keyed = |rule| {
        limit("per-key", three())
            .by(Header::new("x-api-key"))
            .on_missing(rule)
    };

    for site in [
        Site::new(keyed(OnMissing::Share)),
        Site::new(three_by(Header::new("x-api-key"))),
    ] {
        site.assert_one_bucket(missing()).await;
        // Words that elsewhere mean a missing key are ordinary keys.
        for literal in ["null", "undefined", "missing", "<missing>", "-"] {
            assert_eq!(
                site.status(from("203.0.113.9").header("x-api-key", literal))
                    .await,
                StatusCode::OK
            );
        }
    }

    let site = Site::new(keyed(OnMissing::Skip));
    assert_eq!(site.admitted(missing()).await, 5);
    assert_eq!(site.store.keys(), 0);
    let response = site.send(from("203.0.113.9")).await;
    assert_eq!(
        (
            field(&response, "ratelimit"),
            field(&response, "ratelimit-policy")
        ),
        (None, None)
    );

    for status in [
        StatusCode::BAD_REQUEST,
        StatusCode::FORBIDDEN,
        StatusCode::UNAUTHORIZED,
    ] {
        let site = Site::new(keyed(OnMissing::Reject(status)));
        for request in missing() {
            assert_eq!(site.status(request).await, status);
        }
        assert_eq!(site.store.keys(), 0);
        assert_eq!(
            site.admitted((0..4).map(|_| from("203.0.113.9").header("x-api-key", "ada")))
                .await,
            3
        );
    }
    let in_flight = limit("per-key", InFlight::new(1)).by(Header::new("x-api-key"));
    let reject = OnMissing::Reject(StatusCode::OK);
    for limits in [
        keyed(reject).into_limit_tree(),
        in_flight.on_missing(reject).into_limit_tree(),
    ] {
        let error = ThrottleLayer::new(limits).unwrap_err();
        assert_eq!(
            (error.policy(), error.field(), error.value()),
            (Some("per-key"), "on_missing", "200 OK")
        );
    }

    let by_ip = Site::new(three_by(Header::new("x-api-key").or(ClientIp::peer())));
    by_ip.assert_one_bucket(missing()).await;
}

#[tokio::test]
async fn attack_19_without_a_peer_nothing_fails_and_nothing_opens() {
    let nowhere = || Request::builder().uri("/");
    for client_ip in [
        ClientIp::peer(),
        ClientIp::x_forwarded_for(proxy()),
        ClientIp::fly_io(),
    ] {
        Site::new(three_by(client_ip))
            .assert_one_bucket((0..10).map(|_| nowhere()))
            .await;
    }
}

#[tokio::test]
async fn attack_20_spellings_of_one_identity_share_a_bucket() {
    let site = Site::new(three_by(Header::new("x-user").normalize_identity()));
    let spellings = [
        "a@x",
        "A@x",
        "a@x ",
        "\u{ff41}@x",
        " A@X",
        "\u{ff21}\u{ff20}\u{ff38}",
        "a\u{ff20}x\t",
    ];
    let spelt = |value: &str| from("203.0.113.9").header("x-user", value.as_bytes());
    site.assert_one_bucket(spellings.map(spelt)).await;
    let composed = ["\u{e9}@x", "e\u{301}@x", "\u{c9}@x", "E\u{301}@X"];
    assert_eq!(site.admitted(composed.map(spelt)).await, 3);
    // Only the small letter has a code point of its own, and a final sigma is still a sigma.
    let folded = ["J\u{30c}ohn", "j\u{30c}ohn", "\u{1f0}ohn", "J\u{30c}OHN"];
    assert_eq!(site.admitted(folded.map(spelt)).await, 3);
    let greek = [
        "\u{39f}\u{394}\u{39f}\u{3a3}",
        "\u{3bf}\u{3b4}\u{3bf}\u{3c2}",
        "\u{3bf}\u{3b4}\u{3bf}\u{3c3}",
        "\u{39f}\u{394}\u{39f}\u{3a3}",
    ];
    assert_eq!(site.admitted(greek.map(spelt)).await, 3);
    assert_eq!(site.status(spelt("b@x")).await, StatusCode::OK);
    // A value of white space only counts as missing.
    assert_eq!(site.admitted(["\u{3000}", "\u{a0}"].map(spelt)).await, 2);
    assert_eq!(site.status(from("203.0.113.9")).await, StatusCode::OK);
    assert_eq!(
        site.status(from("203.0.113.9")).await,
        StatusCode::TOO_MANY_REQUESTS
    );

    // Without the normalizer every byte counts, as it must for tokens.
    let exact = Site::new(three_by(Header::new("x-user")));
    assert_eq!(exact.admitted(spellings.map(spelt)).await, spellings.len());
}

#[tokio::test]
async fn attack_25_policies_and_tenants_do_not_share_budgets() {
    // Two policies, one user.
    let user = || Header::new("x-user");
    let reads = limit("reads", three())
        .by(user())
        .when(|parts: &Parts| parts.method == "GET");
    let writes = limit("writes", three())
        .by(user())
        .when(|parts: &Parts| parts.method == "POST");
    let site = Site::new(all([reads, writes]));
    let by = |method: &str| from("203.0.113.9").method(method).header("x-user", "ada");
    assert_eq!(site.admitted((0..4).map(|_| by("GET"))).await, 3);
    assert_eq!(site.admitted((0..4).map(|_| by("POST"))).await, 3);

    // Two tenants, one user name.
    let site = Site::new(three_by((Header::new("x-tenant"), user())));
    let of = |tenant: &str| {
        from("203.0.113.9")
            .header("x-tenant", tenant)
            .header("x-user", "ada")
    };
    assert_eq!(site.admitted((0..10).map(|_| of("a"))).await, 3);
    assert_eq!(site.admitted((0..10).map(|_| of("b"))).await, 3);

    // Two layers on one store are separated by the names of their policies; the name is the
    // identity.
    let (one, _, store) = layer(limit("one", three()).by(user()));
    let with = |name: &str| {
        let layer = ThrottleLayer::builder(limit(name, three()).by(user()))
            .backend(store.clone())
            .build()
            .unwrap();
        Router::new().route("/", any(ok)).layer(layer)
    };
    let (one, two, same) = (
        Router::new().route("/", any(ok)).layer(one),
        with("two"),
        with("one"),
    );
    for _ in 0..3 {
        assert_eq!(send(&one, by("GET")).await.status(), StatusCode::OK);
    }
    assert_eq!(
        send(&same, by("GET")).await.status(),
        StatusCode::TOO_MANY_REQUESTS
    );
    let other = send(&two, by("GET")).await;
    assert_eq!(parameter(&other, "ratelimit", "two", "r"), Some(2));
    assert_eq!(list(&other, "ratelimit-policy").len(), 1);

    // Within one layer a name can be used only once.
    let twice: Result<_, ConfigError> =
        ThrottleLayer::new(all([three_by(user()), three_by(ClientIp::peer())]));
    assert_eq!(twice.unwrap_err().value(), "\"three\" twice");
}

#[tokio::test]
async fn attack_26_bytes_that_mean_something_to_a_store_mean_nothing_in_a_key() {
    let hostile = [
        "}{",
        "a{b}c",
        "{b}",
        "b",
        "a{}c",
        "\r\nDEL x",
        "DEL x",
        "*",
        "?",
        "[a-z]",
        "a\0b",
        "a",
        "\u{1b}[2J",
        "'; --",
        "",
    ];
    let site = Site::new(three_by(Extension::by(|key: &&'static str| *key)));
    for key in hostile {
        let requests = (0..4).map(|_| from("203.0.113.9").extension(key));
        assert_eq!(site.admitted(requests).await, 3, "{key:?}");
    }
    assert_eq!(site.store.keys(), hostile.len());
    for key in hostile {
        assert_eq!(
            site.status(from("203.0.113.9").extension(key)).await,
            StatusCode::TOO_MANY_REQUESTS,
            "{key:?}"
        );
    }
}

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(test)
}
