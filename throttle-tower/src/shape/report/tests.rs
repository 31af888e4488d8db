use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use throttle_core::Rate;

use super::super::pace::Pace;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use super::super::shaper::Shaper;
use super::*;

/// The events, each with its fields.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<String>>>);

impl<S: tracing::Subscriber> Layer<S> for Events {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut text = event.metadata().target().to_owned();
        event.record(
            &mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
                text += &format!(" {field}={value:?}");
            },
        );
        self.0.lock().unwrap().push(text);
    }
}

#[tokio::test(start_paused = true)]
async fn shape_pause_is_logged_once_without_its_key() {
    let events = Events::default();
    let _listening =
        tracing::subscriber::set_default(tracing_subscriber::registry().with(events.clone()));
    // While tests of other threads begin or cease to listen, an event may be missed.
    for _ in 0..100 {
        let shaper = Shaper::new(Pace::new(Rate::per_second(10))).unwrap();
        let headers = HeaderMap::from_iter([(http::header::RETRY_AFTER, 30.into())]);
        let obey = |left| {
            shaper.obey("secret", left, StatusCode::TOO_MANY_REQUESTS, &headers);
            shaper.pause("secret", Duration::from_secs(40));
        };
        let left = Instant::now();
        (0..5).for_each(|_| obey(left));
        if !events.0.lock().unwrap().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        tracing::callsite::rebuild_interest_cache();
    }
    let events = events.0.lock().unwrap();
    let event = "throttle message=calls paused status=429 wait=30s by=\"refused\" left_out=0";
    assert_eq!(*events, [event]);
}
