//! Which recorder receives what, and under which name.

use throttle_test_servers::Server;

use super::recorded::{Recorded, expected};
use super::{builder, window};
use crate::common::{LONGEST_DEADLINE, LimitTree, until};

#[tokio::test]
async fn a_recorder_that_is_installed_late_receives_all_that_follows() {
    let (recorded, server) = (Recorded::default(), Server::start());
    let limits = LimitTree::new(
        &builder(&server).build().expect("valid options"),
        window(1_000),
    );
    for _ in 0..2 {
        limits.take("ada", 1).await;
    }
    assert!(recorded.series().is_empty());
    let _here = recorded.install();
    for _ in 0..3 {
        limits.take("ada", 1).await;
    }
    let three = expected([
        ("decisions_total", 3),
        ("calls_total ok", 3),
        ("batch_decisions count", 3),
        ("batch_decisions sum", 3),
        ("sent_calls_total", 3),
        ("breakers closed", 1),
    ]);
    assert_eq!(recorded.of("api"), three);
}

#[tokio::test]
async fn a_backend_without_a_name_reports_nothing() {
    let (recorded, server) = (Recorded::default(), Server::start());
    let _here = recorded.install();
    let single = throttle_redis::Single::new(&server.url()).expect("a URL");
    let backend = throttle_redis::RedisBackend::builder(single)
        .deadline(LONGEST_DEADLINE)
        .build();
    let limits = LimitTree::new(&backend.expect("valid options"), window(1_000));
    limits.take("ada", 1).await;
    assert!(recorded.series().is_empty());
}

#[tokio::test]
async fn backends_are_told_apart_by_their_names_and_those_of_one_name_add_up() {
    let (recorded, server) = (Recorded::default(), Server::start());
    let _here = recorded.install();
    let limits = |name: &str| {
        LimitTree::new(
            &builder(&server)
                .metrics(name)
                .build()
                .expect("valid options"),
            window(1_000),
        )
    };
    let (first, second, other) = (limits("api"), limits("api"), limits("\"other\"\n"));
    for limits in [&first, &second, &second, &other] {
        limits.take("ada", 1).await;
    }
    assert_eq!(recorded.value("api", "decisions_total"), 3);
    assert_eq!(recorded.value("api", "breakers closed"), 2);
    assert_eq!(recorded.value("\"other\"\n", "decisions_total"), 1);
    drop((first, other));
    // The task that opened the connection may hold the backend for a moment.
    until("backends that are gone", || async {
        recorded.value("api", "breakers closed") == 1
            && recorded.value("\"other\"\n", "breakers closed") == 0
    })
    .await;
}
