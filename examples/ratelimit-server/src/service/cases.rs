//! What the integration scripts of envoyproxy/ratelimit demand of the service, written anew. Each
//! step is a request: its descriptors, and whether it passes.

use super::tests::{bench, descriptor, hits};

/// A descriptor's entries, as in `foo=a,bar=b`, and its hits.
type Asked = (&'static str, u64);

const LIMITS: &str = "
domain: shop
descriptors:
  - key: foo
    descriptors:
      - key: bar
        value: banned
        rate_limit: { name: banned, unit: minute, requests_per_unit: 0 }
      - key: bar
        value: single
        rate_limit: { name: single, unit: minute, requests_per_unit: 1 }
  - key: source
    value: proxy
    descriptors:
      - key: to
        value: override
        rate_limit: { unit: minute, requests_per_unit: 2, replaces: [{ name: banned }] }
      - key: to
        value: single
        rate_limit: { unit: minute, requests_per_unit: 2, replaces: [{ name: single }] }
      - key: to
        value: fake
        rate_limit: { name: fake, unit: minute, requests_per_unit: 2 }
  - key: category
    value: account
    rate_limit:
      unit: minute
      requests_per_unit: 4
      replaces: [{ name: single }, { name: fake }]
  - key: limited
    rate_limit: { unit: minute, requests_per_unit: 3 }
  - key: watched
    shadow_mode: true
    rate_limit: { unit: minute, requests_per_unit: 3 }
  - key: service
    value: one
    quota_mode: true
    rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: service
    value: two
    quota_mode: true
    rate_limit: { unit: minute, requests_per_unit: 2 }
";

async fn walk(steps: &[(&[Asked], usize, bool)]) {
    let bench = bench(LIMITS);
    for (number, (asked, times, passes)) in steps.iter().enumerate() {
        for _ in 0..*times {
            let descriptors = asked.iter().map(|(entries, units)| {
                let entries: Vec<_> = entries
                    .split(',')
                    .filter_map(|entry| entry.split_once('='))
                    .collect();
                match units {
                    1 => descriptor(&entries),
                    units => hits(&entries, *units),
                }
            });
            let passed = bench.left(descriptors.collect()).await.0;
            assert_eq!(passed, *passes, "step {number}: {asked:?}");
        }
    }
}

#[tokio::test]
async fn limit_passes_its_count_and_a_watched_one_all() {
    walk(&[
        (&[("unknown=a", 1)], 5, true),
        (&[("limited=a", 1)], 3, true),
        (&[("limited=a", 1)], 2, false),
        (&[("watched=a", 1)], 5, true),
    ])
    .await;
}

#[tokio::test]
async fn replacing_limit_decides_alone_and_leaves_the_replaced_one_as_it_is() {
    walk(&[
        (&[("foo=a,bar=banned", 1)], 1, false),
        (
            &[("foo=a,bar=banned", 1), ("source=proxy,to=mock", 1)],
            1,
            false,
        ),
        (
            &[("foo=a,bar=banned", 1), ("source=proxy,to=override", 1)],
            2,
            true,
        ),
        (
            &[("foo=a,bar=banned", 1), ("source=proxy,to=override", 1)],
            1,
            false,
        ),
        (
            &[("foo=a,bar=single", 1), ("source=proxy,to=single", 1)],
            2,
            true,
        ),
        (
            &[("foo=a,bar=single", 1), ("source=proxy,to=single", 1)],
            1,
            false,
        ),
        (
            &[("foo=a,bar=single", 1), ("source=proxy,to=other", 1)],
            1,
            true,
        ),
        (
            &[("foo=a,bar=single", 1), ("source=proxy,to=other", 1)],
            1,
            false,
        ),
        (
            &[("foo=a,bar=single", 1), ("source=proxy,to=single", 1)],
            1,
            false,
        ),
    ])
    .await;
}

#[tokio::test]
async fn one_limit_replaces_several() {
    let all: &[Asked] = &[
        ("foo=a,bar=single", 1),
        ("source=proxy,to=fake", 1),
        ("category=account", 1),
    ];
    walk(&[
        (all, 4, true),
        (all, 1, false),
        (&[("foo=b,bar=single", 1)], 1, true),
        (&[("foo=b,bar=single", 1)], 1, false),
        (&[("foo=c,bar=c", 1), ("source=proxy,to=fake", 1)], 2, true),
        (&[("foo=c,bar=c", 1), ("source=proxy,to=fake", 1)], 1, false),
        (all, 1, false),
    ])
    .await;
}

#[tokio::test]
async fn quotas_pass_while_one_of_them_has_units() {
    let both: &[Asked] = &[("service=one", 1), ("service=two", 1)];
    walk(&[(both, 2, true), (both, 1, false)]).await;
}

/// A request looks, and its response is charged to the service that served it. With envoyproxy's
/// server one more passes, because it counts beyond the limit before it refuses.
#[tokio::test]
async fn quotas_that_responses_are_charged_to_end_with_their_last_unit() {
    let look: &[Asked] = &[("service=one", 0), ("service=two", 0)];
    let one: &[Asked] = &[("service=one", 1)];
    let two: &[Asked] = &[("service=two", 1)];
    walk(&[
        (look, 1, true),
        (one, 1, true),
        (look, 1, true),
        (two, 1, true),
        (look, 1, true),
        (two, 1, true),
        (look, 1, false),
    ])
    .await;
}
