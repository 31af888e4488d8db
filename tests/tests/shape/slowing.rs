//! An upstream's remaining units slow down the key that they belong to.

use http::{Request, Response};
use tokio::time::Instant;
use tower::{Layer, Service};

use crate::obeying::{obeying, say, upstream};

#[tokio::test(start_paused = true)]
async fn shape_slow_down_holds_for_the_key_of_the_response() {
    let layer = obeying(10).by(|request: &Request<()>| request.uri().path().into());
    let slow = say(200, &[("ratelimit", r#""api";r=5;t=50"#)]);
    let mut service = layer.layer(upstream(move |call| if call == 0 { slow.clone() } else { Response::new(()) }));
    let start = Instant::now();
    let mut times = Vec::new();
    for path in ["/slow", "/other", "/other", "/other", "/slow", "/slow"] {
        service.call(Request::get(path).body(()).unwrap()).await.unwrap();
        times.push(start.elapsed().as_millis());
    }
    assert_eq!(times, [0, 0, 100, 200, 200, 10_200]);
    assert_eq!(service.layer().stats().paused, 1);
}

#[tokio::test(start_paused = true)]
async fn shape_pause_is_followed_by_the_slower_pace_of_the_same_response() {
    let both = say(429, &[("retry-after", "1"), ("ratelimit", r#""api";r=5;t=10"#)]);
    let mut service = obeying(10).layer(upstream(move |call| if call == 0 { both.clone() } else { Response::new(()) }));
    let start = Instant::now();
    let mut times = Vec::new();
    for _ in 0..4 {
        service.call(Request::new(())).await.unwrap();
        times.push(start.elapsed().as_secs());
    }
    assert_eq!(times, [0, 1, 3, 5]);
}
