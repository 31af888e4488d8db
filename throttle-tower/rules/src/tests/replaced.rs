//! Rules that are replaced while requests run.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;
use std::{fs, thread};

use http::{Request, Response, StatusCode};
use throttle_core::{Backend, ManualClock, MemoryBackend};
use tokio::time::{Instant, sleep};
use tower::{Layer, Service, ServiceExt, service_fn};

use super::bad::registry;
use super::requests::Fallible;
use crate::{Change, Handle, Registry, Rules};
use throttle_tower::Metrics;
use throttle_tower::Traces;
use throttle_tower::shape::TokioClock;
use throttle_tower::{Dialect, Permit, ThrottleBuilder, ThrottleLayer};
use throttle_tower::{Offenders, Page};

type Memory = MemoryBackend<ManualClock>;

fn memory() -> Memory {
    MemoryBackend::builder()
        .clock(ManualClock::default())
        .build()
}

fn live<B: Backend>(text: &str, backend: B) -> (ThrottleLayer<B>, Handle) {
    live_with(text, ThrottleLayer::builder(()).backend(backend))
}

fn live_with<B: Backend>(text: &str, program: ThrottleBuilder<B>) -> (ThrottleLayer<B>, Handle) {
    let rules = Rules::from_str("throttle.toml", text, registry())
        .unwrap_or_else(|error| panic!("{error}"));
    rules
        .layer_with(program)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// A limit for all requests together.
fn limit(name: &str, rate: &str, rest: &str) -> String {
    format!(
        "[[limit]]\nname = \"{name}\"\nby = \"constant\"\nsliding-log = {{ rate = \"{rate}\" }}\n{rest}\n"
    )
}

fn file(limits: &[String]) -> String {
    format!("version = 1\n{}", limits.concat())
}

fn only(rate: &str) -> String {
    file(&[limit("all", rate, "")])
}

async fn send<B: Backend>(layer: &ThrottleLayer<B>) -> Response<()> {
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
    layer
        .layer(inner)
        .oneshot(Request::new(()))
        .await
        .unwrap()
        .map(drop)
}

async fn admitted<B: Backend>(layer: &ThrottleLayer<B>, requests: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..requests {
        admitted += usize::from(send(layer).await.status() == StatusCode::OK);
    }
    admitted
}

fn header(response: &Response<()>, name: &str) -> String {
    response
        .headers()
        .get(name)
        .map(|value| value.to_str().unwrap().to_owned())
        .unwrap_or_default()
}

#[tokio::test]
async fn layers_and_services_that_were_made_before_follow() {
    let (layer, handle) = live(&only("3/day"), memory());
    let mut service = layer.layer(service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(()))
    }));
    assert_eq!(admitted(&layer, 9).await, 3);
    let change = handle.replace(&only("5/day")).unwrap();
    assert_eq!(
        (change.revision, change.changed.len(), change.is_empty()),
        (2, 1, false)
    );
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(service.call(Request::new(())).await.unwrap().status());
    }
    assert_eq!(
        statuses,
        [
            StatusCode::OK,
            StatusCode::OK,
            StatusCode::TOO_MANY_REQUESTS
        ],
        "what was used stays used"
    );
    handle.replace(&file(&[])).unwrap_err();
    handle.replace("version = 1\nlimit = []").unwrap();
    assert_eq!(admitted(&layer, 9).await, 9);
}

#[tokio::test]
async fn changed_reserve_is_told_and_decides_at_once() {
    let reserve = |units| {
        let options =
            format!("classes = \"importance\"\nreserve = {{ critical = 0, normal = {units} }}");
        file(&[limit("all", "9/day", &options)])
    };
    let (layer, handle) = live(&reserve(6), memory());
    assert_eq!(admitted(&layer, 9).await, 3);
    let change = handle.replace(&reserve(4)).unwrap();
    let text =
        "limit \"all\": reserve was { critical = 0, normal = 6 }, is { critical = 0, normal = 4 }";
    assert_eq!(change.to_string(), format!("revision 2\n{text}"));
    assert_eq!(admitted(&layer, 9).await, 2);
    handle.replace(&only("9/day")).unwrap();
    assert_eq!(admitted(&layer, 9).await, 4, "what was used stays used");
}

#[tokio::test]
async fn layer_of_a_program_with_settings_of_its_own_follows() {
    let program = ThrottleLayer::builder(())
        .headers(Dialect::None)
        .retry_jitter(10)
        .backend(memory());
    let (layer, handle) = live_with(&only("3/day"), program);
    assert_eq!(header(&send(&layer).await, "ratelimit-policy"), "");
    handle.replace(&only("5/day")).unwrap();
    assert_eq!(admitted(&layer, 9).await, 4);
    assert_eq!(header(&send(&layer).await, "ratelimit-policy"), "");
}

#[tokio::test]
async fn file_with_a_mistake_leaves_everything_as_it_was() {
    let (layer, handle) = live(&only("3/day"), memory());
    assert_eq!(admitted(&layer, 1).await, 1);
    let before = handle.status();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/bad");
    let mut tried = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            let text = fs::read_to_string(&path).unwrap();
            let error = handle.replace(&text).unwrap_err();
            let status = handle.status();
            assert_eq!(
                (status.revision, &status.hash, status.loaded_at),
                (1, &before.hash, before.loaded_at)
            );
            assert_eq!(status.last_error, Some(error), "{}", path.display());
            let info = layer.info();
            let policy = info.limits()[0].policy.as_ref().unwrap();
            assert_eq!((info.limits().len(), policy.name()), (1, "all"));
            assert_eq!(policy.algorithm().capacity(), 3);
            tried += 1;
        }
    }
    assert!(tried >= 60, "{tried}");
    assert!(handle.status().failing_since.is_some());
    assert_eq!(admitted(&layer, 9).await, 2);
    assert!(handle.replace(&only("3/day")).unwrap().is_empty());
    assert_eq!(
        (handle.status().revision, handle.status().failing_since),
        (1, None),
        "the former text is right again"
    );
}

#[tokio::test]
async fn backend_that_refuses_keeps_the_former_rules() {
    let fallible = |rate: &str| file(&[limit("all", rate, "on-error = \"closed\"")]);
    let (layer, handle) = live(&fallible("3/day"), Fallible::new(memory()));
    let error = handle.replace(&only("4/day")).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("throttle.toml:3:8: limit \"all\": on-error is missing"),
        "{error}"
    );
    assert_eq!(
        (admitted(&layer, 9).await, handle.status().revision),
        (3, 1)
    );
    assert_eq!(handle.replace(&fallible("4/day")).unwrap().revision, 2);
    drop(layer);
    assert_eq!(
        handle.replace(&only("4/day")).unwrap().revision,
        3,
        "nothing that can fail is left"
    );
}

#[tokio::test]
async fn handle_keeps_neither_a_layer_nor_a_backend() {
    let kept = Arc::new(());
    let only = |rate: &str| file(&[limit("all", rate, "on-error = \"closed\"")]);
    let store = Fallible {
        clones: Arc::clone(&kept),
        ..Fallible::new(memory())
    };
    let (layer, handle) = live(&only("3/day"), store);
    handle.replace(&only("5/day")).unwrap();
    assert!(Arc::strong_count(&kept) > 1);
    drop(layer);
    assert_eq!(Arc::strong_count(&kept), 1);
    let (head, ()) = Request::new(()).into_parts();
    let explained = handle.explain(&head).await.unwrap();
    assert_eq!(
        explained.to_string(),
        "admitted: the layer does not apply: there is no layer of these rules any more"
    );
    assert!(!handle.reset("all", &head).await.unwrap());
    assert_eq!(handle.replace(&only("6/day")).unwrap().revision, 3);
}

/// Those that came before and those that come after wait in queues of their own.
#[tokio::test(start_paused = true)]
async fn requests_that_wait_while_the_file_changes_wait_no_longer_than_they_may() {
    let waiting = |rate: &str| {
        let gcra =
            format!("gcra = {{ rate = \"{rate}/second\", burst = 1 }}\nwait-up-to = \"300ms\"");
        format!("version = 1\n[[limit]]\nname = \"all\"\nby = \"constant\"\n{gcra}")
    };
    for (former, next) in [("10", "5"), ("5", "10"), ("10", "1")] {
        let store = MemoryBackend::builder().clock(TokioClock::new()).build();
        let (layer, handle) = live(&waiting(former), store);
        assert_eq!(send(&layer).await.status(), StatusCode::OK);
        let waits = || {
            let layer = layer.clone();
            tokio::spawn(async move {
                let arrived = Instant::now();
                (send(&layer).await.status(), arrived.elapsed())
            })
        };
        let mut all: Vec<_> = (0..3).map(|_| waits()).collect();
        sleep(Duration::from_millis(10)).await;
        handle.replace(&waiting(next)).unwrap();
        all.extend((0..3).map(|_| waits()));
        let mut admitted = 0;
        for waiting in all {
            let (status, waited) = waiting.await.unwrap();
            assert!(
                waited <= Duration::from_millis(350),
                "{status} after {waited:?}"
            );
            admitted += usize::from(status == StatusCode::OK);
        }
        assert!(
            (1..=3).contains(&admitted),
            "{admitted} in 310 ms at ten a second at most"
        );
    }
}

#[tokio::test]
async fn permits_of_requests_in_flight_count_on() {
    let file = |most: u64, name: &str| {
        format!("version = 1\n[[concurrency]]\nname = \"{name}\"\nmost = {most}")
    };
    let (layer, handle) = live(&file(2, "jobs"), memory());
    let held = Arc::new(Mutex::new(Vec::new()));
    let inner = {
        let held = Arc::clone(&held);
        service_fn(move |request: Request<()>| {
            held.lock()
                .unwrap()
                .push(request.extensions().get::<Permit>().cloned());
            async { Ok::<_, Infallible>(Response::new(())) }
        })
    };
    let service = layer.layer(inner);
    let status = || async {
        service
            .clone()
            .oneshot(Request::new(()))
            .await
            .unwrap()
            .status()
    };
    assert_eq!([status().await, status().await], [StatusCode::OK; 2]);
    handle.replace(&file(3, "jobs")).unwrap();
    assert_eq!(layer.in_flight("jobs"), Some(2));
    assert_eq!(
        [status().await, status().await],
        [StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE]
    );
    for most in [4, 2] {
        handle.replace(&file(most, "jobs")).unwrap();
        assert_eq!(
            layer.in_flight("jobs"),
            Some(3),
            "after one more change, too"
        );
        assert_eq!(status().await == StatusCode::OK, most == 4);
        held.lock().unwrap().truncate(3);
    }
    held.lock().unwrap().truncate(1);
    assert_eq!(
        layer.in_flight("jobs"),
        Some(1),
        "those that were taken before come back, too"
    );
    handle.replace(&file(3, "tasks")).unwrap();
    assert_eq!(
        (layer.in_flight("jobs"), layer.in_flight("tasks")),
        (None, Some(0))
    );
    held.lock().unwrap().clear();
    assert_eq!(layer.in_flight("tasks"), Some(0));
}

#[tokio::test]
async fn what_the_program_sets_goes_before_the_file() {
    let file =
        |headers: &str| format!("version = 1\nlimit = []\n[layer]\nheaders = \"{headers}\"\n");
    let with_limit = |headers: &str| {
        format!(
            "version = 1\n[layer]\nheaders = \"{headers}\"\n{}",
            limit("all", "9/day", "")
        )
    };
    let (layer, handle) = live(&file("draft-03"), memory());
    let delta = throttle_tower::headers::ResetFormat::DeltaSeconds;
    let program = ThrottleLayer::builder(()).headers(Dialect::XRateLimit(delta));
    let (own, of_program) = live_with(&file("draft-03"), program);
    for handle in [&handle, &of_program] {
        handle.replace(&with_limit("draft-07")).unwrap();
    }
    assert_eq!(header(&send(&own).await, "x-ratelimit-limit"), "9");
    assert!(header(&send(&layer).await, "ratelimit").starts_with("limit=9, remaining=8"));
    for handle in [&handle, &of_program] {
        handle.replace(&only("9/day")).unwrap();
    }
    assert_eq!(header(&send(&own).await, "x-ratelimit-limit"), "9");
    assert_eq!(
        header(&send(&layer).await, "ratelimit-policy"),
        "\"all\";q=9;w=86400",
        "the usual again"
    );
}

#[tokio::test]
async fn layer_applies_to_the_requests_that_the_file_in_force_says() {
    // The condition never holds.
    let when = |when: &str| only("1/day").replacen('\n', &format!("\n{when}\n"), 1);
    let (layer, handle) = live(&when("when = \"internal\""), memory());
    assert_eq!(admitted(&layer, 3).await, 3);
    let changed = handle
        .replace(&when("when = { not = \"internal\" }"))
        .unwrap();
    let text = "revision 2\nwhen was \"internal\", is { not = \"internal\" }";
    assert_eq!(
        (changed.to_string().as_str(), changed.unused().count()),
        (text, 0)
    );
    assert_eq!(admitted(&layer, 2).await, 1);
    let changed = handle
        .replace(&when("when = [\"preflight\", \"internal\"]"))
        .unwrap();
    let text = "revision 3\nwhen was { not = \"internal\" }, is [\"preflight\", \"internal\"]";
    assert_eq!(changed.to_string(), text);
    assert_eq!(admitted(&layer, 2).await, 2);
    let changed = handle.replace(&when("")).unwrap();
    assert!(
        changed.to_string().ends_with("and is not there any more"),
        "{changed}"
    );
    assert_eq!(admitted(&layer, 2).await, 0);
    handle.replace(&when("when = \"internal\"")).unwrap();
    assert_eq!(admitted(&layer, 2).await, 2);
    for applies in [true, false] {
        let program = ThrottleLayer::builder(()).when(move |_: &http::request::Parts| applies);
        let (layer, handle) = live_with(&when("when = \"internal\""), program);
        let admitted_of_two = if applies { [1, 0] } else { [2, 2] };
        assert_eq!(admitted(&layer, 2).await, admitted_of_two[0]);
        handle
            .replace(&when("when = { not = \"internal\" }"))
            .unwrap();
        assert_eq!(
            admitted(&layer, 2).await,
            admitted_of_two[1],
            "the program has the last word"
        );
    }
}

#[tokio::test]
async fn layer_whose_program_says_what_failures_mean_needs_no_word_of_the_file() {
    let program = ThrottleLayer::builder(())
        .on_error(throttle_tower::OnError::Closed)
        .backend(Fallible::new(memory()));
    let (layer, handle) = live_with(&only("3/day"), program);
    assert_eq!(handle.replace(&only("4/day")).unwrap().revision, 2);
    assert_eq!(admitted(&layer, 9).await, 4);
}

/// The share of a layer that falls back to its own counts (`local/1`).
#[tokio::test]
async fn what_a_share_has_used_stays_used_when_the_file_changes() {
    let local = |rate: &str, rest: &str| {
        file(&[limit(
            "all",
            rate,
            &format!("on-error = \"local/1\"\n{rest}"),
        )])
    };
    let (layer, handle) = live(
        &local("5/day", ""),
        Fallible {
            fails: true,
            ..Fallible::new(memory())
        },
    );
    assert_eq!(admitted(&layer, 2).await, 2);
    for (text, count, left) in [
        (local("7/day", ""), 7, 5),
        (local("9/day", "wait-up-to = \"1ms\""), 9, 2),
    ] {
        handle.replace(&text).unwrap();
        let beside = layer
            .with_limits(
                throttle_tower::limit(
                    "all",
                    throttle_tower::SlidingLog::new(throttle_tower::Rate::per_day(count)),
                )
                .by(throttle_tower::Constant)
                .on_error(throttle_tower::OnError::local(1)),
            )
            .unwrap();
        assert_eq!(
            admitted(&beside, 1).await,
            1,
            "layers with other limits use the same share"
        );
        assert_eq!(admitted(&layer, 9).await, left - 1);
    }
}

#[tokio::test]
async fn limit_that_comes_back_decides_by_its_new_parameters() {
    let refunded = |rate: &str| file(&[limit("all", rate, "refund = \"failed\"")]);
    let (layer, handle) = live(&refunded("3/day"), memory());
    let inner =
        service_fn(|_: Request<()>| std::future::pending::<Result<Response<()>, Infallible>>());
    let mut older = Box::pin(layer.layer(inner).oneshot(Request::new(())));
    assert!(
        older
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
    handle.replace("version = 1\nlimit = []").unwrap();
    assert_eq!(handle.replace(&refunded("5/day")).unwrap().revision, 3);
    assert_eq!(admitted(&layer, 9).await, 4);
}

#[test]
fn hook_that_panics_stops_no_other() {
    let (_layer, handle) = live(&only("3/day"), memory());
    let told = Arc::new(AtomicU64::new(0));
    handle.on_reload(|_| panic!("a mistake of the program"));
    handle.on_reload({
        let told = Arc::clone(&told);
        move |_| {
            told.fetch_add(1, Ordering::Relaxed);
        }
    });
    handle.replace(&only("4/day")).unwrap();
    assert_eq!(told.load(Ordering::Relaxed), 1);
}

#[test]
fn change_names_what_is_new_gone_and_different() {
    let change = |old: &str, new: &str| {
        let (_layer, handle) = live(old, memory());
        handle.replace(new).unwrap()
    };
    let [a, b, c] =
        [("a", "1/day"), ("b", "2/day"), ("c", "3/day")].map(|(name, rate)| limit(name, rate, ""));
    let ab = file(&[a, b.clone()]);
    let renamed = change(&ab, &file(&[b.clone(), limit("z", "1/day", "")]));
    assert_eq!(renamed.unused().collect::<Vec<_>>(), ["z"]);
    let replaced = change(&ab, &file(&[b.clone(), c]));
    assert_eq!(
        (replaced.added.clone(), replaced.removed.clone()),
        (vec!["c".to_owned()], vec!["a".to_owned()])
    );
    assert_eq!(
        replaced.to_string(),
        "revision 2\nlimit \"c\": new\nlimit \"a\": removed"
    );
    assert_eq!(
        change(&ab, &file(std::slice::from_ref(&b))).to_string(),
        "revision 2\nlimit \"a\": removed"
    );
    assert_eq!(
        change(&file(&[b]), &ab).to_string(),
        "revision 2\nlimit \"a\": new"
    );
    let old = file(&[limit(
        "a",
        "1/day",
        "cost = 1_0\nmatch = { methods = [\"GET\"], paths = [\"/a\"] }",
    )]);
    let old = old.replace("1/day", "10/day");
    let same = old
        .replace("cost = 1_0", "# ten\ncost   = 10")
        .replace("match", "\"match\"");
    assert!(change(&old, &same).is_empty());
    let rekeyed = change(
        &old,
        &old.replace("\"constant\"", "\"method\"")
            .replace("cost = 1_0\n", "unit = \"x\"\n"),
    );
    assert_eq!(
        rekeyed.to_string(),
        "revision 2\nlimit \"a\": by was \"constant\", is \"method\", so that nothing counts as \
            used\n\
         limit \"a\": cost was 10, and is not there any more\nlimit \"a\": unit is \"x\", and was \
         not there"
    );
    assert_eq!(rekeyed.unused().collect::<Vec<_>>(), ["a"]);
    let others = change(
        "version = 1\nlimit = []",
        "version = 1\nlimit = []\nlayer.max_waiting = 7",
    );
    assert_eq!(
        others.to_string(),
        "revision 2\nlayer.max-waiting is 7, and was not there"
    );
}

/// A limit on requests in flight has the name that it goes by where it is given none.
#[test]
fn change_names_a_limit_that_has_become_one_of_another_kind() {
    let (_layer, handle) = live(
        "version = 1\n[[concurrency]]\nmost = 5\nby = \"constant\"\n",
        memory(),
    );
    let more = handle
        .replace("version = 1\n[[concurrency]]\nmost = 6\nby = \"constant\"\n")
        .unwrap();
    assert_eq!(
        more.to_string(),
        "revision 2\nlimit \"in-flight\": most was 5, is 6"
    );
    assert_eq!(more.unused().count(), 0);
    let rate = handle
        .replace(&file(&[limit("in-flight", "6/day", "")]))
        .unwrap();
    let said = rate.to_string();
    assert!(
        said.contains("limit \"in-flight\": kind was concurrency, and is not there any more"),
        "{said}"
    );
    assert!(rate.unused().eq(["in-flight"]), "{said}");
}

#[test]
fn debug_output_of_a_handle_has_the_rules_in_force_and_their_revision() {
    let (_layer, handle) = live(&only("3/day"), memory());
    handle.replace(&only("4/day")).unwrap();
    let shown = format!("Handle {{ rules: {:?}, revision: 2, .. }}", handle.rules());
    assert_eq!(format!("{handle:?}"), shown);
}

#[test]
fn file_is_read_again_and_what_is_wrong_is_told() {
    let path = std::env::temp_dir().join(format!("throttle-reload-{}.toml", std::process::id()));
    fs::write(&path, only("3/day")).unwrap();
    let (_layer, handle) = Rules::from_path(&path, Registry::new())
        .unwrap()
        .layer(memory())
        .unwrap();
    let told: Arc<Mutex<Vec<Result<Change, String>>>> = Arc::default();
    handle.on_reload({
        let told = Arc::clone(&told);
        move |reloaded| {
            told.lock()
                .unwrap()
                .push(reloaded.cloned().map_err(ToString::to_string));
        }
    });
    assert!(handle.reload().unwrap().is_empty());
    fs::write(&path, only("4/day")).unwrap();
    assert_eq!(handle.reload().unwrap().revision, 2);
    fs::write(&path, b"version = 1\n# \xff").unwrap();
    assert!(
        handle
            .reload()
            .unwrap_err()
            .to_string()
            .contains("not UTF-8: line 2")
    );
    let since = handle.status().failing_since.unwrap();
    fs::remove_file(&path).unwrap();
    let error = handle.reload().unwrap_err();
    assert_eq!(error.problems()[0].line(), None);
    let source = std::error::Error::source(&error)
        .and_then(|source| source.downcast_ref::<std::io::Error>());
    assert_eq!(
        source.map(std::io::Error::kind),
        Some(std::io::ErrorKind::NotFound)
    );
    assert_eq!(
        handle.status().failing_since,
        Some(since),
        "since the first failure"
    );
    assert_eq!(handle.replace(&only("3/day")).unwrap().revision, 3);
    assert_eq!(handle.status().failing_since, None);
    let told = told.lock().unwrap();
    let revisions: Vec<_> = told
        .iter()
        .map(|told| told.as_ref().ok().map(|change| change.revision))
        .collect();
    assert_eq!(
        revisions,
        [Some(2), None, None, Some(3)],
        "a file that says the same is no news"
    );
    assert_eq!(
        Rules::from_path(&path, Registry::new())
            .unwrap_err()
            .to_string(),
        told[2].clone().unwrap_err()
    );
}

#[tokio::test]
async fn observers_follow_limits_that_come_and_go() {
    let few = file(&[limit("a", "9/day", "")]);
    let many = |rate: &str| {
        file(&[
            limit("b", "9/day", ""),
            limit("c", rate, ""),
            limit("a", "9/day", ""),
        ])
    };
    let list = Offenders::new();
    let program = ThrottleLayer::builder(())
        .backend(memory())
        .observe(Metrics::new("replaced"))
        .observe(Traces::new())
        .observe(Page::new().offenders(&list))
        .observe(list.clone());
    let (layer, handle) = live_with(&few, program);
    let offenders = || {
        let listed = list.list(9).into_iter();
        listed.map(|one| (one.policy.to_string(), one.refused))
    };
    assert_eq!(
        (admitted(&layer, 10).await, offenders().collect::<Vec<_>>()),
        (9, vec![("a".to_owned(), 1)])
    );
    handle.replace(&few.replace("9/day", "10/day")).unwrap();
    assert_eq!(
        (admitted(&layer, 2).await, offenders().collect::<Vec<_>>()),
        (1, vec![("a".to_owned(), 2)])
    );
    handle
        .replace(&many("2/day").replace("\"a\"", "\"z\""))
        .unwrap();
    assert_eq!(
        (admitted(&layer, 5).await, offenders().collect::<Vec<_>>()),
        (2, vec![("c".to_owned(), 3), ("a".to_owned(), 2)])
    );
    handle.replace(&few).unwrap();
    assert_eq!(
        (admitted(&layer, 4).await, offenders().collect::<Vec<_>>()),
        (0, vec![("a".to_owned(), 6), ("c".to_owned(), 3)]),
        "limits count on by their names"
    );
}

async fn page_data(page: &axum::Router) -> serde_json::Value {
    let request = Request::get("/data.json")
        .body(axum::body::Body::empty())
        .unwrap();
    let response = page.clone().oneshot(request).await.unwrap();
    let body = axum::body::to_bytes(response.into_body(), 1 << 20)
        .await
        .unwrap();
    serde_json::from_slice(&body).unwrap()
}

#[tokio::test(start_paused = true)]
async fn page_goes_on_counting_when_limits_come_and_go() {
    async fn shown(page: &axum::Router) -> (u64, Vec<String>, Vec<u64>) {
        sleep(Duration::from_secs(1)).await;
        let data = page_data(page).await;
        let permits = data["permits"].as_array().unwrap().iter();
        let names = permits
            .map(|permits| permits["name"].as_str().unwrap().to_owned())
            .collect();
        let changes = data["rules_changes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|ago| ago.as_u64().unwrap());
        (
            data["outcomes"]["admitted"].as_u64().unwrap(),
            names,
            changes.collect(),
        )
    }
    let with_permits = |most: u64, name: &str| {
        format!(
            "{}[[concurrency]]\nname = \"{name}\"\nmost = {most}\n",
            file(&[limit("a", "9/day", "")])
        )
    };
    let observing = Page::new();
    let page = observing.router();
    let program = ThrottleLayer::builder(())
        .backend(memory())
        .observe(observing);
    let (layer, handle) = live_with(&with_permits(2, "jobs"), program);
    admitted(&layer, 2).await;
    handle.replace(&with_permits(3, "jobs")).unwrap();
    admitted(&layer, 1).await;
    assert_eq!(shown(&page).await, (3, vec!["jobs".to_owned()], vec![1]));
    handle.replace(&with_permits(2, "jobs")).unwrap();
    assert_eq!(
        shown(&page).await,
        (3, vec!["jobs".to_owned()], vec![1, 2]),
        "changes of the rules, newest first"
    );
    handle.replace("version = 2").unwrap_err();
    assert_eq!(shown(&page).await.2, [2, 3], "what is refused is no change");
    for most in 3..30 {
        handle.replace(&with_permits(most, "jobs")).unwrap();
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(
        shown(&page).await.2,
        (2..22).collect::<Vec<_>>(),
        "the last twenty"
    );
    handle.replace(&with_permits(3, "tasks")).unwrap();
    admitted(&layer, 1).await;
    let (admitted_so_far, permits, changes) = shown(&page).await;
    assert_eq!(
        (admitted_so_far, permits, changes[0]),
        (4, vec!["tasks".to_owned()], 1),
        "limits that are gone are not shown"
    );
    handle.replace(&file(&[limit("a", "9/day", "")])).unwrap();
    admitted(&layer, 1).await;
    assert_eq!(shown(&page).await.0, 5);
    assert_eq!(shown(&page).await.1, Vec::<String>::new());
}

/// An observer that sums over all versions would count the keys twice.
#[tokio::test(start_paused = true)]
async fn store_is_counted_once_while_a_request_ends_under_former_limits() {
    let page = Page::new();
    let program = ThrottleLayer::builder(())
        .backend(memory())
        .observe(page.clone());
    let (layer, handle) = live_with(&only("3/day"), program);
    let page = page.router();
    let inner =
        service_fn(|_: Request<()>| std::future::pending::<Result<Response<()>, Infallible>>());
    let mut older = Box::pin(layer.layer(inner).oneshot(Request::new(())));
    let mut context = Context::from_waker(Waker::noop());
    assert!(older.as_mut().poll(&mut context).is_pending());
    handle.replace(&only("4/day")).unwrap();
    assert_eq!(admitted(&layer, 1).await, 1);
    sleep(Duration::from_secs(1)).await;
    let data = page_data(&page).await;
    assert_eq!(
        (&data["keys_held"], &data["reporting"]),
        (&1.into(), &true.into())
    );
    drop(older);
}

#[tokio::test(start_paused = true)]
async fn waiting_and_running_requests_stay_in_the_gauges_of_new_limits() {
    let text = |rate: &str, most: u64| {
        let gcra = format!("gcra = {{ rate = \"{rate}/minute\", burst = 1 }}\nwait-up-to = \"1h\"");
        let permits = format!("[[concurrency]]\nname = \"jobs\"\nmost = {most}");
        format!("version = 1\n[[limit]]\nname = \"all\"\nby = \"constant\"\n{gcra}\n{permits}")
    };
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    // The tests' runtime has one thread.
    let _installed = metrics::set_default_local_recorder(&recorder);
    let gauge = |name: &str| {
        let shown = recorder.handle().render();
        let value = shown
            .lines()
            .find_map(|line| line.strip_prefix(name)?.rsplit_once(' '));
        value
            .unwrap_or_else(|| panic!("no {name} in {shown}"))
            .1
            .to_owned()
    };
    let gauges = || {
        [
            gauge("throttle_queued_requests{"),
            gauge("throttle_in_flight{"),
        ]
    };
    let store = MemoryBackend::builder().clock(TokioClock::new()).build();
    let program = ThrottleLayer::builder(())
        .backend(store)
        .observe(Metrics::new("api"));
    let (layer, handle) = live_with(&text("1", 9), program);
    let sending = || {
        let layer = layer.clone();
        tokio::spawn(async move {
            let inner = service_fn(async |_: Request<()>| {
                sleep(Duration::from_secs(3_600)).await;
                Ok::<_, Infallible>(Response::new(()))
            });
            layer.layer(inner).oneshot(Request::new(())).await.unwrap();
        })
    };
    let mut sent = vec![sending(), sending(), sending()];
    sleep(Duration::from_secs(1)).await;
    assert_eq!(gauges(), ["2", "1"]);
    handle.replace(&text("2", 8)).unwrap();
    sent.extend([sending(), sending()]);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(gauges(), ["4", "1"]);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(
        gauges(),
        ["0", "5"],
        "those of the former limits and of these together"
    );
    for sent in sent {
        sent.await.unwrap();
    }
    assert_eq!(gauges(), ["0", "0"]);
}

#[tokio::test(start_paused = true)]
async fn new_limits_of_a_replaced_file_each_have_their_own_event_budget() {
    use tracing_subscriber::layer::{Context as Of, SubscriberExt};

    struct Heard(Arc<AtomicU64>);

    impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Heard {
        fn on_event(&self, event: &tracing::Event<'_>, _: Of<'_, S>) {
            self.0.fetch_add(
                u64::from(event.metadata().target() == "throttle"),
                Ordering::Relaxed,
            );
        }
    }

    // With one subscriber in the process, an event that another test's thread reaches first would
    // be off for all: tracing asks the subscriber of that thread, which has none. With two it asks
    // both.
    let _other = tracing::Dispatch::new(tracing_subscriber::registry());
    let heard = Arc::new(AtomicU64::new(0));
    let _guard = tracing::subscriber::set_default(
        tracing_subscriber::registry().with(Heard(Arc::clone(&heard))),
    );
    let by_path = |name: &str| {
        limit(
            name,
            "1/day",
            &format!("match = {{ paths = [\"/{name}\"] }}"),
        )
    };
    let program = ThrottleLayer::builder(())
        .backend(memory())
        .observe(Traces::new());
    let (layer, handle) = live_with(&file(&[by_path("a")]), program);
    handle
        .replace(&file(&["a", "b", "c", "d"].map(by_path)))
        .unwrap();
    heard.store(0, Ordering::Relaxed);
    for _ in 0..30 {
        for path in ["/a", "/b", "/c", "/d"] {
            let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
            layer
                .layer(inner)
                .oneshot(Request::get(path).body(()).unwrap())
                .await
                .unwrap();
        }
    }
    assert_eq!(
        heard.load(Ordering::Relaxed),
        4 * 10,
        "ten a second for each limit"
    );
}

/// Two files in turn while requests run: each request is decided by one of them, and none gets more
/// than the larger. Some limits are found by the path, and one does not apply.
#[test]
fn law_05_no_request_is_decided_by_a_mixture_of_two_files() {
    let here = |name, rate| limit(name, rate, "match = { paths = [\"/\"] }");
    let elsewhere = limit("elsewhere", "1/day", "match = { paths = [\"/elsewhere\"] }");
    let files = [
        file(&[
            elsewhere.clone(),
            limit("a", "1000/day", ""),
            here("b", "2000/day"),
            limit("c", "3000/day", ""),
        ]),
        file(&[
            here("a", "5000/day"),
            elsewhere,
            limit("b", "6000/day", ""),
            here("d", "7000/day"),
        ]),
    ];
    let expected = [
        "\"a\";q=1000;w=86400, \"b\";q=2000;w=86400, \"c\";q=3000;w=86400",
        "\"a\";q=5000;w=86400, \"b\";q=6000;w=86400, \"d\";q=7000;w=86400",
    ];
    let (layer, handle) = live(&files[0], memory());
    let (is_over, admitted) = (AtomicBool::new(false), AtomicU64::new(0));
    let seen: Mutex<std::collections::BTreeMap<String, u64>> = Mutex::default();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .build()
                    .unwrap();
                while !is_over.load(Ordering::Relaxed) {
                    let response = runtime.block_on(send(&layer));
                    let is_admitted = response.status() == StatusCode::OK;
                    admitted.fetch_add(u64::from(is_admitted), Ordering::Relaxed);
                    *seen
                        .lock()
                        .unwrap()
                        .entry(header(&response, "ratelimit-policy"))
                        .or_default() += 1;
                }
            });
        }
        for turn in 1..=1_000 {
            handle.replace(&files[turn % 2]).unwrap();
            thread::yield_now();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let seen = seen.into_inner().unwrap();
    assert!(
        seen.keys()
            .all(|policies| expected.contains(&policies.as_str())),
        "{seen:#?}"
    );
    assert_eq!(seen.len(), 2, "{seen:#?}");
    assert!(admitted.into_inner() <= 5_000);
}
