//! What an observer of the program's own sees.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use http::{Request, Response};
use throttle_core::{BackendErrorKind, Key, PolicyName};
use throttle_rules::{Registry, Rules};
use throttle_tower::{
    Activity, ClientIp, Constant, Event, Gcra, Header, InFlight, LayerInfo, Limit, LimitState,
    Observer, OnError, OnMissing, Outcome, Rate, ThrottleLayer, Warning, all, limit, plans,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::common::{Remote, Text, get, keyed, memory, send_each, shared};

/// Keeps what it was called with.
#[derive(Default)]
struct Journal {
    layers: Mutex<Vec<LayerInfo>>,
    activities: Mutex<Vec<Activity>>,
}

impl Observer for Journal {
    fn built(&self, layer: &LayerInfo, _: Option<&LayerInfo>) -> Option<Arc<dyn Observer>> {
        self.layers.lock().unwrap().push(layer.clone());
        None
    }

    fn happened(&self, activity: &Activity) {
        self.activities.lock().unwrap().push(*activity);
    }
}

impl Journal {
    fn activities(&self) -> Vec<Activity> {
        std::mem::take(&mut *self.activities.lock().unwrap())
    }
}

fn names(layer: &LayerInfo) -> Vec<String> {
    let names = layer.limits().iter();
    names.map(|limit| limit.name.as_str().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn event_lists_the_limits_that_apply_by_their_indices_in_the_layer() {
    let limits = all((
        shared("elsewhere", 9).when(|parts| parts.uri.path() == "/elsewhere"),
        shared("all", 9).priority([("high", 0), ("low", 4)], |_| "low"),
        limit("per-key", Gcra::new(Rate::per_day(7)))
            .by(Header::new("x-api-key"))
            .cost(2),
    ));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let layer = ThrottleLayer::builder(limits)
        .backend(memory())
        .observe(move |event: &Event<'_>| {
            for limit in event.limits() {
                let Some(units) = limit.units() else {
                    continue;
                };
                let name = limit.info.name.as_str().to_owned();
                let counts = [
                    units.capacity,
                    units.cost,
                    units.reserve,
                    units.status.remaining(),
                ];
                let class = limit.class().map(str::to_owned);
                let seen = (limit.index, name, counts, class, units.key.is_some());
                log.lock().unwrap().push(seen);
            }
        })
        .build()
        .unwrap();
    send_each(&layer, [keyed("ada")]).await;
    assert_eq!(
        *seen.lock().unwrap(),
        [
            (
                1,
                "all".to_owned(),
                [9, 1, 4, 4],
                Some("low".to_owned()),
                true
            ),
            (2, "per-key".to_owned(), [7, 2, 0, 5], None, true),
        ]
    );
}

/// The indices of limits on rates are then not those of their policies.
#[tokio::test(start_paused = true)]
async fn limit_on_requests_in_flight_may_stand_first_in_a_layer() {
    let warned = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&warned);
    let without_key = |limit: Limit| limit.on_missing(OnMissing::Skip);
    let limits = all((
        limit("jobs", InFlight::new(2)).by(Constant),
        without_key(limit("per-ip", Gcra::new(Rate::per_day(7))).by(ClientIp::peer())),
        shared("all", 9),
    ));
    let journal = Arc::new(Journal::default());
    let layer = ThrottleLayer::builder(limits)
        .backend(memory())
        .observe(Arc::clone(&journal))
        .on_warning(move |warning| log.lock().unwrap().push(warning.clone()))
        .build()
        .unwrap();
    assert_eq!(names(&layer.info()), ["jobs", "per-ip", "all"]);
    let (limit, permits) = (0, 1);
    let (head, _) = get().into_parts();

    let report = layer.peek(&head).await.unwrap().unwrap();
    let states = report.limits().map(|limit| match limit.state {
        LimitState::NoKey(None) => (limit.index, "no key"),
        LimitState::Units(_) => (limit.index, "units"),
        LimitState::Permits { .. } => (limit.index, "permits"),
        _ => (limit.index, "another"),
    });
    let expected = [(0, "permits"), (1, "no key"), (2, "units")];
    assert_eq!(states.collect::<Vec<_>>(), expected);

    let call = layer.call_of("all", &head).await;
    assert!(call.is_some_and(|call| call.key() == Some(&Key::CONSTANT)));

    send_each(&layer, [get()]).await;
    assert_eq!(
        journal.activities(),
        [
            Activity::TookPermits { limit, permits },
            Activity::ReturnedPermits { limit, permits },
        ]
    );
    let policy = PolicyName::new("per-ip").unwrap();
    assert_eq!(*warned.lock().unwrap(), [Warning::PeerUnknown { policy }]);
}

#[tokio::test(start_paused = true)]
async fn activities_name_limits_by_their_indices_in_the_layer() {
    let limits = all((
        limit("jobs", InFlight::new(2)).by(Constant),
        shared("elsewhere", 9).when(|parts| parts.uri.path() == "/elsewhere"),
        shared("all", 9).refund_if(limit::successful),
    ));
    let journal = Arc::new(Journal::default());
    let layer = ThrottleLayer::builder(limits)
        .observe(Arc::clone(&journal))
        .build()
        .unwrap();
    assert_eq!(
        names(&journal.layers.lock().unwrap()[0]),
        ["jobs", "elsewhere", "all"]
    );
    send_each(&layer, [get()]).await;
    let (limit, permits, units) = (0, 1, 1);
    assert_eq!(
        journal.activities(),
        [
            Activity::TookPermits { limit, permits },
            Activity::Refunded { limit: 2, units },
            Activity::ReturnedPermits { limit, permits },
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn observers_see_the_lookups_of_a_peek_and_nothing_else() {
    let journal = Arc::new(Journal::default());
    let per_user = plans("per-user", [("free", Gcra::new(Rate::per_day(9)))])
        .by(Header::new("x-api-key"))
        .lookup(async |_: String| Some("free"))
        .unknown("free");
    let limits = all((per_user, limit("jobs", InFlight::new(2)).by(Constant)));
    let layer = ThrottleLayer::builder(limits)
        .observe(Arc::clone(&journal))
        .build()
        .unwrap();
    let (head, _) = keyed("ada").into_parts();
    assert!(layer.peek(&head).await.unwrap().unwrap().is_admitted());
    let (limit, result) = (0, "found");
    assert_eq!(journal.activities(), [Activity::LookedUp { limit, result }]);
}

#[tokio::test(start_paused = true)]
async fn lookups_and_answers_of_a_store_are_activities() {
    let per_user = plans("per-user", [("free", Gcra::new(Rate::per_day(9)))])
        .by(Header::new("x-api-key"))
        .lookup(async |_: String| Some("free"))
        .unknown("free");
    let journal = Arc::new(Journal::default());
    let remote = Remote::faltering(false);
    let layer = ThrottleLayer::builder(all((shared("all", 9), per_user)))
        .on_error(OnError::Closed)
        .observe(Arc::clone(&journal))
        .backend(remote.clone())
        .build()
        .unwrap();
    send_each(&layer, [keyed("ada")]).await;
    remote.trouble(Some(BackendErrorKind::Unavailable));
    send_each(&layer, [keyed("ada")]).await;
    let lookups = ["found", "remembered"].map(|result| Activity::LookedUp { limit: 1, result });
    let failures = [None, Some(BackendErrorKind::Unavailable)];
    let activities = journal.activities();
    let is_lookup = |activity: &Activity| matches!(activity, Activity::LookedUp { .. });
    assert_eq!(
        activities
            .iter()
            .copied()
            .filter(is_lookup)
            .collect::<Vec<_>>(),
        lookups
    );
    let answers = activities.iter().filter_map(|activity| match activity {
        Activity::Answered { failed, .. } => Some(*failed),
        _ => None,
    });
    assert_eq!(answers.collect::<Vec<_>>(), failures);
}

/// The names of the limits of each version, and its requests.
type Versions = Arc<Mutex<Vec<(Vec<String>, usize)>>>;

/// Counts requests by version of the limits.
#[derive(Default)]
struct ByVersion(Versions);

struct OfVersion {
    counts: Versions,
    index: usize,
}

impl Observer for ByVersion {
    fn built(&self, layer: &LayerInfo, former: Option<&LayerInfo>) -> Option<Arc<dyn Observer>> {
        let mut counts = self.0.lock().unwrap();
        let last = counts.last().map(|(names, _)| names.clone());
        assert_eq!(former.map(names), last, "the version before");
        counts.push((names(layer), 0));
        Some(Arc::new(OfVersion {
            counts: Arc::clone(&self.0),
            index: counts.len() - 1,
        }))
    }

    fn decided(&self, _: &Event<'_>) {
        unreachable!("an observer was returned for each version");
    }
}

impl Observer for OfVersion {
    fn decided(&self, _: &Event<'_>) {
        self.counts.lock().unwrap()[self.index].1 += 1;
    }
}

#[tokio::test]
async fn observer_that_built_returns_observes_its_version_of_the_limits() {
    let text = |name| {
        let limit = "gcra = { rate = \"9/hour\" }\nby = \"constant\"\n";
        format!("version = 1\n[[limit]]\nname = \"{name}\"\n{limit}")
    };
    let rules = Rules::from_str("rules.toml", &text("old"), Registry::new()).unwrap();
    let counts = ByVersion::default();
    let read = Arc::clone(&counts.0);
    let program = ThrottleLayer::builder(()).observe(counts);
    let (layer, file) = rules.layer_with(program).unwrap();
    send_each(&layer, [get()]).await;
    file.replace(&text("new")).unwrap();
    send_each(&layer, [get(), get()]).await;
    let expected = [("old", 1), ("new", 2)].map(|(name, count)| (vec![name.to_owned()], count));
    assert_eq!(*read.lock().unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn info_is_of_a_layer_in_use_and_keeps_no_store() {
    let journal = Arc::new(Journal::default());
    let per_key = limit("per-key", Gcra::new(Rate::per_day(9))).by(Header::new("x-api-key"));
    let layer = ThrottleLayer::builder(per_key)
        .observe(Arc::clone(&journal))
        .backend(memory())
        .build()
        .unwrap();
    let service = layer.layer(service_fn(async |_: Request<Text>| {
        Ok::<_, Infallible>(Response::new(()))
    }));
    drop(layer);
    for key in ["ada", "bob", "ada"] {
        service.clone().oneshot(keyed(key)).await.unwrap();
    }
    let layers = journal.layers.lock().unwrap().clone();
    let [layer] = &layers[..] else {
        panic!("built once: {layers:?}");
    };
    assert_eq!((layer.is_in_use(), layer.keys_held()), (true, Some(2)));
    drop(service);
    assert_eq!((layer.is_in_use(), layer.keys_held()), (false, None));
}

#[tokio::test(start_paused = true)]
async fn each_observer_and_hook_sees_each_request() {
    let count = Arc::new(AtomicUsize::new(0));
    let counter = || {
        let count = Arc::clone(&count);
        move |event: &Event<'_>| {
            assert!(Outcome::LABELS.contains(&event.outcome.label()));
            count.fetch_add(1, Ordering::SeqCst);
        }
    };
    let layer = ThrottleLayer::builder(shared("all", 1))
        .on_decision(counter())
        .observe(counter())
        .on_decision(counter())
        .build()
        .unwrap();
    send_each(&layer, [get(), get()]).await;
    assert_eq!(count.load(Ordering::SeqCst), 3 * 2);
}
