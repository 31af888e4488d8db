use std::collections::BTreeMap;
#[cfg(feature = "rules")]
use std::sync::Arc;
use std::sync::Mutex;

use metrics::{
    Counter, Gauge, Histogram, KeyName, Metadata, Recorder, SharedString, Unit, with_local_recorder,
};
use metrics_exporter_prometheus::PrometheusBuilder;
#[cfg(feature = "rules")]
use throttle_core::PolicyName;
use throttle_core::backend::Call;
use throttle_core::{Backend, Key, ManualClock, MemoryBackend, Policy, PolicySet};

use super::handles::{Handles, Named, StoreHandles, candidate_counters};
use super::shape::ShapeMetrics;
#[cfg(feature = "rules")]
use crate::InFlight;
#[cfg(feature = "rules")]
use crate::event::Observed;
use crate::event::{Activity, Event, LayerVersion, Outcome, RequestSet};
use crate::{Constant, Gcra, Rate, ThrottleLayer, limit};

/// What a recorder hears about each name: its kind with its unit and its help, and the kind of its
/// series.
#[derive(Default)]
struct Heard(Mutex<BTreeMap<String, Series>>);

#[derive(Default)]
struct Series {
    described: Option<(&'static str, Option<Unit>, String)>,
    registered: Option<&'static str>,
}

impl Heard {
    fn described(
        &self,
        kind: &'static str,
        name: &KeyName,
        unit: Option<Unit>,
        help: &SharedString,
    ) {
        let described = Some((kind, unit, help.to_string()));
        self.0
            .lock()
            .unwrap()
            .entry(name.as_str().to_owned())
            .or_default()
            .described = described;
    }

    fn registered(&self, kind: &'static str, key: &metrics::Key) {
        self.0
            .lock()
            .unwrap()
            .entry(key.name().to_owned())
            .or_default()
            .registered = Some(kind);
    }
}

impl Recorder for Heard {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.described("counter", &name, unit, &help);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.described("gauge", &name, unit, &help);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.described("histogram", &name, unit, &help);
    }

    fn register_counter(&self, key: &metrics::Key, _: &Metadata<'_>) -> Counter {
        self.registered("counter", key);
        Counter::noop()
    }

    fn register_gauge(&self, key: &metrics::Key, _: &Metadata<'_>) -> Gauge {
        self.registered("gauge", key);
        Gauge::noop()
    }

    fn register_histogram(&self, key: &metrics::Key, _: &Metadata<'_>) -> Histogram {
        self.registered("histogram", key);
        Histogram::noop()
    }
}

/// As dashboards and exporters show them beside the numbers.
#[test]
fn each_metric_has_its_kind_its_unit_and_a_help_of_its_own() {
    let heard = Heard::default();
    with_local_recorder(&heard, || {
        let named = Named {
            name: "per-user".to_owned(),
            looks_up: true,
            bans: true,
            queues: true,
            ..Named::default()
        };
        let permits = ["jobs".to_owned()];
        Handles::register("api", &[named], (&permits, true));
        StoreHandles::register("api");
        let _ = candidate_counters("api", "v2");
        drop(metrics::gauge!("throttle_keys", "layer" => "api"));
        ShapeMetrics::registered("calls".to_owned()).with(|metrics| metrics.sent.increment(1));
    });
    let heard = heard.0.into_inner().unwrap();
    assert_eq!(heard.len(), 20, "{:?}", heard.keys());
    let mut helps = Vec::new();
    for (
        name,
        Series {
            described,
            registered,
        },
    ) in heard
    {
        let (kind, unit, help) = described.unwrap_or_else(|| panic!("{name} has no help"));
        let usual = match name.rsplit_once('_').unwrap().1 {
            "total" => ("counter", Some(Unit::Count)),
            "seconds" => ("histogram", Some(Unit::Seconds)),
            _ => ("gauge", Some(Unit::Count)),
        };
        assert_eq!(
            (kind, unit, registered),
            (usual.0, usual.1, Some(kind)),
            "{name}"
        );
        helps.push(help);
    }
    helps.sort_unstable();
    helps.dedup();
    assert_eq!(helps.len(), 20, "{helps:?}");
    assert!(helps.iter().all(|help| help.ends_with('.')), "{helps:?}");
}

#[test]
fn corrections_are_counted_by_their_kind() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let limits = limit("p", Gcra::new(Rate::per_second(1))).by(Constant);
    let layer = ThrottleLayer::new(limits.settled_later())
        .unwrap()
        .metrics("api");
    with_local_recorder(&recorder, || {
        for correction in [
            Activity::Refunded { limit: 0, units: 3 },
            Activity::Charged { limit: 0, units: 4 },
            Activity::SettledShort { limit: 0, units: 5 },
        ] {
            layer.observers().happened(correction);
        }
    });
    let text = recorder.handle().render();
    let units = |kind| {
        value(
            &text,
            &format!(r#"throttle_units_total{{layer="api",policy="p",kind="{kind}"}}"#),
        )
    };
    assert_eq!(
        ["refunded", "charged", "settled_short"].map(units),
        [3, 4, 5]
    );
}

/// Permits that were taken under the limits before are returned under those that replace them.
#[cfg(feature = "rules")]
#[test]
fn permits_in_flight_count_on_by_their_names_when_limits_are_replaced() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let layer = ThrottleLayer::new(limit("exports", InFlight::new(9)).by(Constant))
        .unwrap()
        .metrics("api");
    let permits = ["new", "exports"].map(|name| PolicyName::new(name).unwrap());
    let of = Observed {
        policies: Arc::default(),
        applied: Arc::default(),
        permits: permits.into(),
    };
    with_local_recorder(&recorder, || {
        layer.observers().each(|former| {
            former.happened(&Activity::TookPermits {
                limit: 0,
                permits: 5,
            });
            let renewed = former
                .renewed(&of, &of, &crate::event::Observers::default())
                .unwrap();
            renewed.happened(&Activity::TookPermits {
                limit: 0,
                permits: 1,
            });
            renewed.happened(&Activity::ReturnedPermits {
                limit: 1,
                permits: 2,
            });
        });
    });
    let text = recorder.handle().render();
    let value = |name| {
        value(
            &text,
            &format!(r#"throttle_in_flight{{layer="api",name="{name}"}}"#),
        )
    };
    assert_eq!(["new", "exports"].map(value), [1, 3]);
}

/// What a series has counted.
fn value(rendered: &str, series: &str) -> u64 {
    let value = rendered
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value
        .unwrap_or_else(|| panic!("no {series} in {rendered}"))
        .parse()
        .unwrap()
}

#[test]
fn audited_policy_counts_what_it_would_refuse_and_others_as_ever() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let of = |name| Policy::new(name, Gcra::new(Rate::per_day(1))).unwrap();
    let limits = ["old", "new"].map(|name| limit(name, Gcra::new(Rate::per_day(1))).by(Constant));
    let [old, new] = limits;
    let layer = ThrottleLayer::new(crate::all([old, new.audit()]))
        .unwrap()
        .metrics("api");
    let policies = [of("old"), of("new").audit()];
    let store = MemoryBackend::builder()
        .clock(ManualClock::default())
        .build();
    let all = throttle_core::PolicyTree::All(policies.clone().map(Into::into).to_vec());
    let set = store.prepare(PolicySet::new(all).unwrap()).unwrap();
    let (parts, ()) = http::Request::new(()).into_parts();
    let key = || Call::from(Key::from("ada"));
    with_local_recorder(&recorder, || {
        for calls in [[key(), key()], [Call::SKIP, key()], [key(), Call::SKIP]] {
            let decision = store.decide_now(&set, &calls);
            let outcome = if decision.is_admitted() {
                Outcome::Admitted
            } else {
                Outcome::Refused
            };
            let event = Event {
                outcome,
                policies: &policies,
                decision: Some(&decision),
                near: &[],
                set: RequestSet {
                    policies: &policies,
                    decision: Some(&decision),
                    calls: &calls,
                    places: &[],
                },
                version: &LayerVersion::default(),
                parts: &parts,
            };
            layer.observers().each(|observer| observer.decided(&event));
        }
    });
    let text = recorder.handle().render();
    let of = |policy: &str, result: &str| {
        value(
            &text,
            &format!(
                r#"throttle_decisions_total{{layer="api",policy="{policy}",result="{result}"}}"#
            ),
        )
    };
    let results = ["admitted", "near"];
    assert_eq!(
        (
            results.map(|result| of("old", result)),
            of("old", "refused")
        ),
        ([0, 1], 1)
    );
    assert_eq!(
        (
            results.map(|result| of("new", result)),
            of("new", "would_refuse")
        ),
        ([0, 1], 1)
    );
    assert!(
        !text.contains(r#"policy="new",result="refused""#)
            && !text.contains(r#"policy="old",result="would"#)
    );
}

/// A class is near its limit by what it can have, and not by what the highest one can have.
#[test]
fn admitted_request_of_a_class_is_near_by_what_is_beyond_its_reserve() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let gcra = || Gcra::new(Rate::per_hour(200)).burst(200);
    let layer = ThrottleLayer::new(limit("p", gcra()).by(Constant))
        .unwrap()
        .metrics("api");
    let policies = [Policy::new("p", gcra()).unwrap()];
    let store = MemoryBackend::builder()
        .clock(ManualClock::default())
        .build();
    let set = store
        .prepare(PolicySet::new(policies[0].clone()).unwrap())
        .unwrap();
    let calls = [Call::from(Key::from("ada")).reserving(170)];
    let (parts, ()) = http::Request::new(()).into_parts();
    with_local_recorder(&recorder, || {
        for _ in 0..30 {
            let decision = store.decide_now(&set, &calls);
            let event = Event {
                outcome: Outcome::Admitted,
                policies: &policies,
                decision: Some(&decision),
                parts: &parts,
                near: &[],
                set: RequestSet {
                    policies: &policies,
                    decision: Some(&decision),
                    calls: &calls,
                    places: &[],
                },
                version: &LayerVersion::default(),
            };
            layer.observers().each(|observer| observer.decided(&event));
        }
    });
    let text = recorder.handle().render();
    let value = |result| {
        value(
            &text,
            &format!(r#"throttle_decisions_total{{layer="api",policy="p",result="{result}"}}"#),
        )
    };
    assert_eq!(
        ["admitted", "near"].map(value),
        [23, 7],
        "at most six of thirty are left"
    );
}
