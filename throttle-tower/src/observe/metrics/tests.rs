use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use metrics::{
    Counter, Gauge, Histogram, KeyName, Metadata, Recorder, SharedString, Unit, with_local_recorder,
};
use metrics_exporter_prometheus::PrometheusBuilder;
use throttle_core::backend::Call;
use throttle_core::{Backend, Key, MemoryBackend};

use super::handles::{Handles, keys_gauge};
use super::shape::ShapeMetrics;
use super::throttle::Metrics;
use crate::event::{Activity, Event, LayerInfo, Observer, Outcome, RequestSet};
use crate::failing_backend::FailingBackend;
use crate::limit::{Ban, IntoLimitTree};
use crate::{Audit, Constant, Gcra, InFlight, OnError, Rate, ThrottleLayer, all, limit, plans};

fn layer(limits: impl IntoLimitTree) -> ThrottleLayer {
    ThrottleLayer::new(limits).unwrap()
}

fn info<B: Backend>(layer: &ThrottleLayer<B>) -> LayerInfo {
    layer.current.with(|shared| shared.version.info().clone())
}

/// Reports a request that the limits decide by these calls.
fn report(layer: &ThrottleLayer, observer: &dyn Observer, calls: &[Call]) {
    layer.current.with(|shared| {
        let decision = shared.backend.decide_now(&shared.prepared, calls);
        let outcome = match decision.is_admitted() {
            true => Outcome::Admitted,
            false => Outcome::Refused,
        };
        observer.decided(&Event {
            outcome,
            decision: Some(&decision),
            parts: &http::Request::new(()).into_parts().0,
            near: &[],
            set: RequestSet {
                policies: <MemoryBackend>::set(&shared.prepared).policies(),
                calls,
                indices: &[0, 1, 2, 3],
            },
            layer: shared.version.info(),
        });
    });
}

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
        let plans = plans("per-user", [("free", Gcra::new(Rate::per_second(1)))])
            .by(Constant)
            .lookup(async |_: String| Some("free"))
            .unknown("free");
        let banning = limit("banning", Gcra::new(Rate::per_second(1)))
            .by(Constant)
            .ban(Ban::after(5).even_if_spoofable())
            .wait_up_to(Duration::from_secs(1));
        let layer = layer(all((
            plans,
            banning,
            limit("in-flight", InFlight::new(1)).by(Constant),
        )));
        Handles::register("api", &info(&layer));
        let plain = limit("plain", Gcra::new(Rate::per_second(1))).by(Constant);
        let failing = ThrottleLayer::builder(plain.on_error(OnError::Closed))
            .backend(FailingBackend)
            .build();
        Handles::register("failing", &info(&failing.unwrap()));
        drop(keys_gauge("api"));
        ShapeMetrics::registered("calls".to_owned()).with(|metrics| metrics.sent.increment(1));
    });
    let heard = heard.0.into_inner().unwrap();
    assert_eq!(heard.len(), 19, "{:?}", heard.keys());
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
    assert_eq!(helps.len(), 19, "{helps:?}");
    assert!(helps.iter().all(|help| help.ends_with('.')), "{helps:?}");
}

#[test]
fn corrections_are_counted_by_their_kind() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let limits = limit("p", Gcra::new(Rate::per_second(1))).by(Constant);
    let layer = layer(limits.settled_later());
    let metrics = Metrics::new("api").built(&info(&layer), None).unwrap();
    with_local_recorder(&recorder, || {
        for correction in [
            Activity::Refunded { limit: 0, units: 3 },
            Activity::Charged { limit: 0, units: 4 },
            Activity::SettledShort { limit: 0, units: 5 },
        ] {
            metrics.happened(&correction);
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
#[test]
fn permits_in_flight_count_on_by_their_names_when_limits_are_replaced() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let permits = |name: &str| limit(name, InFlight::new(9)).by(Constant);
    let (former, next) = (
        layer(permits("exports")),
        layer(all([permits("new"), permits("exports")])),
    );
    let metrics = Metrics::new("api");
    let one = metrics.built(&info(&former), None).unwrap();
    let other = metrics.built(&info(&next), Some(&info(&former))).unwrap();
    with_local_recorder(&recorder, || {
        let took = |limit, permits| Activity::TookPermits { limit, permits };
        one.happened(&took(0, 5));
        other.happened(&took(0, 1));
        let (limit, permits) = (1, 2);
        other.happened(&Activity::ReturnedPermits { limit, permits });
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
    let limits = ["old", "new"].map(|name| limit(name, Gcra::new(Rate::per_day(1))).by(Constant));
    let [old, new] = limits;
    let layer = layer(all([old, new.audit(Audit::Silent)]));
    let metrics = Metrics::new("api").built(&info(&layer), None).unwrap();
    let key = || Call::from(Key::from("ada"));
    with_local_recorder(&recorder, || {
        for calls in [[key(), key()], [Call::SKIP, key()], [key(), Call::SKIP]] {
            report(&layer, &*metrics, &calls);
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
    let gcra = Gcra::new(Rate::per_hour(200)).burst(200);
    let layer = layer(limit("p", gcra).by(Constant));
    let metrics = Metrics::new("api").built(&info(&layer), None).unwrap();
    let calls = [Call::from(Key::from("ada")).reserving(170)];
    with_local_recorder(&recorder, || {
        (0..30).for_each(|_| report(&layer, &*metrics, &calls));
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
