//! Answers that make no sense, caused by the server or by another program that writes to it.

use std::time::{Duration, Instant};

use throttle_test_servers::{Proxy, Server};

use crate::app::{Heard, Mode};
use crate::course::Course;
use crate::place;
use crate::server::single;

/// Another program stores a list in place of a key. Requests about that key are degraded, all
/// others are not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn something_else_in_a_keys_place() {
    let _place = place().await;
    let server = Server::start();
    // The deadline is long enough that a stall of the machine makes no answer late.
    let course = Course::start(|| single(&server.url()).deadline(Duration::from_secs(2))).await;
    let names = server.keys("*wide:*key-03");
    let names: Vec<String> = names
        .into_iter()
        .map(|name| String::from_utf8(name).expect("readable names"))
        .collect();
    assert_eq!(names.len(), Mode::ALL.len(), "{names:?}");
    // In one step: a request in between would put its own value there.
    const PUT: &str = "redis.call('DEL', KEYS[1])
        redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))
        redis.call('PEXPIRE', KEYS[1], 60000)";
    let put = |words: &[&str]| {
        for name in &names {
            server.command(&[&["EVAL", PUT, "1", name], words].concat());
        }
    };
    let fault = async |course: &Course| {
        put(&["RPUSH", "of", "things"]);
        course.run_for(Duration::from_secs(1)).await;
        put(&["SET", "nonsense"]);
        course.run_for(Duration::from_secs(1)).await;
        names
            .iter()
            .for_each(|name| drop(server.command(&["DEL", name])));
    };
    let report = course.with(fault, Duration::from_millis(500)).await;
    report.check_answers("something else in a key's place for 2 s");
    report.check_most_in_time();
    report.check_return("something else");
    for run in &report.runs {
        let elsewhere = run
            .samples
            .iter()
            .find(|sample| sample.is_degraded() && sample.key != "key-03");
        assert!(elsewhere.is_none(), "{elsewhere:?}");
        let degraded = run
            .samples
            .iter()
            .filter(|sample| sample.is_degraded())
            .count();
        assert!(degraded >= 10, "{degraded} were degraded");
        assert_eq!(
            run.app.backend.stats().breaker_openings,
            0,
            "the server is well"
        );
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
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let mut last = Instant::now();
    let fault = async |course: &Course| {
        for bytes in garbage {
            proxy.replace_replies(Some(bytes));
            course.run_for(Duration::from_millis(400)).await;
        }
        last = Instant::now();
        proxy.replace_replies(None);
    };
    // An attempt to connect hangs if the garbage has no end, and the next one begins after it.
    let backend = || single(&proxy.url()).connect_timeout(Duration::from_millis(400));
    let report = Course::through(backend, fault, Duration::from_secs(1)).await;
    report.check("garbage for 2.4 s");
    report.check_return("garbage");
    report.check_charges(&[&server], 0);
    for run in &report.runs {
        let began = last - Duration::from_millis(2300);
        let during = run
            .samples
            .iter()
            .filter(|sample| sample.sent > began && sample.sent < last);
        let decided: Vec<_> = during
            .filter(|sample| matches!(sample.heard, Heard::Admitted | Heard::Refused))
            .collect();
        assert!(decided.is_empty(), "decided by garbage: {decided:?}");
    }
}
