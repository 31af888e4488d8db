//! A recorder for the thread of one test, and what it has received.

#![allow(dead_code, reason = "the unit tests use a part of this")]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use metrics::{LocalRecorderGuard, SharedString, Unit};
use metrics_util::MetricKind;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

#[derive(Default)]
pub(crate) struct Recorded {
    recorder: DebuggingRecorder,
    /// A snapshot empties the recorder.
    received: RefCell<BTreeMap<Series, Received>>,
}

/// A name, and the values of the labels by name.
pub(crate) type Series = (String, BTreeMap<String, String>);

#[derive(Clone)]
pub(crate) struct Received {
    pub(crate) kind: MetricKind,
    pub(crate) unit: Option<Unit>,
    pub(crate) text: Option<SharedString>,
    /// The total of a counter, the value of a gauge.
    value: i64,
    /// The values of a histogram.
    pub(crate) values: Vec<i64>,
}

impl Recorded {
    /// Records what is registered on this thread from now on.
    pub(crate) fn install(&self) -> LocalRecorderGuard<'_> {
        metrics::set_default_local_recorder(&self.recorder)
    }

    /// All series.
    pub(crate) fn all(&self) -> BTreeMap<Series, Received> {
        let mut all = self.received.borrow_mut();
        for (key, unit, text, value) in self.recorder.snapshotter().snapshot().into_vec() {
            let (kind, key) = key.into_parts();
            let labels = key
                .labels()
                .map(|label| (label.key().to_owned(), label.value().to_owned()))
                .collect();
            let new = Received {
                kind,
                unit,
                text,
                value: 0,
                values: Vec::new(),
            };
            let received = all.entry((key.name().to_owned(), labels)).or_insert(new);
            match value {
                DebugValue::Counter(more) => received.value += i64::try_from(more).expect("few"),
                DebugValue::Gauge(change) => received.value += change.into_inner() as i64,
                DebugValue::Histogram(more) => {
                    received
                        .values
                        .extend(more.into_iter().map(|value| value.into_inner() as i64));
                }
            }
        }
        all.clone()
    }

    /// All series without their values.
    pub(crate) fn series(&self) -> BTreeSet<Series> {
        self.all().into_keys().collect()
    }

    /// What is not zero of one backend, as `name` or `name value-of-its-label`, without the prefix
    /// of all names. A histogram has a `count` and a `sum`.
    pub(crate) fn of(&self, backend: &str) -> BTreeMap<String, i64> {
        let mut seen = BTreeMap::new();
        for ((name, mut labels), received) in self.all() {
            if labels.remove("backend").as_deref() != Some(backend) {
                continue;
            }
            let name = name
                .strip_prefix("throttle_redis_")
                .expect("the prefix of all names");
            let name = labels
                .values()
                .fold(name.to_owned(), |name, value| format!("{name} {value}"));
            if received.kind == MetricKind::Histogram {
                seen.insert(
                    format!("{name} count"),
                    i64::try_from(received.values.len()).expect("few"),
                );
                seen.insert(format!("{name} sum"), received.values.iter().sum());
            } else {
                seen.insert(name, received.value);
            }
        }
        seen.retain(|_, value| *value != 0);
        seen
    }

    /// One value of [`of`](Self::of).
    pub(crate) fn value(&self, backend: &str, name: &str) -> i64 {
        self.of(backend).remove(name).unwrap_or(0)
    }
}

/// What [`Recorded::of`] should be.
pub(crate) fn expected<const N: usize>(values: [(&str, i64); N]) -> BTreeMap<String, i64> {
    values.map(|(name, value)| (name.to_owned(), value)).into()
}
