//! A request's way through a layer, with the headers of two real responses.

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::get;
use http::{HeaderMap, Request, Response, StatusCode};
use throttle_core::ManualClock;
use throttle_tower::{
    ClientIp, Gcra, Header, MemoryBackend, Rate, ThrottleLayer, TokenBucket, all, limit,
};
use tower::ServiceExt;

use crate::common::Text;
use crate::svg::Picture;

/// The responses to the first request that is admitted, and to the first that is refused.
async fn responses() -> [Response<Body>; 2] {
    let limits = all([
        limit("per-ip", Gcra::new(Rate::per_second(2)).burst(20)).by(ClientIp::peer()),
        limit("per-key", TokenBucket::new(Rate::per_minute(100))).by(Header::new("x-api-key")),
    ]);
    let store = MemoryBackend::builder()
        .clock(ManualClock::default())
        .build();
    let layer = ThrottleLayer::builder(limits)
        .backend(store)
        .build()
        .unwrap();
    let app = Router::new().route("/", get(async || "hello")).layer(layer);
    let send = async || {
        let peer = ConnectInfo(SocketAddr::from(([203, 0, 113, 9], 40_000)));
        let request = Request::get("/")
            .header("x-api-key", "ada")
            .extension(peer)
            .body(Text::default())
            .unwrap();
        app.clone().oneshot(request).await.unwrap()
    };
    let admitted = send().await;
    loop {
        let refused = send().await;
        if refused.status() != StatusCode::OK {
            return [admitted, refused];
        }
    }
}

/// A header as lines: one for each member of a list.
fn lines(headers: &HeaderMap, name: &str) -> Vec<String> {
    let Some(value) = headers.get(name) else {
        return Vec::new();
    };
    let indent = " ".repeat(name.len() + 2);
    let text =
        format!("{name}: {}", value.to_str().unwrap()).replace(", ", &format!(",\n{indent}"));
    text.lines().map(str::to_owned).collect()
}

pub(crate) async fn picture() -> String {
    let mut picture = Picture::new(398, "One decision for all limits of a request");
    let mut stage = |[x, width]: [i64; 2], name: &str, lines: [&str; 3]| {
        picture.rect("edge-line line", [x, 62, width, 106], 8);
        picture.text("ink strong", x + 14, 86, name);
        for (y, line) in (111..).step_by(21).zip(lines) {
            picture.text("soft mono", x + 14, y, line);
        }
    };
    stage(
        [24, 168],
        "A request",
        ["GET /", "from 203.0.113.9", "x-api-key: ada"],
    );
    stage(
        [232, 204],
        "A key for each limit",
        ["per-ip   203.0.113.9", "per-key  ada", "cost     1"],
    );
    stage(
        [476, 300],
        "One step of the store",
        [
            "memory, Redis or your own",
            "asks both limits,",
            "charges both, or none",
        ],
    );
    picture.arrow("soft", &[(193, 114), (229, 114)]);
    picture.arrow("soft", &[(437, 114), (473, 114)]);
    picture.arrow("good", &[(536, 169), (536, 190), (208, 190), (208, 215)]);
    picture.arrow("bad", &[(592, 169), (592, 215)]);
    let [admitted, refused] = responses().await;
    outcome(
        &mut picture,
        24,
        "good",
        "Admitted: the service answers",
        &admitted,
    );
    outcome(
        &mut picture,
        408,
        "bad",
        "Refused: the service is not called",
        &refused,
    );
    picture.finish()
}

fn outcome(picture: &mut Picture, x: i64, colour: &str, title: &str, response: &Response<Body>) {
    picture.rect(&format!("{colour}-line line"), [x, 218, 368, 156], 8);
    picture.text(&format!("{colour} strong"), x + 16, 244, title);
    picture.text(
        "ink mono",
        x + 16,
        270,
        format!("HTTP/1.1 {}", response.status()),
    );
    let headers = ["ratelimit-policy", "ratelimit", "retry-after"]
        .iter()
        .flat_map(|name| lines(response.headers(), name));
    for (y, line) in (292..).step_by(20).zip(headers) {
        picture.text("ink mono", x + 16, y, line);
    }
}
