//! Rule files that change under load, in every way in which files are changed.

use std::convert::Infallible;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use throttle_core::Backend;
use throttle_redis::{RedisBackend, Single};
use throttle_test_servers::Shared;
use throttle_tower::rules::{Handle, Registry, Rules};
use throttle_tower::{MemoryBackend, ThrottleLayer};
use tokio::time::{MissedTickBehavior, interval};
use tower::{Layer, ServiceExt, service_fn};

const CHANGES: u64 = 1_000;
/// What the larger of the two files admits.
const MOST: u64 = 3_000;

/// Each version has limits that the other has not, or other numbers for them.
fn version(n: u64) -> String {
    let limit = |name: &str, count: u64| {
        format!("[[limit]]\nname = \"{name}\"\nby = \"constant\"\nfixed-window = {{ rate = \"{count}/30d\" }}\n")
    };
    let others = if n.is_multiple_of(2) { limit("b", 9_000) } else { limit("b", 8_000) + &limit("c", 7_000) };
    let most = if n.is_multiple_of(2) { MOST } else { 2_000 };
    format!("version = 1\n[defaults]\non-error = \"closed\"\n{}{others}", limit("a", most))
}

const POLICIES: [&str; 2] = [
    "\"a\";q=3000;w=2592000, \"b\";q=9000;w=2592000",
    "\"a\";q=2000;w=2592000, \"b\";q=8000;w=2592000, \"c\";q=7000;w=2592000",
];

/// A folder that is removed with its files.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
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
enum Way {
    Rename,
    Truncate,
    Link,
}

impl Way {
    fn put(self, folder: &Path, n: u64) {
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
}

#[derive(Default)]
struct Counts {
    admitted: AtomicU64,
    refused: AtomicU64,
    /// Responses by the version that decided.
    by: [AtomicU64; 2],
}

async fn send<B: Backend>(layer: ThrottleLayer<B>, counts: Arc<Counts>) {
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
    let response = layer.layer(inner).oneshot(Request::new(())).await.unwrap();
    let policies = response.headers().get("ratelimit-policy").map(|value| value.to_str().unwrap().to_owned());
    match response.status() {
        StatusCode::OK => &counts.admitted,
        StatusCode::TOO_MANY_REQUESTS => &counts.refused,
        status => panic!("{status}"),
    }
    .fetch_add(1, Ordering::Relaxed);
    let by = POLICIES.iter().position(|known| Some(*known) == policies.as_deref());
    counts.by[by.unwrap_or_else(|| panic!("decided by a mixture: {policies:?}"))].fetch_add(1, Ordering::Relaxed);
}

/// Two requests in each millisecond, over all processes in turn, until the changes are over.
async fn load<B: Backend>(layers: Vec<ThrottleLayer<B>>, is_over: Arc<AtomicBool>) -> Arc<Counts> {
    let counts = Arc::new(Counts::default());
    let (mut ticks, mut sent) = (interval(Duration::from_millis(1)), Vec::new());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    while !is_over.load(Ordering::Relaxed) || sent.len() < 2 * MOST as usize {
        ticks.tick().await;
        for _ in 0..2 {
            let layer = layers[sent.len() % layers.len()].clone();
            sent.push(tokio::spawn(send(layer, Arc::clone(&counts))));
        }
    }
    for sent in sent {
        sent.await.unwrap();
    }
    counts
}

/// Changes the file a thousand times. Each process reads it whenever it has changed, and now and then in the middle of
/// a write, which leaves its limits as they are.
fn change(way: Way, folder: &Path, handles: &[Handle]) -> u64 {
    let mut refused = 0;
    for n in 1..=CHANGES {
        way.put(folder, n);
        for handle in handles {
            handle.reload().unwrap();
        }
        if matches!(way, Way::Truncate) && n % 100 == 0 {
            fs::write(folder.join("throttle.toml"), "").unwrap();
            handles.iter().for_each(|handle| refused += u64::from(handle.reload().is_err()));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    refused
}

/// Runs the load on one layer for each backend, while the file that all of them follow changes.
#[expect(clippy::print_stdout, reason = "the counts are part of the result")]
fn alternate<B: Backend>(name: &str, way: Way, backends: Vec<B>) {
    let folder = Folder::new(&format!("rules-{name}-{way:?}"));
    way.put(&folder.0, 0);
    let read =
        |backend| Rules::from_path(folder.0.join("throttle.toml"), Registry::new()).unwrap().layer(backend).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let _entered = runtime.enter();
    let (layers, handles): (Vec<_>, Vec<_>) = backends.into_iter().map(read).unzip();
    let is_over = Arc::new(AtomicBool::new(false));
    let load = runtime.spawn(load(layers, Arc::clone(&is_over)));
    let refused = change(way, &folder.0, &handles);
    is_over.store(true, Ordering::Relaxed);
    let counts = runtime.block_on(load).unwrap();
    let [admitted, over] = [&counts.admitted, &counts.refused].map(|count| count.load(Ordering::Relaxed));
    let [even, odd] = [0, 1].map(|n| counts.by[n].load(Ordering::Relaxed));
    println!(
        "{name}, {way:?}: {admitted} admitted and {over} refused while {CHANGES} changes were put in force; {even} and \
         {odd} by the two versions; {refused} files refused"
    );
    assert!((2_000..=MOST).contains(&admitted), "{admitted}");
    assert!(even > 0 && odd > 0);
    assert_eq!(refused, if matches!(way, Way::Truncate) { handles.len() as u64 * CHANGES / 100 } else { 0 });
    assert!(handles.iter().all(|handle| handle.status().revision == CHANGES + 1), "{:?}", handles[0].status());
}

const WAYS: [Way; 3] = [Way::Rename, Way::Truncate, Way::Link];

#[test]
fn law_05_files_alternate_under_load_in_memory() {
    WAYS.into_iter().for_each(|way| alternate("memory", way, vec![MemoryBackend::new()]));
}

#[test]
fn law_05_files_alternate_under_load_on_redis_in_two_processes() {
    for way in WAYS {
        let shared = Shared::new();
        // Each with connections, batches and policies of its own, as two processes have them.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let _entered = runtime.enter();
        alternate("redis", way, vec![backend(&shared), backend(&shared)]);
    }
}

fn backend(shared: &Shared) -> RedisBackend {
    let builder = RedisBackend::builder(Single::new(&shared.url()).unwrap()).prefix(shared.prefix());
    builder.deadline(Duration::from_secs(10)).build().unwrap()
}
