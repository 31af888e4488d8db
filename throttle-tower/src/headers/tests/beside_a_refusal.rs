//! What is said on a response that another layer has refused.

use super::*;

fn beside(dialect: Dialect, admitted: bool) -> Vec<(String, String)> {
    let lines = [open(terms("ours", 10, 60), 5, 3_000_000)];
    let retry_after = Some(RetryAfter::from_micros(7_000_000));
    let report = HeaderContent {
        policies: &[],
        admitted,
        retry_after,
        now_unix_us: NOW_US + 500_000,
    };
    let mut headers = with([("retry-after", "Fri, 20 Nov 2026 09:33:01 GMT")]);
    write(
        &mut headers,
        &(dialect, (dialect.form().policies)(&lines)),
        &report,
    );
    fields(&headers)
}

/// Only lists can say that there are more policies than the one that refused. The date is 6.5
/// seconds away.
#[test]
fn policies_are_announced_and_nothing_is_said_of_where_the_client_stands() {
    for &dialect in Dialect::ALL {
        for (admitted, retry_after) in [(true, "Fri, 20 Nov 2026 09:33:01 GMT"), (false, "7")] {
            let mut expected = owned([("retry-after", retry_after)]);
            if dialect == Dialect::Draft11 {
                expected.insert(
                    0,
                    (
                        "ratelimit-policy".to_owned(),
                        r#""ours";q=10;w=60"#.to_owned(),
                    ),
                );
            }
            assert_eq!(
                beside(dialect, admitted),
                expected,
                "{dialect:?}, {admitted}"
            );
        }
    }
}
