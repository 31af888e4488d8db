//! Requests and answers on a clock that stands still, so that no window ends by chance.

use std::collections::BTreeSet;
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::UInt64Value;
use metrics_exporter_prometheus::PrometheusBuilder;
use prost::Message;
use throttle_core::{BoxBackend, ManualClock, MemoryBackend, PolicySet};

use super::Service;
use super::ask::Inquiry;
use super::decide::members;
use crate::limits::Config;
use crate::settings::Settings;
use crate::store::Store;
use crate::tests::redis;

pub struct Bench {
    service: Service,
    clock: ManualClock,
}

pub fn bench(file: &str) -> Bench {
    let clock = ManualClock::default();
    let memory = MemoryBackend::builder().clock(clock.clone()).build();
    Bench {
        service: Service::new(
            BoxBackend::new(memory),
            config(file),
            &Settings {
                dynamic_metadata: true,
                ..Settings::default()
            },
        ),
        clock,
    }
}

fn config(file: &str) -> Config {
    let mut config = Config::new(false);
    config.add("limits.yaml", file).unwrap();
    config
}

pub fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |&(key, value): &(&str, &str)| Entry {
        key: key.to_owned(),
        value: value.to_owned(),
    };
    RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    }
}

pub fn hits(entries: &[(&str, &str)], hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor {
        hits_addend: Some(UInt64Value { value: hits }),
        ..descriptor(entries)
    }
}

fn refund(entries: &[(&str, &str)], units: u64) -> RateLimitDescriptor {
    RateLimitDescriptor {
        is_negative_hits: true,
        ..hits(entries, units)
    }
}

fn own_limit(entries: &[(&str, &str)], requests_per_unit: u32, unit: i32) -> RateLimitDescriptor {
    RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit,
            unit,
        }),
        ..descriptor(entries)
    }
}

fn request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest {
        domain: "shop".to_owned(),
        descriptors,
        hits_addend: 0,
    }
}

impl Bench {
    async fn answer(&self, descriptors: Vec<RateLimitDescriptor>) -> RateLimitResponse {
        self.service.answer(&request(descriptors)).await.unwrap()
    }

    /// The overall code, and what is left of each descriptor: `None` if it is over its limit.
    pub async fn left(&self, descriptors: Vec<RateLimitDescriptor>) -> (bool, Vec<Option<u32>>) {
        let answer = self.answer(descriptors).await;
        let left = answer
            .statuses
            .iter()
            .map(|status| (status.code() == Code::Ok).then_some(status.limit_remaining));
        (answer.overall_code() == Code::Ok, left.collect())
    }

    async fn admits(&self, entries: &[(&str, &str)]) -> bool {
        self.left(vec![descriptor(entries)]).await.0
    }

    /// How many of so many requests are admitted.
    async fn admitted(&self, requests: usize, entries: &[(&str, &str)]) -> usize {
        let mut admitted = 0;
        for _ in 0..requests {
            admitted += usize::from(self.admits(entries).await);
        }
        admitted
    }
}

const TWO: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 20 }
  - key: path
    rate_limit: { unit: hour, requests_per_unit: 10 }
";

#[tokio::test]
async fn limit_admits_its_count_in_a_window_and_again_in_the_next() {
    let bench = bench(TWO);
    for left in (0..20).rev() {
        assert_eq!(
            bench.left(vec![descriptor(&[("user", "ada")])]).await,
            (true, vec![Some(left)])
        );
    }
    let refused = bench.answer(vec![descriptor(&[("user", "ada")])]).await;
    let status = &refused.statuses[0];
    assert_eq!(
        (
            refused.overall_code(),
            status.code(),
            status.limit_remaining
        ),
        (Code::OverLimit, Code::OverLimit, 0)
    );
    let limit = status.current_limit.clone().unwrap();
    assert_eq!(
        (limit.requests_per_unit, limit.unit().as_str_name()),
        (20, "MINUTE")
    );
    let wait = u64::try_from(status.duration_until_reset.unwrap().seconds).unwrap();
    bench.clock.advance(Duration::from_secs(wait - 1));
    assert!(!bench.admits(&[("user", "ada")]).await);
    bench.clock.advance(Duration::from_secs(1));
    assert!(bench.admits(&[("user", "ada")]).await);
    assert!(bench.admits(&[("user", "eve")]).await, "a key of its own");
}

#[tokio::test]
async fn refused_request_charges_no_descriptor() {
    let bench = bench(TWO);
    let both = || vec![descriptor(&[("user", "ada")]), descriptor(&[("path", "/")])];
    for spent in 1..=10 {
        assert_eq!(
            bench.left(both()).await,
            (true, vec![Some(20 - spent), Some(10 - spent)])
        );
    }
    // envoyproxy/ratelimit goes on charging the first descriptor, so that refused traffic uses up the
    // broad limit.
    for _ in 0..100 {
        assert_eq!(bench.left(both()).await, (false, vec![Some(10), None]));
    }
}

#[tokio::test]
async fn request_without_a_limit_is_admitted() {
    let bench = bench(TWO);
    for entries in [
        &[][..],
        &[("unknown", "a")],
        &[("user", "ada"), ("path", "/")],
    ] {
        let answer = bench.answer(vec![descriptor(entries)]).await;
        assert_eq!(
            (
                answer.overall_code(),
                answer.statuses[0].current_limit.is_none()
            ),
            (Code::Ok, true)
        );
        assert!(answer.response_headers_to_add.is_empty());
    }
    let mut unknown = request(vec![descriptor(&[("user", "ada")])]);
    unknown.domain = "unknown".to_owned();
    assert_eq!(
        bench.service.answer(&unknown).await.unwrap().overall_code(),
        Code::Ok
    );
}

#[tokio::test]
async fn request_that_makes_no_sense_is_an_invalid_argument() {
    let bench = bench(TWO);
    let mut without_domain = request(vec![descriptor(&[("user", "ada")])]);
    without_domain.domain.clear();
    let own = |unit| request(vec![own_limit(&[("user", "ada")], 5, unit)]);
    // A unit that is none has crashed envoyproxy/ratelimit.
    for wrong in [
        without_domain,
        request(Vec::new()),
        own(0),
        own(8),
        own(-1),
        own(i32::MAX),
    ] {
        let error = bench.service.answer(&wrong).await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::InvalidArgument, "{error}");
    }
    let own = |many, unit| {
        let each = (0..many).map(|n| own_limit(&[(&format!("key{n}"), "")], 5, unit));
        request(each.collect())
    };
    let key = |many| {
        let each = (0..many).map(|n| descriptor(&[("user", &format!("{n}"))]));
        request(each.collect())
    };
    for (most, more) in [(own(1_000, 1), own(1_001, 1)), (key(1_000), key(1_001))] {
        let admitted = bench.service.answer(&most).await.unwrap();
        assert_eq!(admitted.overall_code(), Code::Ok);
        let error = bench.service.answer(&more).await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::InvalidArgument, "{error}");
    }
}

#[tokio::test]
async fn hits_of_a_descriptor_go_before_those_of_the_request() {
    let bench = bench(TWO);
    let mut of_request = request(vec![
        descriptor(&[("user", "ada")]),
        hits(&[("path", "/")], 4),
    ]);
    of_request.hits_addend = 3;
    let answer = bench.service.answer(&of_request).await.unwrap();
    assert_eq!(
        [0, 1].map(|index: usize| answer.statuses[index].limit_remaining),
        [17, 6]
    );
}

#[tokio::test]
async fn zero_hits_look_and_charge_nothing() {
    let bench = bench(TWO);
    let look = || vec![hits(&[("path", "/")], 0)];
    assert_eq!(bench.left(look()).await, (true, vec![Some(10)]));
    assert_eq!(
        bench.left(vec![hits(&[("path", "/")], 10)]).await,
        (true, vec![Some(0)])
    );
    assert_eq!(
        bench.left(look()).await,
        (false, vec![None]),
        "one more hit would be refused"
    );
}

#[tokio::test]
async fn hits_beyond_any_limit_are_refused_and_charge_nothing() {
    let bench = bench(TWO);
    for absurd in [11, u64::from(u32::MAX), u64::MAX] {
        let refused = bench.answer(vec![hits(&[("path", "/")], absurd)]).await;
        assert_eq!(refused.overall_code(), Code::OverLimit);
        assert!(
            refused
                .response_headers_to_add
                .iter()
                .all(|header| header.key != "Retry-After")
        );
    }
    assert_eq!(
        bench.left(vec![hits(&[("path", "/")], 0)]).await,
        (true, vec![Some(10)])
    );
}

#[tokio::test]
async fn negative_hits_give_back_at_most_what_was_used() {
    let bench = bench(TWO);
    let path: &[_] = &[("path", "/")];
    bench.left(vec![hits(path, 10)]).await;
    assert_eq!(
        bench.left(vec![refund(path, 3)]).await,
        (true, vec![Some(3)])
    );
    assert_eq!(
        bench.left(vec![refund(path, u64::MAX)]).await,
        (true, vec![Some(10)])
    );
    assert_eq!(
        bench.left(vec![hits(path, 10)]).await,
        (true, vec![Some(0)])
    );
    bench.clock.advance(Duration::from_secs(3_600));
    assert_eq!(
        bench.left(vec![refund(path, 3)]).await,
        (true, vec![Some(10)]),
        "the window has ended"
    );
}

#[tokio::test]
async fn descriptors_of_one_rule_are_one_decision() {
    let bench = bench(TWO);
    let pair = |units| {
        vec![
            hits(&[("path", "/a")], units),
            hits(&[("path", "/b")], units),
        ]
    };
    assert_eq!(bench.left(pair(4)).await, (true, vec![Some(6), Some(6)]));
    assert_eq!(
        bench.left(vec![hits(&[("path", "/b")], 6)]).await.1,
        [Some(0)]
    );
    assert!(!bench.left(pair(1)).await.0);
    assert_eq!(
        bench.left(vec![hits(&[("path", "/a")], 0)]).await.1,
        [Some(6)],
        "nothing was charged"
    );
    let twice = vec![hits(&[("path", "/a")], 3), hits(&[("path", "/a")], 4)];
    assert_eq!(
        bench.left(twice).await,
        (false, vec![None, None]),
        "seven of six"
    );
}

/// A service in memory and one on a Redis, which lives as long as the first part.
async fn on_each_store() -> (impl Sized, [Service; 2]) {
    let (redis, url) = redis().await;
    let services = ["memory".to_owned(), url].map(|store| {
        let settings = Settings {
            store,
            store_milliseconds: 10_000,
            ..Settings::default()
        };
        let file = TWO.replace("minute", "year").replace("hour", "year");
        let store = Store::open(&settings).unwrap();
        Service::new(store.backend, config(&file), &settings)
    });
    (redis, services)
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_request_charges_none_of_many_keys() {
    let (_redis, services) = on_each_store().await;
    for service in services {
        let left = async |descriptors| {
            let answer = service.answer(&request(descriptors)).await.unwrap();
            let left = answer.statuses.iter().map(|status| status.limit_remaining);
            (
                answer.overall_code() == Code::Ok,
                left.collect::<Vec<u32>>(),
            )
        };
        let path = |n: usize, units| hits(&[("path", &format!("/{n}"))], units);
        let all = |units| -> Vec<_> { (0..300).map(|n| path(n, units)).collect() };
        // The last key and a key of another limit are nearly used up.
        assert!(
            left(vec![path(299, 8), hits(&[("user", "ada")], 20)])
                .await
                .0
        );
        assert!(!left(all(3)).await.0);
        let mut with_another_limit = all(1);
        with_another_limit.insert(150, descriptor(&[("user", "ada")]));
        assert!(!left(with_another_limit).await.0);
        // One key twice is asked for the sum.
        let mut twice = all(1);
        twice.extend([path(299, 1), path(299, 1)]);
        assert!(!left(twice).await.0);
        let mut untouched = vec![10; 299];
        untouched.push(2);
        assert_eq!(left(all(0)).await, (true, untouched));

        let mut twice = all(1);
        twice.push(path(299, 1));
        let mut charged = vec![9; 299];
        charged.extend([0, 0]);
        assert_eq!(left(twice).await, (true, charged));
    }
}

/// Were one key charged before another one refuses, these ten would not all be admitted.
#[tokio::test(flavor = "multi_thread")]
async fn request_that_will_be_refused_takes_nothing_from_others_for_a_moment() {
    let (_redis, services) = on_each_store().await;
    for service in services {
        let path = |path| descriptor(&[("path", path)]);
        let spent = request(vec![hits(&[("path", "/spent")], 10)]);
        assert_eq!(
            service.answer(&spent).await.unwrap().overall_code(),
            Code::Ok
        );
        let refused = tokio::spawn({
            let (service, both) = (service.clone(), request(vec![path("/a"), path("/spent")]));
            async move {
                for _ in 0..1_000 {
                    let answer = service.answer(&both).await.unwrap();
                    assert_eq!(answer.overall_code(), Code::OverLimit);
                }
            }
        });
        for left in (0..10).rev() {
            let answer = service.answer(&request(vec![path("/a")])).await.unwrap();
            assert_eq!(answer.statuses[0].limit_remaining, left);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        refused.await.unwrap();
    }
}

#[tokio::test]
async fn own_limits_of_one_key_are_one_hit_of_the_smaller_limit() {
    let bench = bench(TWO);
    let ada: &[_] = &[("user", "ada")];
    let both = || vec![own_limit(ada, 9, 2), own_limit(ada, 3, 2)];
    assert_eq!(bench.left(both()).await, (true, vec![Some(1), Some(1)]));
    assert_eq!(bench.left(both()).await, (false, vec![None, None]));
    assert_eq!(
        bench.left(vec![own_limit(ada, 9, 2)]).await,
        (true, vec![Some(6)]),
        "two were charged, and then none"
    );
}

#[tokio::test]
async fn own_limit_of_a_descriptor_goes_before_the_file() {
    let bench = bench(TWO);
    let ada: &[_] = &[("user", "ada")];
    let own = |count, unit| vec![own_limit(ada, count, unit)];
    assert_eq!(bench.left(own(2, 2)).await, (true, vec![Some(1)]));
    assert_eq!(bench.left(own(2, 2)).await, (true, vec![Some(0)]));
    assert_eq!(bench.left(own(2, 2)).await, (false, vec![None]));
    assert_eq!(
        bench.left(own(5, 2)).await,
        (true, vec![Some(2)]),
        "what was used stays used"
    );
    assert_eq!(
        bench.left(own(0, 2)).await,
        (false, vec![None]),
        "a limit of nothing"
    );
    assert_eq!(
        bench.left(own(u32::MAX, 6)).await,
        (true, vec![Some(u32::MAX - 1)]),
        "of a year"
    );
    assert!(bench.admits(ada).await, "the file's own count");
}

#[tokio::test]
async fn own_limit_only_watches_if_every_limit_does() {
    let bench = bench(TWO);
    let mut config = Config::new(true);
    config.add("limits.yaml", TWO).unwrap();
    bench.service.replace(config);
    let ada = || vec![own_limit(&[("user", "ada")], 1, 2)];
    for _ in 0..3 {
        assert_eq!(bench.left(ada()).await, (true, vec![Some(0)]));
    }
}

#[tokio::test]
async fn modes_decide_as_the_file_says() {
    let bench = bench(
        "
domain: shop
descriptors:
  - key: watched
    shadow_mode: true
    rate_limit: { unit: day, requests_per_unit: 1 }
  - key: never
    rate_limit: { unit: day, requests_per_unit: 0 }
  - key: ever
    rate_limit: { unlimited: true }
  - key: first
    quota_mode: true
    rate_limit: { unit: day, requests_per_unit: 1 }
  - key: second
    quota_mode: true
    rate_limit: { unit: day, requests_per_unit: 2 }
  - key: both
    quota_mode: true
    shadow_mode: true
    rate_limit: { unit: day, requests_per_unit: 1 }
",
    );
    let all = |keys: &[&str]| {
        keys.iter()
            .map(|key| descriptor(&[(key, "")]))
            .collect::<Vec<_>>()
    };
    assert_eq!(bench.left(all(&["watched"])).await, (true, vec![Some(0)]));
    assert_eq!(bench.left(all(&["watched"])).await, (true, vec![Some(0)]));
    assert_eq!(
        bench.left(all(&["never", "first"])).await,
        (false, vec![None, Some(1)])
    );
    assert_eq!(
        bench.left(all(&["ever"])).await,
        (true, vec![Some(u32::MAX)])
    );
    // Of quotas, one that admits is enough.
    assert_eq!(
        bench.left(all(&["first", "second"])).await,
        (true, vec![Some(0), Some(1)])
    );
    assert_eq!(
        bench.left(all(&["first", "second"])).await,
        (true, vec![None, Some(0)])
    );
    assert_eq!(
        bench.left(all(&["first", "second"])).await,
        (false, vec![None, None])
    );
    assert_eq!(
        bench.left(all(&["first", "both"])).await,
        (true, vec![None, Some(0)]),
        "one that only watches passes"
    );
    // Three keys of a quota, of which one admits.
    let three = || -> Vec<_> {
        let keys = ["a", "b", "c"];
        keys.map(|value| descriptor(&[("second", value)])).into()
    };
    assert_eq!(
        bench.left(vec![hits(&[("second", "a")], 2)]).await,
        (true, vec![Some(0)])
    );
    assert_eq!(
        bench.left(three()).await,
        (true, vec![None, Some(1), Some(1)])
    );
    assert_eq!(
        bench.left(three()).await,
        (true, vec![None, Some(0), Some(0)])
    );
    assert_eq!(bench.left(three()).await, (false, vec![None; 3]));
}

#[tokio::test]
async fn limit_that_another_replaces_is_not_asked() {
    let bench = bench(
        "
domain: shop
descriptors:
  - key: all
    rate_limit: { unit: day, requests_per_unit: 1, name: broad }
  - key: premium
    rate_limit: { unit: day, requests_per_unit: 9, replaces: [{ name: broad }] }
  - key: internal
    rate_limit: { unlimited: true, replaces: [{ name: broad }] }
",
    );
    let with = |key: &str| vec![descriptor(&[("all", "")]), descriptor(&[(key, "")])];
    for _ in 0..3 {
        assert!(bench.left(with("premium")).await.0 && bench.left(with("internal")).await.0);
    }
    assert_eq!(
        bench.left(with("unknown")).await,
        (true, vec![Some(0), Some(0)])
    );
    assert!(!bench.left(with("unknown")).await.0);
}

#[tokio::test]
async fn value_goes_before_asterisks_and_those_before_the_key() {
    let bench = bench(
        "
domain: shop
descriptors:
  - key: path
    rate_limit: { unit: day, requests_per_unit: 1 }
  - key: path
    value: /api/*
    share_threshold: true
    rate_limit: { unit: day, requests_per_unit: 2 }
  - key: path
    value: /a*/x*z
    rate_limit: { unit: day, requests_per_unit: 3 }
  - key: path
    value: /api/free
  - key: path
    value: /api/status
    rate_limit: { unit: day, requests_per_unit: 4 }
",
    );
    for (path, admitted) in [
        ("/", 1),
        ("/api/status", 4),
        ("/api/free", 9),
        ("/abc/xyz", 3),
        ("/abc/xyyz", 3),
        ("/abc/xy", 1),
        ("/a/xz", 3),
    ] {
        assert_eq!(
            bench.admitted(9, &[("path", path)]).await,
            admitted,
            "{path}"
        );
    }
    assert!(bench.admits(&[("path", "/api/a")]).await && bench.admits(&[("path", "/api/b")]).await);
    assert!(
        !bench.admits(&[("path", "/api/c")]).await,
        "they share one budget"
    );
}

#[tokio::test]
async fn nested_descriptors_need_all_their_entries() {
    let bench = bench(
        "
domain: shop
descriptors:
  - key: tenant
    value: a
    rate_limit: { unit: day, requests_per_unit: 1 }
    descriptors:
      - key: user
        rate_limit: { unit: day, requests_per_unit: 2 }
",
    );
    assert_eq!(bench.admitted(5, &[("tenant", "a")]).await, 1);
    assert_eq!(
        bench.admitted(5, &[("tenant", "a"), ("user", "ada")]).await,
        2
    );
    assert_eq!(
        bench
            .admitted(5, &[("tenant", "a"), ("user", "ada"), ("more", "")])
            .await,
        5
    );
    assert_eq!(
        bench.admitted(5, &[("tenant", "b"), ("user", "ada")]).await,
        5
    );
}

#[tokio::test]
async fn algorithm_is_that_of_the_file() {
    let bench = bench(
        "
domain: shop
descriptors:
  - key: smooth
    rate_limit: { unit: minute, requests_per_unit: 60, algorithm: gcra, burst: 5 }
  - key: sliding
    rate_limit: { unit: minute, requests_per_unit: 5, algorithm: sliding-log }
",
    );
    for (key, wait) in [("smooth", 1), ("sliding", 60)] {
        assert_eq!(bench.admitted(9, &[(key, "")]).await, 5, "{key}");
        let refused = bench.answer(vec![descriptor(&[(key, "")])]).await;
        assert_eq!(
            refused.statuses[0].duration_until_reset.unwrap().seconds,
            wait,
            "{key}"
        );
        bench
            .clock
            .advance(Duration::from_secs(u64::try_from(wait).unwrap()));
        assert!(bench.admits(&[(key, "")]).await, "{key}");
    }
}

#[tokio::test]
async fn usage_that_does_not_fit_takes_what_is_left_if_the_file_says_so() {
    let file = "
domain: shop
descriptors:
  - key: tokens
    rate_limit: { unit: hour, requests_per_unit: 10, charge_refused: true }
";
    for (file, left) in [
        (file.to_owned(), (false, None)),
        (file.replace(", charge_refused: true", ""), (true, Some(10))),
    ] {
        let bench = bench(&file);
        assert!(!bench.left(vec![hits(&[("tokens", "")], 12)]).await.0);
        let (is_admitted, left_of_each) = bench.left(vec![hits(&[("tokens", "")], 0)]).await;
        assert_eq!((is_admitted, left_of_each[0]), left);
    }
}

#[tokio::test]
async fn headers_are_those_of_the_tightest_limit() {
    let bench = bench(TWO);
    let both = || vec![descriptor(&[("user", "ada")]), descriptor(&[("path", "/")])];
    let headers = |answer: RateLimitResponse| {
        let each = answer.response_headers_to_add.into_iter();
        each.map(|header| format!("{}: {}", header.key, header.value))
            .collect::<Vec<_>>()
    };
    let admitted = headers(bench.answer(both()).await);
    assert_eq!(
        admitted,
        [
            "RateLimit-Limit: 10",
            "RateLimit-Remaining: 9",
            "RateLimit-Reset: 3600"
        ]
    );
    bench.left(vec![hits(&[("path", "/")], 9)]).await;
    let refused = headers(bench.answer(both()).await);
    assert_eq!(
        refused,
        [
            "RateLimit-Limit: 10",
            "RateLimit-Remaining: 0",
            "RateLimit-Reset: 3600",
            "Retry-After: 3600"
        ]
    );
}

#[tokio::test]
async fn used_units_stay_used_when_the_files_change() {
    let bench = bench(TWO);
    bench.left(vec![hits(&[("path", "/")], 10)]).await;
    bench.service.replace(config(
        &TWO.replace("requests_per_unit: 10", "requests_per_unit: 12"),
    ));
    assert_eq!(
        bench.left(vec![descriptor(&[("path", "/")])]).await,
        (true, vec![Some(1)])
    );
}

#[tokio::test]
async fn metadata_is_that_of_the_descriptors_that_passed() {
    let bench = bench(
        "
domain: shop
descriptors:
  - key: service
    value: one
    quota_mode: true
    rate_limit: { unit: day, requests_per_unit: 1 }
    metadata: { chosen: { name: one, weight: 2 } }
  - key: service
    value: two
    quota_mode: true
    rate_limit: { unit: day, requests_per_unit: 2 }
    metadata: { chosen: { name: two }, more: [a, true, null] }
",
    );
    let chosen = async || {
        let both = ["one", "two"].map(|service| descriptor(&[("service", service)]));
        let answer = bench.answer(both.into()).await;
        format!(
            "{:?}",
            answer.dynamic_metadata.unwrap().fields.get("metadata")
        )
    };
    // The first value of a name stays.
    let both = chosen().await;
    assert!(
        both.contains("\"one\"") && !both.contains("\"two\"") && both.contains("BoolValue(true)"),
        "{both}"
    );
    assert!(chosen().await.contains("\"two\""));
    assert_eq!(chosen().await, "None");
}

#[tokio::test]
async fn hits_are_counted_by_handles_that_the_limits_hold() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    // The limits are read while there is a recorder, and hits come when there is none.
    let bench = metrics::with_local_recorder(&recorder, || bench(TWO));
    assert_eq!(bench.admitted(25, &[("user", "ada")]).await, 20);
    let counted = metrics.render();
    for (name, hits) in [
        ("total_hits", 25),
        ("over_limit", 5),
        ("within_limit", 20),
        ("near_limit", 4),
        ("shadow_mode", 0),
    ] {
        let line = format!("ratelimit_{name}{{key=\"shop.user\"}} {hits}\n");
        assert!(counted.contains(&line), "{line}{counted}");
    }
}

#[tokio::test]
async fn values_are_in_names_of_metrics_if_the_file_says_so() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let bench = bench(
        "
domain: named
descriptors:
  - key: tenant
    value_to_metric: true
    descriptors:
      - key: path
        value: /a*
        rate_limit: { unit: day, requests_per_unit: 9 }
  - key: user
    descriptors:
      - key: path
        detailed_metric: true
        rate_limit: { unit: day, requests_per_unit: 9 }
",
    );
    for first in ["tenant", "user"] {
        let mut one = request(vec![descriptor(&[(first, "x"), ("path", "/ab")])]);
        one.domain = "named".to_owned();
        bench.service.answer(&one).await.unwrap();
    }
    let counted = recorder.handle().render();
    for name in ["named.tenant_x.path_/a*", "named.user_x.path_/ab"] {
        let line = format!("ratelimit_total_hits{{key=\"{name}\"}} 1\n");
        assert!(counted.contains(&line), "{line}{counted}");
    }
}

/// Xorshift: the same numbers in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }
}

#[tokio::test]
async fn random_messages_are_answered_or_refused_and_nothing_grows() {
    let bench = bench(TWO);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let start = request(vec![
        hits(&[("user", "ada"), ("path", "/")], 3),
        own_limit(&[("path", "/")], 5, 2),
        refund(&[("user", "eve")], 7),
    ])
    .encode_to_vec();
    let (mut messages, mut answers) = (0, 0);
    for _ in 0..100_000 {
        let mut bytes = start.clone();
        for _ in 0..=random.below(2) {
            let at = random.below(bytes.len());
            match random.below(4) {
                0 => bytes[at] = u8::try_from(random.below(256)).unwrap(),
                1 => bytes[at] ^= 1 << random.below(8),
                2 => bytes.truncate(at.max(1)),
                _ => bytes.extend_from_within(at..),
            }
        }
        if let Ok(message) = RateLimitRequest::decode(&bytes[..]) {
            messages += 1;
            match bench.service.answer(&message).await {
                Ok(answer) => {
                    answers += 1;
                    assert_eq!(answer.statuses.len(), message.descriptors.len());
                }
                Err(error) => assert_eq!(error.code(), tonic::Code::InvalidArgument),
            }
        }
    }
    assert!(messages > 5_000 && answers > 1_000, "{messages} {answers}");
    assert!(bench.service.in_force().sets.len() < 4_096);
    assert!(bench.admits(&[("user", "bob")]).await);
}

/// Redis keeps a script for each shape.
#[test]
fn numbers_of_keys_that_a_client_chooses_have_few_shapes() {
    let config = config(TWO);
    let keys = |key, count| (0..count).map(move |n| descriptor(&[(key, &format!("{n}"))]));
    let shape = |descriptors| {
        let inquiry = Inquiry::new(&config, &request(descriptors)).unwrap();
        let (hits, members) = (&inquiry.hits, members(&inquiry.hits));
        assert_eq!(
            members.iter().filter(|(_, applies)| *applies).count(),
            hits.len()
        );
        assert!(members.len() <= PolicySet::MAX_POLICIES);
        members
            .iter()
            .map(|(hit, _)| hits[*hit].policy)
            .collect::<Vec<_>>()
    };
    let mut shapes = BTreeSet::new();
    for count in (500..=1_000).step_by(20) {
        shapes.insert(shape(keys("user", count).collect()));
        let two = keys("user", count / 2).chain(keys("path", count / 2));
        shapes.insert(shape(two.collect()));
    }
    assert!(shapes.len() <= 12, "{} scripts", shapes.len());
}

#[test]
fn paths_that_read_alike_and_have_other_limits_are_an_error() {
    let file = |nested: u32| {
        format!(
            "
domain: shop
descriptors:
  - key: host.port
    rate_limit: {{ unit: minute, requests_per_unit: 20 }}
  - key: host
    descriptors:
      - key: port
        rate_limit: {{ unit: minute, requests_per_unit: {nested} }}
"
        )
    };
    let add = |nested| Config::new(false).add("limits.yaml", &file(nested));
    assert!(add(20).is_ok(), "one policy of different keys");
    let error = add(5).unwrap_err().to_string();
    assert!(
        error.contains("shop.host.port") && error.contains("rename"),
        "{error}"
    );
}
