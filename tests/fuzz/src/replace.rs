//! Puts any texts in force, one after the other, instead of rules that are live: each is in force
//! as if it had been the first, or nothing has changed.

#![no_main]

use http::Request;
use http::request::Parts;
use libfuzzer_sys::{Corpus, fuzz_target};
use throttle_fuzz::{backend, check_error, rules};
use throttle_rules::{Explanation, Handle};
use tokio::runtime::{Builder, Runtime};

const FIRST: &str = r#"
version = 1

[[limit]]
name = "gcra"
gcra = { rate = "10/second", burst = 20 }
by = "api-key"

[[limit]]
name = "log"
sliding-log = { rate = "5/15m" }
by = "constant"
match = { methods = ["POST"], paths = ["/login"] }

[[concurrency]]
most = 4
"#;

/// Most texts that follow each other.
const MOST_TEXTS: usize = 4;

thread_local! {
    /// Keys that a future returns have a deadline.
    static RUNTIME: Runtime = Builder::new_current_thread().enable_time().build().expect("a \
        runtime");
}

fn heads() -> [Parts; 3] {
    let head =
        |request: http::request::Builder| request.body(()).expect("a request").into_parts().0;
    [
        head(Request::get("/")),
        head(Request::post("http://api.example.com/login").header("x-api-key", "a")),
        head(
            Request::put("/api//users/%2e%2e/1;a=b")
                .header("host", "a.example.org")
                .header("x-tenant", "b"),
        ),
    ]
}

/// What the rules in force would do with requests. It charges nothing, so rules that were just put
/// in force answer as rules that were there from the start.
fn explained(handle: &Handle) -> Vec<Explanation> {
    let explain = |head: &Parts| RUNTIME.with(|runtime| runtime.block_on(handle.explain(head)));
    heads()
        .iter()
        .map(|head| explain(head).expect("a store in memory"))
        .collect()
}

fn replace(texts: &str) {
    let (layer, handle) = rules(FIRST)
        .and_then(|rules| rules.layer(backend()))
        .expect(
            "the first \
        rules",
        );
    for text in texts.split('\0').take(MOST_TEXTS) {
        let (before, before_explained) = (handle.status(), explained(&handle));
        let fresh = rules(text).and_then(|rules| rules.layer(backend()));
        let replaced = handle.replace(text);
        let status = handle.status();
        match (replaced, fresh) {
            (Ok(change), Ok((_fresh_layer, fresh))) => {
                let revisions = before.revision + u64::from(before.hash != status.hash);
                assert_eq!((status.revision, change.revision), (revisions, revisions));
                assert!(status.last_error.is_none() && status.failing_since.is_none());
                assert_eq!(status.hash, fresh.status().hash);
                assert_eq!(
                    format!("{:?}", handle.rules()),
                    format!("{:?}", fresh.rules())
                );
                assert_eq!(explained(&handle), explained(&fresh));
                assert!(!change.to_string().is_empty());
            }
            (Err(error), Err(fresh)) => {
                check_error(&error, text);
                assert_eq!(error, fresh);
                assert_eq!(
                    (status.revision, status.hash),
                    (before.revision, before.hash)
                );
                assert_eq!(status.loaded_at, before.loaded_at);
                assert_eq!(status.last_error, Some(error));
                assert_eq!(explained(&handle), before_explained);
            }
            (replaced, fresh) => panic!(
                "{replaced:?}, and from the start {:?}",
                fresh.map(|(_, handle)| handle)
            ),
        }
    }
    drop(layer);
}

fuzz_target!(|bytes: &[u8]| -> Corpus {
    let Ok(texts) = str::from_utf8(bytes) else {
        return Corpus::Reject;
    };
    replace(texts);
    Corpus::Keep
});
