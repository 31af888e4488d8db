//! A mixed load while things fail: an axum server with limits in memory and on a real Redis, held
//! and dropped requests, permits, settled charges, shaped calls, and limits that are replaced. When
//! it is over, everything that was taken has come back, the counts are exact, and the process is as
//! large as after its first minute.
//!
//! It takes `THROTTLE_SOAK` seconds, 60 by default and 20 at least.

mod app;
mod faults;
mod load;
mod resident;

use std::env;
use std::time::{Duration, Instant};

use throttle_extra::web;
use throttle_test_servers::Server;
use tokio::runtime::Handle;
use tokio::time::sleep;

use self::app::App;
use self::faults::Faults;
use self::load::Load;
use self::resident::{progress, resident_kib};

/// After a warm-up of a quarter of the time, the process may grow by so much: the allocator's and
/// the sockets' buffers.
const GROWTH_KIB: u64 = 8 * 1_024;

/// How long what is under way at the end may take: more than a request waits, and more than a
/// deadline of the store.
const LONGEST_END: Duration = Duration::from_secs(20);

fn length() -> Duration {
    let seconds = env::var("THROTTLE_SOAK")
        .ok()
        .map(|seconds| seconds.parse().expect("THROTTLE_SOAK is in seconds"));
    Duration::from_secs(seconds.unwrap_or(60).max(20))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_mixed_load_takes_comes_back_whatever_fails() {
    let (length, start) = (length(), Instant::now());
    let tasks = Handle::current().metrics().num_alive_tasks();
    let server = Server::start();
    let app = App::start(&server.url()).await;
    let mut faults = Faults::every(if length < Duration::from_secs(600) {
        10
    } else {
        60
    });
    let load = Load::start(&app);

    let mut warm = 0;
    while start.elapsed() < length {
        sleep(Duration::from_secs(1)).await;
        if warm == 0 && start.elapsed() > length / 4 {
            warm = resident_kib();
        }
        faults.tick(start.elapsed(), &server, &app).await;
        if start.elapsed().as_secs() % 10 == 0 {
            progress(&format!(
                "{:4} s: {} KiB, {}",
                start.elapsed().as_secs(),
                resident_kib(),
                app.shown()
            ));
        }
    }
    faults.end(&server);
    let sent = load.end().await;
    let took = start.elapsed();
    let grown = resident_kib().saturating_sub(warm);

    // Whatever was dropped in the middle has given its place back.
    web::until(LONGEST_END, "an end of all that was taken", async || {
        app.is_idle()
    })
    .await;
    app.check_counts(&sent, took, faults.lost_states());
    let connections = || server.query::<String>(&["CLIENT", "LIST"]).lines().count();
    assert!(
        connections() <= 1 + App::CONNECTIONS,
        "{} connections to Redis",
        connections()
    );
    app.stop().await;
    web::until(
        LONGEST_END,
        "an end of all tasks and connections",
        async || {
            let (left, connections) =
                (Handle::current().metrics().num_alive_tasks(), connections());
            // The last connection asks for the list.
            if left <= tasks && connections == 1 {
                Ok(())
            } else {
                Err(format!(
                    "{left} tasks, \
            {connections} connections"
                ))
            }
        },
    )
    .await;
    assert!(
        grown < GROWTH_KIB,
        "{grown} KiB more than the {warm} KiB after the warm-up"
    );
    progress(&format!(
        "soak: {} faults, {grown} KiB more than after the warm-up",
        faults.caused()
    ));
}
