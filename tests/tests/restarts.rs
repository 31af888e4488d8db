//! A process that saves its counts is killed again and again: what a client gets in all is the
//! limit, and what was admitted since the last save before each end.

use std::env;
use std::io::{BufRead, BufReader, Write, stdout};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use throttle_core::backend::Call;
use throttle_core::{Backend, FixedWindow, Key, MemoryBackend, Policy, PolicySet, Rate};

const CHILD: &str = "THROTTLE_RESTARTED";
const LIMIT: u64 = 3_000;
const LIVES: u64 = 20;

/// One life: restores, then admits what it can and saves all the time. Prints `a` and `s` with how
/// many it has admitted so far, and how many of those a finished save is known to have.
fn live(file: &Path) {
    let backend = MemoryBackend::builder()
        .restore_file(file)
        .expect("the snapshot is whole, whenever the last one died");
    let policy = Policy::new("p", FixedWindow::new(Rate::per_day(LIMIT))).expect("a policy");
    let set = backend
        .prepare(PolicySet::new(policy).expect("a set"))
        .expect("room");
    let admitted = Arc::new(AtomicU64::new(0));
    let saving = (backend.clone(), file.to_owned(), Arc::clone(&admitted));
    std::thread::spawn(move || {
        let (backend, file, admitted) = saving;
        loop {
            let at_least = admitted.load(Ordering::SeqCst);
            backend.save(&file).expect("the folder is there");
            writeln!(stdout(), "\ns {at_least}").expect("the parent reads");
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    loop {
        if backend
            .decide_now(&set, &[Call::from(Key::from("ada"))])
            .is_admitted()
        {
            let admitted = admitted.fetch_add(1, Ordering::SeqCst) + 1;
            writeln!(stdout(), "\na {admitted}").expect("the parent reads");
        }
        std::thread::sleep(Duration::from_micros(300));
    }
}

#[test]
fn a_killed_process_forgets_only_what_it_admitted_since_its_last_save() {
    if let Some(file) = env::var_os(CHILD) {
        return live(Path::new(&file));
    }
    let folder = env::temp_dir().join(format!("throttle-restarts-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let this_test = [
        "--exact",
        "a_killed_process_forgets_only_what_it_admitted_since_its_last_save",
        "--nocapture",
    ];
    let (mut admitted, mut forgotten, mut remembered) = (0, 0, 0);
    let (mut life, began) = (0, Instant::now());
    // On a busy machine a life admits and saves little: then there are more of them.
    while life < LIVES || admitted < LIMIT / 2 || remembered <= 100 {
        assert!(
            began.elapsed() < Duration::from_secs(120),
            "{admitted} admitted in {life} lives, and {remembered} saved: nothing is shown"
        );
        let mut child = Command::new(env::current_exe().expect("this program"))
            .args(this_test)
            .env(CHILD, folder.join("limits"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let ends = Instant::now() + Duration::from_millis(100 + 17 * (life % LIVES));
        let (mut of_this, mut saved) = (0, 0);
        let mut killed = false;
        for line in BufReader::new(child.stdout.take().expect("piped")).lines() {
            let line = line.expect("text");
            match line.split_once(' ') {
                Some(("a", count)) => of_this = count.parse().expect("a number"),
                Some(("s", count)) => saved = count.parse().expect("a number"),
                _ => {}
            }
            if !killed && Instant::now() > ends {
                killed = true;
                child.kill().expect("it runs");
            }
        }
        child.wait().expect("it was killed");
        assert!(killed, "the process ended by itself");
        (admitted, forgotten, remembered) = (
            admitted + of_this,
            forgotten + of_this - saved,
            remembered + saved,
        );
        life += 1;
    }
    std::fs::remove_dir_all(&folder).ok();
    assert!(
        admitted <= LIMIT + forgotten,
        "{admitted} admitted, {forgotten} of them forgotten"
    );
}
