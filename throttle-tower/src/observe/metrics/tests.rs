use std::collections::BTreeMap;
use std::sync::Mutex;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit, with_local_recorder};

use super::handles::Handles;
use super::shape::ShapeMetrics;

/// What a recorder is told about each name: its kind with its unit and its help, and the kind of its series.
#[derive(Default)]
struct Told(Mutex<BTreeMap<String, Series>>);

#[derive(Default)]
struct Series {
    described: Option<(&'static str, Option<Unit>, String)>,
    registered: Option<&'static str>,
}

impl Told {
    fn described(&self, kind: &'static str, name: &KeyName, unit: Option<Unit>, help: &SharedString) {
        let described = Some((kind, unit, help.to_string()));
        self.0.lock().unwrap().entry(name.as_str().to_owned()).or_default().described = described;
    }

    fn registered(&self, kind: &'static str, key: &Key) {
        self.0.lock().unwrap().entry(key.name().to_owned()).or_default().registered = Some(kind);
    }
}

impl Recorder for Told {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.described("counter", &name, unit, &help);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.described("gauge", &name, unit, &help);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.described("histogram", &name, unit, &help);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.registered("counter", key);
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.registered("gauge", key);
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.registered("histogram", key);
        Histogram::noop()
    }
}

/// As dashboards and exporters show them beside the numbers.
#[test]
fn each_metric_has_its_kind_its_unit_and_a_help_of_its_own() {
    let told = Told::default();
    with_local_recorder(&told, || {
        Handles::register("api", &[("per-user".to_owned(), true)], &["jobs".to_owned()]);
        ShapeMetrics::new("calls".to_owned()).sent();
    });
    let told = told.0.into_inner().unwrap();
    assert_eq!(told.len(), 16, "{:?}", told.keys());
    let mut helps = Vec::new();
    for (name, Series { described, registered }) in told {
        let (kind, unit, help) = described.unwrap_or_else(|| panic!("{name} has no help"));
        let usual = match name.rsplit_once('_').unwrap().1 {
            "total" => ("counter", Some(Unit::Count)),
            "seconds" => ("histogram", Some(Unit::Seconds)),
            _ => ("gauge", Some(Unit::Count)),
        };
        assert_eq!((kind, unit, registered), (usual.0, usual.1, Some(kind)), "{name}");
        helps.push(help);
    }
    helps.sort_unstable();
    helps.dedup();
    assert_eq!(helps.len(), 16, "{helps:?}");
    assert!(helps.iter().all(|help| help.ends_with('.')), "{helps:?}");
}
