//! Refuses calls of any content type, by limits of any names: what a client of gRPC gets, tonic
//! decodes.

#![no_main]

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use throttle_core::{ManualClock, MemoryBackend};
use throttle_fuzz::limits::algorithm;
use throttle_tower::{Constant, Dialect, ThrottleLayer, all, limit};
use tokio::runtime::{Builder, Runtime};
use tonic::Code;
use tonic_types::StatusExt;
use tower::{Layer, ServiceExt, service_fn};

/// Most requests until the limits refuse one.
const MOST: usize = 100;

async fn check(of: &mut Unstructured<'_>) -> Result<()> {
    let names = (0..of.int_in_range(1..=10_u8)?)
        .map(|place| Ok(of.arbitrary::<String>()? + &place.to_string()));
    let names: Vec<String> = names.collect::<Result<_>>()?;
    let limits = names
        .iter()
        .map(|name| Ok(limit(name.as_str(), algorithm(of)?).by(Constant)));
    let builder = ThrottleLayer::builder(all(limits.collect::<Result<Vec<_>>>()?));
    let store = MemoryBackend::builder()
        .clock(ManualClock::default())
        .build();
    let dialect = if of.arbitrary()? {
        Dialect::None
    } else {
        Dialect::Draft11
    };
    let builder = builder
        .backend(store)
        .headers(dialect)
        .retry_jitter(of.int_in_range(0..=100)?);
    let Ok(layer) = builder.build() else {
        return Ok(());
    };
    let suffix: Vec<u8> = of.arbitrary()?;
    let family: &[u8] = of.choose(&[
        &b"application/grpc"[..],
        b"application/grpc-web",
        b"application/grpc-web-text",
        b"",
    ])?;
    let Ok(content_type) = http::HeaderValue::from_bytes(&[family, &suffix].concat()) else {
        return Ok(());
    };
    let service = layer.layer(service_fn(async |_: Request<()>| {
        Ok::<_, std::convert::Infallible>(Response::new(Bytes::new()))
    }));
    for _ in 0..MOST {
        let request = Request::post("/a.B/C")
            .header("content-type", &content_type)
            .body(())
            .expect("a request");
        let Ok(answer) = service.clone().oneshot(request).await;
        let headers = answer.headers();
        let Some(status) = tonic::Status::from_header_map(headers) else {
            let is_grpc = family == b"application/grpc"
                && matches!(suffix.first(), None | Some(b'+' | b';' | b' '));
            assert!(
                !is_grpc || answer.status() == StatusCode::OK,
                "refused without the words of \
                gRPC: {answer:?}"
            );
            if answer.status() == StatusCode::OK {
                continue;
            } else {
                return Ok(());
            }
        };
        assert_eq!(
            (answer.status(), status.code()),
            (StatusCode::OK, Code::ResourceExhausted)
        );
        let details = status
            .check_error_details()
            .expect("details that tonic decodes");
        let failure = details.quota_failure().expect("a quota");
        assert!(!failure.violations.is_empty());
        for violation in &failure.violations {
            assert!(names.contains(&violation.subject), "{violation:?}");
            assert!(status.message().contains(&violation.subject));
        }
        let info = details.error_info().expect("the limit that decided");
        assert!(names.contains(&info.metadata["policy"]));
        // A client that comes back after either of them comes back at one time.
        let pushback: i64 = headers["grpc-retry-pushback-ms"]
            .to_str()
            .ok()
            .and_then(|ms| ms.parse().ok())
            .expect("ms");
        match details.retry_info().and_then(|info| info.retry_delay) {
            None => assert_eq!(pushback, -1),
            Some(wait) if wait > Duration::from_millis(i32::MAX as u64) => assert_eq!(pushback, -1),
            Some(wait) => assert_eq!(
                u128::try_from(pushback).ok(),
                Some(wait.as_micros().div_ceil(1_000))
            ),
        }
        let echoed = headers["content-type"].as_bytes();
        assert!(
            echoed.starts_with(b"application/grpc") && echoed.len() <= 25 + 33,
            "{}",
            echoed.escape_ascii()
        );
        return Ok(());
    }
    Ok(())
}

thread_local! {
    static RUNTIME: Runtime = Builder::new_current_thread().enable_time().build().expect("a \
        runtime");
}

fuzz_target!(|bytes: &[u8]| {
    let mut of = Unstructured::new(bytes);
    let _ = RUNTIME.with(|runtime| runtime.block_on(check(&mut of)));
});
