//! A cluster that loses a master, or moves slots.

use std::ops::RangeInclusive;
use std::time::Duration;

use throttle_core::BackendErrorKind;
use throttle_redis::{RedisBackend, RedisBuilder};
use throttle_test_servers::{Cluster, slot_of};

use crate::app::{Heard, Mode, Path, Sample};
use crate::course::Course;
use crate::place;
use crate::report::Report;

/// The node timeout of the test clusters.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);
/// An election, the spread of its result, and the client's switch to the new master: some 3 seconds
/// where nothing else runs, 4.4 where a compiler does. The load continues for a second more: a
/// client that does not switch is degraded until then.
const ELECTION: Duration = Duration::from_secs(6);
/// Acknowledged charges that a failover may lose, because a replica is a moment behind its master.
const LOST: u64 = 5;

const TAG: &str = "faults";

pub(crate) fn clustered(cluster: &Cluster) -> RedisBuilder {
    let urls = cluster.urls();
    RedisBackend::builder(
        throttle_redis::Cluster::new(urls.iter().map(String::as_str)).expect("URLs"),
    )
}

/// The slots of a request's keys, if keys are spread.
fn slots(mode: Mode, sample: &Sample) -> Vec<u16> {
    let name = |policy: &&str| {
        let other = if *policy == "far" { "other-" } else { "" };
        format!("{}{{b{other}{}}}{policy}:", mode.prefix(), sample.key)
    };
    sample
        .path
        .policies()
        .iter()
        .map(name)
        .map(slot_of)
        .collect()
}

/// The store served all keys again within the time that a failover may take.
fn check_failover(report: &Report, fault: &str) {
    for run in &report.runs {
        let (degraded, of) = report.degraded_from(run, NODE_TIMEOUT + ELECTION);
        // A stall of the machine may make some answers late. Of a client that did not switch, a
        // quarter would be degraded at least: of most requests one key in three was the master's.
        assert!(
            of > 100 && degraded <= of / 10,
            "{fault}, {:?}: {degraded} of {of} requests degraded when it must be over",
            run.app.mode
        );
    }
}

/// Requests about other shards than the owner of these slots were not degraded.
fn check_others(report: &Report, owned: &[RangeInclusive<u16>]) {
    for run in &report.runs {
        let is_owned = |slot: &u16| owned.iter().any(|own| own.contains(slot));
        let elsewhere = run
            .samples
            .iter()
            .filter(|sample| !slots(run.app.mode, sample).iter().any(is_owned));
        let (degraded, well): (Vec<_>, Vec<_>) = elsewhere.partition(|sample| sample.is_degraded());
        // A stall of the machine may make some answers late, and open a breaker for a moment.
        assert!(
            well.len() > 500 && degraded.len() <= well.len() / 20,
            "about other shards: {degraded:?}"
        );
    }
}

pub(crate) fn check_charges(report: &Report, cluster: &Cluster, lost: u64) {
    let masters: Vec<_> = cluster
        .masters()
        .into_iter()
        .map(|node| cluster.node(node))
        .collect();
    report.check_charges(&masters, lost);
}

/// A load on a cluster of which one master is lost, until another one must have taken its place.
async fn through(fault: &str, backend: impl Fn() -> RedisBuilder, lose: impl Fn()) -> Report {
    let report = Course::changed(backend, NODE_TIMEOUT + ELECTION, lose, || ()).await;
    report.check(fault);
    report.check_breaker(fault);
    check_failover(&report, fault);
    report
}

const DEAD: usize = 1;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn master_killed_with_keys_spread() {
    let _place = place().await;
    let cluster = Cluster::start();
    let owned = cluster.slots_of(DEAD);
    let spread = || clustered(&cluster).per_key_slot();
    let report = through("a master killed, keys spread", spread, || {
        cluster.node(DEAD).kill();
    })
    .await;
    cluster.wait_for_failover_of(*owned[0].start(), DEAD);
    check_charges(&report, &cluster, LOST);
    check_others(&report, &owned);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn master_killed_with_keys_together() {
    let _place = place().await;
    let cluster = Cluster::start();
    let together = || clustered(&cluster).single_slot(TAG);
    let dead = cluster.master_of(slot_of(TAG));
    let report = through("the master of all keys killed", together, || {
        cluster.node(dead).kill();
    })
    .await;
    check_charges(&report, &cluster, LOST);
}

/// The node holds its connections open and answers nothing; its breaker opens by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn master_stopped_with_keys_spread() {
    let _place = place().await;
    let cluster = Cluster::start();
    let owned = cluster.slots_of(DEAD);
    let spread = || clustered(&cluster).per_key_slot();
    let report = through("a master stopped, keys spread", spread, || {
        cluster.node(DEAD).stop();
    })
    .await;
    check_others(&report, &owned);
}

/// Longer than the pause of a server that writes the slot map to a busy disk. Nothing else in a
/// migration depends on time.
const UNHURRIED: Duration = Duration::from_secs(2);

/// Redirections are followed, and no request is degraded by them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_migrated_under_load() {
    let _place = place().await;
    let cluster = Cluster::start();
    // With all keys in one slot, the slots' new servers do not have the scripts.
    for together in [false, true] {
        let backend = || {
            if together {
                clustered(&cluster).single_slot(TAG)
            } else {
                clustered(&cluster).per_key_slot()
            }
        };
        let slot =
            |mode: Mode, key: u8| slot_of(format!("{}{{bkey-{key:02}}}wide:", mode.prefix()));
        let moved: Vec<u16> = if together {
            vec![slot_of(TAG)]
        } else {
            Mode::ALL
                .into_iter()
                .flat_map(|mode| (0..6).map(move |key| slot(mode, key)))
                .collect()
        };
        let fault = async |course: &Course| {
            for slot in &moved {
                let from = cluster.master_of(*slot);
                cluster.migrate_slots(from, (from + 1) % 3, *slot..=*slot);
            }
            course.run_for(Duration::from_millis(300)).await;
        };
        let report = Course::through(
            || backend().deadline(UNHURRIED),
            fault,
            Duration::from_millis(300),
        )
        .await;
        report.check_answers(if together {
            "the slot of all keys migrated"
        } else {
            "18 slots migrated, keys spread"
        });
        assert_eq!(
            report.degraded(),
            0,
            "every redirection is followed to an answer"
        );
        for run in &report.runs {
            assert!(
                run.app.backend.stats().repeated > 0,
                "{:?}: no request was redirected",
                run.app.mode
            );
        }
        report.check_most_in_time();
        check_charges(&report, &cluster, 0);
        for node in cluster.masters() {
            // Start the next round from zero.
            cluster.node(node).command(&["FLUSHALL"]);
        }
    }
}

/// While a slot is open and its keys are on both sides, a set of two policies cannot be decided. It
/// waits, or is degraded, and is never charged in part. A single policy is decided at the server
/// that has its key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_half_migrated() {
    let _place = place().await;
    let cluster = Cluster::start();
    let slot = slot_of(TAG);
    let migrate = async |_: &Course| {
        let from = cluster.master_of(slot);
        let to = (from + 1) % 3;
        cluster.open_slot(from, to, slot);
        while cluster.move_keys(from, to, slot, 10) > 0 {
            std::thread::sleep(Duration::from_millis(30));
        }
        cluster.close_slot(from, to, slot);
    };
    let backend = || clustered(&cluster).single_slot(TAG).deadline(UNHURRIED / 8);
    let report = Course::through(backend, migrate, Duration::from_millis(800)).await;
    report.check_answers("a slot migrated key by key");
    report.check_return("a slot migrated key by key");
    for run in &report.runs {
        let stats = run.app.backend.stats();
        assert_eq!(
            run.unknown_though_answered(),
            0,
            "every such answer proves that nothing was charged"
        );
        assert!(stats.repeated > 0, "{:?}: no answer was such", run.app.mode);
        let single = |sample: &Sample| {
            let unavailable = matches!(
                sample.heard,
                Heard::Degraded {
                    kind: BackendErrorKind::Unavailable,
                    ..
                }
            );
            unavailable && matches!(sample.path, Path::Wide | Path::Tiny)
        };
        assert_eq!(
            run.degraded(single),
            0,
            "{:?}: a single policy was not found where its key is",
            run.app.mode
        );
    }
    check_charges(&report, &cluster, 0);
}
