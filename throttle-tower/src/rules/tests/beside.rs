//! A file that names another one as its candidate.

use std::convert::Infallible;
use std::fs;
use std::num::NonZeroU32;

use http::{Request, Response, StatusCode};
use throttle_core::{Backend, BoxBackend, LocalShareBackend, ManualClock, MemoryBackend};
use tower::{Layer, ServiceExt, service_fn};

use super::Folder;

use crate::ThrottleLayer;
use crate::candidate::Flips;
use crate::failing_backend::FailingBackend;
use crate::rules::{Handle, Registry, Rules};

/// One limit for all requests, below what stands before it.
fn text(head: &str, burst: u64) -> String {
    let limit = format!("gcra = {{ rate = \"1/hour\", burst = {burst} }}\nby = \"constant\"\n");
    format!("version = 1\n{head}\n[[limit]]\nname = \"p\"\n{limit}")
}

const NEXT: &str = "candidate = \"next.toml\"";

/// A folder with these files, and the layer of the first.
struct Case {
    folder: Folder,
    layer: ThrottleLayer<MemoryBackend<ManualClock>>,
    handle: Handle,
}

impl Case {
    fn new(name: &str, live: &str, next: &str) -> Self {
        let folder = Folder::new(name);
        fs::write(folder.file(), live).unwrap();
        fs::write(folder.0.join("next.toml"), next).unwrap();
        let store = MemoryBackend::builder()
            .clock(ManualClock::default())
            .build();
        let rules = Rules::from_path(folder.file(), Registry::new())
            .unwrap_or_else(|error| panic!("{error}"));
        let (layer, handle) = rules.layer(store).unwrap();
        Self {
            folder,
            layer,
            handle,
        }
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.folder.0.join(file), text).unwrap();
    }

    /// What the reload of a file says, without the folder.
    fn reload(&self) -> String {
        let told = self
            .handle
            .reload()
            .map_or_else(|error| error.to_string(), |change| change.to_string());
        told.replace(&format!("{}/", self.folder.0.display()), "")
    }

    /// Admitted requests, and what was counted since the layer was made.
    async fn send(&self, requests: usize, candidate: &str) -> (usize, Option<[u64; 4]>) {
        let admitted = admitted(&self.layer, requests).await;
        (admitted, self.layer.flips(candidate).as_ref().map(counts))
    }
}

fn counts(flips: &Flips) -> [u64; 4] {
    [
        flips.both_admit,
        flips.both_refuse,
        flips.would_refuse,
        flips.would_admit,
    ]
}

async fn admitted<B: Backend>(layer: &ThrottleLayer<B>, requests: usize) -> usize {
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
    let mut admitted = 0;
    for _ in 0..requests {
        let response = layer.layer(inner).oneshot(Request::new(())).await.unwrap();
        admitted += usize::from(response.status() == StatusCode::OK);
    }
    admitted
}

#[tokio::test]
async fn candidate_of_a_file_follows_reloads_of_both_files() {
    let case = Case::new("follows", &text(NEXT, 3), &text("", 1));
    assert_eq!(case.send(4, "next.toml").await, (3, Some([1, 1, 2, 0])));
    assert_eq!(case.reload(), "revision 1: nothing has changed");
    case.write("next.toml", &text("", 9));
    assert_eq!(
        case.reload(),
        "revision 2\nthe candidate's file says something else"
    );
    assert_eq!(
        case.send(2, "next.toml").await,
        (0, Some([1, 1, 2, 2])),
        "the counts go on"
    );
    case.write("throttle.toml", &text(NEXT, 9));
    case.reload();
    assert_eq!(case.send(1, "next.toml").await, (1, Some([2, 1, 2, 2])));
    case.write("throttle.toml", &text("candidate = 'other.toml'", 9));
    case.write("other.toml", &text("", 1));
    case.reload();
    assert_eq!(case.send(2, "next.toml").await, (2, None));
    assert_eq!(
        case.layer.flips("other.toml").as_ref().map(counts),
        Some([1, 0, 1, 0]),
        "on a store of its own"
    );
    case.write("throttle.toml", &text("", 9));
    let removed = "revision 5\ncandidate was \"other.toml\", and is not there any more";
    assert_eq!(case.reload(), removed);
    assert_eq!(case.send(1, "other.toml").await, (1, None));
    case.write("throttle.toml", &text(NEXT, 9));
    case.reload();
    assert_eq!(
        case.send(1, "next.toml").await,
        (1, Some([1, 0, 0, 0])),
        "it may come by a reload"
    );
}

/// Charges of the candidate are none of the live limits, and go on by the same clock.
#[tokio::test]
async fn law_14_candidate_of_a_file_keeps_its_budgets_over_a_reload() {
    let case = Case::new("budgets", &text(NEXT, 9), &text("", 2));
    assert_eq!(case.send(1, "next.toml").await, (1, Some([1, 0, 0, 0])));
    case.write("next.toml", &text("[layer]\nmax-waiting = 7", 2));
    case.reload();
    assert_eq!(case.send(2, "next.toml").await, (2, Some([2, 0, 1, 0])));
}

#[test]
fn mistake_in_either_file_leaves_both_as_they_were() {
    let case = Case::new("mistake", &text(NEXT, 9), &text("", 1));
    let refused = |file: &str, text: &str, start: &str| {
        case.write(file, text);
        let told = case.reload();
        assert!(told.starts_with(start), "{told}");
        assert_eq!(case.handle.status().revision, 1);
        assert!(case.layer.flips("next.toml").is_some());
    };
    refused(
        "next.toml",
        &text("", 0),
        "next.toml:5:35: limit \"p\": gcra.burst is 0: ",
    );
    refused(
        "next.toml",
        &text("limits = 7", 1),
        "next.toml:2:1: limits is not a field; did you mean \"limit\"?",
    );
    refused(
        "next.toml",
        &text(NEXT, 1),
        "next.toml:2:13: candidate is \"next.toml\": a candidate has none of its own;",
    );
    let acts = "next.toml:4:8: limit \"p\": candidate is a limit that acts on responses: ";
    refused("next.toml", &(text("", 1) + "refund = 'failed'"), acts);
    let permits = "version = 1\n[[concurrency]]\nname = 'c'\nmost = 9";
    refused(
        "next.toml",
        permits,
        "next.toml:3:8: concurrency \"c\": candidate is a limit that acts on responses: ",
    );
    let missing = "throttle.toml:2:13: candidate is \"none.toml\": none.toml: the file cannot be \
        read: No such file";
    refused(
        "throttle.toml",
        &text("candidate = 'none.toml'", 9),
        missing,
    );
    refused(
        "throttle.toml",
        &text("candidate = 'throttle.toml'", 9),
        "throttle.toml:2:13: candidate is",
    );
}

#[tokio::test]
async fn candidate_of_a_file_has_a_name_and_a_store_of_its_own() {
    let case = Case::new(
        "store",
        &text(&format!("{NEXT}\n[defaults]\non-error = 'open'"), 9),
        &text("", 2),
    );
    let rules = || case.handle.rules();
    let start = format!(
        "{}:2:13: candidate is \"next.toml\": the backend of this layer makes no ",
        rules().file
    );
    let refused = rules().layer(FailingBackend).unwrap_err().to_string();
    assert!(refused.starts_with(&start), "{refused}");
    assert!(rules().layer(BoxBackend::new(MemoryBackend::new())).is_ok());
    let half = LocalShareBackend::new(MemoryBackend::new(), NonZeroU32::new(2).unwrap());
    let (layer, _) = rules().layer(half).unwrap();
    assert_eq!(
        (
            admitted(&layer, 2).await,
            counts(&layer.flips("next.toml").unwrap())
        ),
        (2, [1, 0, 1, 0]),
        "a share"
    );
    let (other, _) = Rules::from_str("f", &text("", 1), Registry::new())
        .unwrap()
        .layer(MemoryBackend::new())
        .unwrap();
    let twice = case
        .layer
        .clone()
        .candidate("next.toml", other.clone())
        .unwrap_err()
        .to_string();
    assert!(
        twice.starts_with("candidate is \"next.toml\" twice: "),
        "{twice}"
    );
    let (layer, handle) = rules().layer(MemoryBackend::new()).unwrap();
    let layer = layer.candidate("by code", other).unwrap();
    case.write("throttle.toml", &text("", 9));
    handle.reload().unwrap();
    assert_eq!(
        (layer.flips("next.toml"), layer.flips("by code")),
        (None, Some(Flips::default()))
    );
}

#[cfg(feature = "dashboard")]
#[tokio::test]
async fn page_shows_the_candidate_that_a_reload_brings() {
    let case = Case::new("page", &text("", 9), &text("", 1));
    let (layer, page): (_, axum::Router) = case.layer.clone().dashboard();
    case.write("throttle.toml", &text(NEXT, 9));
    case.reload();
    admitted(&layer, 2).await;
    let data = page
        .oneshot(
            Request::get("/data.json")
                .body(axum::body::Body::empty())
                .unwrap(),
        )
        .await
        .unwrap();
    let data = http_body_util::BodyExt::collect(data)
        .await
        .unwrap()
        .to_bytes();
    let data: serde_json::Value = serde_json::from_slice(&data).unwrap();
    let candidate = &data["candidates"][0];
    assert_eq!(
        [&candidate["name"], &candidate["would_refuse"]],
        [&serde_json::json!("next.toml"), &1.into()]
    );
}
