//! Answers that make no sense, caused by the server or by another program that writes to it.

use std::sync::Arc;
use std::time::Duration;

use throttle_test_servers::{Proxy, Server};

use crate::app::{Heard, Mode};
use crate::course::Course;
use crate::server::single;
use crate::{aside, place};

/// Another program stores a list in place of a key. Requests about that key are degraded, all others are not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn something_else_in_a_keys_place() {
    let _place = place().await;
    let server = Arc::new(aside(Server::start).await);
    let url = server.url();
    // The deadline is long enough that a stall of the machine makes no answer late.
    let mut course = Course::start(|| single(&url).deadline(Duration::from_secs(2))).await;
    let scanned = Arc::clone(&server);
    let names = aside(move || scanned.keys("*wide:*key-03")).await;
    let names: Vec<String> = names.into_iter().map(|name| String::from_utf8(name).expect("readable names")).collect();
    assert_eq!(names.len(), Mode::ALL.len(), "{names:?}");
    course.fault_begins();
    let put = |words: &'static [&'static str]| {
        let (server, names) = (Arc::clone(&server), names.clone());
        aside(move || {
            for name in names {
                server.command(&["DEL", &name]);
                let words: Vec<&str> = [words[0], &name].into_iter().chain(words[1..].iter().copied()).collect();
                server.command(&words);
                server.command(&["PEXPIRE", &name, "60000"]);
            }
        })
    };
    put(&["RPUSH", "of", "things"]).await;
    course.run_for(Duration::from_secs(1)).await;
    put(&["SET", "nonsense"]).await;
    course.run_for(Duration::from_secs(1)).await;
    let (cleared, cleared_names) = (Arc::clone(&server), names.clone());
    aside(move || cleared_names.iter().for_each(|name| drop(cleared.command(&["DEL", name])))).await;
    course.fault_ends();
    course.run_for(Duration::from_millis(500)).await;
    let report = course.finish().await;
    report.check_answers("something else in a key's place for 2 s");
    report.check_most_in_time();
    report.check_return("something else");
    for run in &report.runs {
        let elsewhere = run.samples.iter().find(|sample| sample.is_degraded() && sample.key != "key-03");
        assert!(elsewhere.is_none(), "{elsewhere:?}");
        let degraded = run.samples.iter().filter(|sample| sample.is_degraded()).count();
        assert!(degraded >= 10, "{degraded} were degraded");
        assert_eq!(run.app.backend.stats().breaker_openings, 0, "the server is well");
    }
    assert_eq!(server.keys_without_ttl(), Vec::<String>::new());
}

/// Whatever the bytes are, they admit no request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_replies() {
    let _place = place().await;
    let garbage: [&[u8]; 6] = [
        b"+OK\r\n",
        b"$9\r\n\0\0\0\0\0\0\0\0A\r\n",
        b"$13\r\nAAAAAAAAAAAAA\r\n",
        b"\xff\xfe\0garbage without an end",
        b"*1\r\n:1\r\n",
        b"-WRONGTYPE Operation against a key\r\n",
    ];
    let server = Arc::new(aside(Server::start).await);
    let proxy = Arc::new(Proxy::start(server.port()));
    let url = proxy.url();
    let mut course = Course::start(|| single(&url)).await;
    course.fault_begins();
    for bytes in garbage {
        proxy.replace_replies(Some(bytes));
        course.run_for(Duration::from_millis(400)).await;
    }
    let last = std::time::Instant::now();
    proxy.replace_replies(None);
    course.fault_ends();
    // The rest of the last piece precedes the answers on that connection.
    course.until_decided_since(last, Duration::from_secs(3)).await;
    course.run_for(Duration::from_millis(500)).await;
    let report = course.finish().await;
    report.check("garbage for 2.4 s");
    report.check_return("garbage");
    report.check_charges(&[&server], 0, true);
    for run in &report.runs {
        let began = last - Duration::from_millis(2300);
        let during = run.samples.iter().filter(|sample| sample.sent > began && sample.sent < last);
        let decided: Vec<_> =
            during.filter(|sample| matches!(sample.heard, Heard::Admitted | Heard::Refused)).collect();
        assert!(decided.is_empty(), "decided by garbage: {decided:?}");
    }
}
