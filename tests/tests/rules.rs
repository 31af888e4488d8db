//! A rule file that changes under load, in every way in which files are changed. `rules_fleet.rs` has the same over two
//! processes.

#[path = "support/alternating.rs"]
mod alternating;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use alternating::{CHANGES, Folder, MOST, Way, load};
use throttle_tower::MemoryBackend;
use throttle_tower::rules::{Handle, Registry, Rules};

/// Changes the file a thousand times, and reads it whenever it has changed; now and then in the middle of a write, which
/// leaves the limits as they are. Returns how many files were refused.
fn change(way: Way, folder: &Path, handle: &Handle) -> u64 {
    let mut refused = 0;
    for n in 1..=CHANGES {
        way.put(folder, n);
        handle.reload().unwrap();
        if way.cut_off(folder, n) {
            refused += u64::from(handle.reload().is_err());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    refused
}

#[expect(clippy::print_stdout, reason = "the counts are part of the result")]
fn alternate(way: Way) {
    let folder = Folder::new(&format!("rules-{way:?}"));
    way.put(&folder.0, 0);
    let rules = Rules::from_path(folder.0.join("throttle.toml"), Registry::new()).unwrap();
    let (layer, handle) = rules.layer(MemoryBackend::new()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let load = runtime.spawn(load(layer, 2, Arc::clone(&is_over)));
    let refused = change(way, &folder.0, &handle);
    is_over.store(true, Ordering::Relaxed);
    let counts = runtime.block_on(load).unwrap();
    let [admitted, over] = [&counts.admitted, &counts.refused].map(|count| count.load(Ordering::Relaxed));
    let [even, odd] = [0, 1].map(|n| counts.by[n].load(Ordering::Relaxed));
    println!(
        "{way:?}: {admitted} admitted and {over} refused while {CHANGES} changes were put in force; {even} and {odd} by \
         the two versions; {refused} files refused"
    );
    assert!((2_000..=MOST).contains(&admitted), "{admitted}");
    assert!(even > 0 && odd > 0);
    assert_eq!((refused, handle.status().revision), (way.cuts(), CHANGES + 1), "{:?}", handle.status());
}

#[test]
fn law_05_files_alternate_under_load_in_memory() {
    Way::ALL.into_iter().for_each(alternate);
}
