//! The table in the documentation is what a recorder receives.

use std::collections::{BTreeMap, BTreeSet};

use metrics::Unit;
use metrics_util::MetricKind;
use throttle_redis::RedisBackend;

use super::recorded::Recorded;

/// A name and a type, then the values of each label.
type Rows = BTreeMap<[String; 2], BTreeMap<String, BTreeSet<String>>>;

/// The words in backquotes.
fn quoted(cell: &str) -> impl Iterator<Item = String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned)
}

/// The rows of the table of metrics.
fn documented() -> Rows {
    let rows = include_str!("../../../src/metrics.rs")
        .lines()
        .filter(|line| line.starts_with("//! | `throttle_redis_"));
    let mut table = Rows::new();
    for row in rows {
        let cells: Vec<_> = row
            .trim_start_matches("//! |")
            .trim_end_matches('|')
            .split('|')
            .map(str::trim)
            .collect();
        let [name, kind, labels, counts, _alert] = cells[..] else {
            panic!("five columns: {row}")
        };
        assert!(!counts.is_empty(), "{row}");
        let name = quoted(name).next().expect("a name");
        let mut values = quoted(labels);
        let label = values.next().map(|label| (label, values.collect()));
        let backend = ("backend".to_owned(), BTreeSet::from(["api".to_owned()]));
        let labels = [backend].into_iter().chain(label).collect();
        // The unit of a counter goes without saying.
        let kind = kind.split(',').next().expect("a type");
        let twice = table.insert([name, kind.to_owned()], labels);
        assert!(twice.is_none(), "{row}");
    }
    table
}

fn received(recorded: &Recorded) -> Rows {
    let (mut rows, mut texts) = (Rows::new(), BTreeMap::new());
    for ((name, labels), received) in recorded.all() {
        let kind = match received.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        assert_eq!(received.unit, Some(Unit::Count), "{name}");
        let text = received.text.expect("a help text");
        assert!(text.len() > 10 && text.ends_with('.'), "{name}: {text}");
        assert_eq!(
            texts.entry(text).or_insert_with(|| name.clone()),
            &name,
            "each has a text of its own"
        );
        let row = rows.entry([name, kind.to_owned()]).or_default();
        for (label, value) in labels {
            row.entry(label).or_default().insert(value);
        }
    }
    rows
}

/// All series exist before the first event; the other tests show that none is added.
#[test]
fn the_table_lists_what_a_recorder_receives_and_nothing_else() {
    let recorded = Recorded::default();
    let _here = recorded.install();
    let single = throttle_redis::Single::new("redis://127.0.0.1:1").expect("a URL");
    let _backend = RedisBackend::builder(single)
        .metrics("api")
        .build()
        .expect("valid options");
    let documented = documented();
    assert!(documented.len() > 10, "the table was found");
    assert_eq!(received(&recorded), documented);
}

/// The series of each label are complete: one for each value.
#[test]
fn every_series_exists_before_the_first_event() {
    let recorded = Recorded::default();
    let _here = recorded.install();
    let single = throttle_redis::Single::new("redis://127.0.0.1:1").expect("a URL");
    let _backend = RedisBackend::builder(single)
        .metrics("api")
        .build()
        .expect("valid options");
    let values = |row: &BTreeMap<String, BTreeSet<String>>| {
        row.values().map(BTreeSet::len).product::<usize>()
    };
    assert_eq!(
        recorded.series().len(),
        documented().values().map(values).sum::<usize>()
    );
}
