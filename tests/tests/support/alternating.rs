//! Two versions of a rule file, and requests that are decided by whichever is in force.

use std::convert::Infallible;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use throttle_core::Backend;
use throttle_tower::ThrottleLayer;
use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, interval};
use tower::{Layer, ServiceExt, service_fn};

pub(crate) const CHANGES: u64 = 1_000;
/// What the larger of the two files admits.
pub(crate) const MOST: u64 = 3_000;

/// Each version has limits that the other has not, or other numbers for them.
fn version(n: u64) -> String {
    let limit = |name: &str, count: u64| {
        format!(
            "[[limit]]\nname = \"{name}\"\nby = \"constant\"\nfixed-window = {{ rate \
                = \"{count}/30d\" }}\n"
        )
    };
    let others = if n.is_multiple_of(2) {
        limit("b", 9_000)
    } else {
        limit("b", 8_000) + &limit("c", 7_000)
    };
    let most = if n.is_multiple_of(2) { MOST } else { 2_000 };
    format!(
        "version = 1\n[defaults]\non-error = \"closed\"\n{}{others}",
        limit("a", most)
    )
}

const POLICIES: [&str; 2] = [
    "\"a\";q=3000;w=2592000, \"b\";q=9000;w=2592000",
    "\"a\";q=2000;w=2592000, \"b\";q=8000;w=2592000, \"c\";q=7000;w=2592000",
];

/// A folder that is removed with its files.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("throttle-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A way in which a file is changed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    Rename,
    Truncate,
    Link,
}

impl Way {
    pub(crate) const ALL: [Self; 3] = [Self::Rename, Self::Truncate, Self::Link];

    /// The file with so many changes.
    pub(crate) fn put(self, folder: &Path, n: u64) {
        let file = folder.join("throttle.toml");
        match self {
            Self::Rename => {
                fs::write(folder.join("new"), version(n)).unwrap();
                fs::rename(folder.join("new"), file).unwrap();
            }
            Self::Truncate => fs::write(file, version(n)).unwrap(),
            Self::Link => {
                let data = folder.join(format!("..{n}"));
                fs::create_dir(&data).unwrap();
                fs::write(data.join("throttle.toml"), version(n)).unwrap();
                symlink(format!("..{n}"), folder.join("..tmp")).unwrap();
                fs::rename(folder.join("..tmp"), folder.join("..data")).unwrap();
                match n {
                    0 => symlink("..data/throttle.toml", file).unwrap(),
                    n => fs::remove_dir_all(folder.join(format!("..{}", n - 1))).unwrap(),
                }
            }
        }
    }

    /// Leaves the file as it is in the middle of a write, now and then. Whether it has.
    pub(crate) fn cut_off(self, folder: &Path, n: u64) -> bool {
        let cuts = matches!(self, Self::Truncate) && n.is_multiple_of(100);
        if cuts {
            fs::write(folder.join("throttle.toml"), "").unwrap();
        }
        cuts
    }

    /// How often [`cut_off`](Self::cut_off) does that.
    pub(crate) const fn cuts(self) -> u64 {
        if matches!(self, Self::Truncate) {
            CHANGES / 100
        } else {
            0
        }
    }
}

/// What became of the requests.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) admitted: AtomicU64,
    pub(crate) refused: AtomicU64,
    /// Responses by the version that decided.
    pub(crate) by: [AtomicU64; 2],
}

async fn send<B: Backend>(layer: ThrottleLayer<B>, counts: Arc<Counts>) {
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
    let response = layer.layer(inner).oneshot(Request::new(())).await.unwrap();
    let policies = response
        .headers()
        .get("ratelimit-policy")
        .map(|value| value.to_str().unwrap().to_owned());
    match response.status() {
        StatusCode::OK => &counts.admitted,
        StatusCode::TOO_MANY_REQUESTS => &counts.refused,
        status => panic!("{status}"),
    }
    .fetch_add(1, Ordering::Relaxed);
    let by = POLICIES
        .iter()
        .position(|known| Some(*known) == policies.as_deref());
    counts.by[by.unwrap_or_else(|| panic!("decided by a mixture: {policies:?}"))]
        .fetch_add(1, Ordering::Relaxed);
}

/// Requests at once. A machine that is too busy for more gets fewer in each millisecond.
const AT_ONCE: usize = 20;

/// So many requests in each millisecond, until the changes are over.
pub(crate) async fn load<B: Backend>(
    layer: ThrottleLayer<B>,
    each: u64,
    is_over: Arc<AtomicBool>,
) -> Arc<Counts> {
    let (counts, places) = (
        Arc::new(Counts::default()),
        Arc::new(Semaphore::new(AT_ONCE)),
    );
    let (mut ticks, mut sent) = (interval(Duration::from_millis(1)), Vec::new());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    while !is_over.load(Ordering::Relaxed) || (sent.len() as u64) < each * MOST {
        ticks.tick().await;
        for _ in 0..each {
            let place = Arc::clone(&places).acquire_owned().await.unwrap();
            let sending = send(layer.clone(), Arc::clone(&counts));
            sent.push(tokio::spawn(async move {
                sending.await;
                drop(place);
            }));
        }
    }
    for sent in sent {
        sent.await.unwrap();
    }
    counts
}
