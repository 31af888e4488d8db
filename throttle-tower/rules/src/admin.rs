//! The rules in force over HTTP, for operators.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use axum::{Json, Router};
use http::request::Parts;
use serde::Deserialize;
use serde_json::{Value, json};

use super::admin_keys;
use super::admin_request::{
    About, Body, Name, Rejection, failed, known, read_body, read_query, unknown,
};
use super::explanation::{ExplainedLimit, Explanation, KeyBalance, Verdict};
use super::handle::Handle;

/// Most bytes of a description of a request.
const MAX_BYTES: usize = 64 * 1024;

impl Handle {
    /// Returns a router that shows the rules in force and explains what they would do with a
    /// request. It changes nothing, but for the reset of a key and its exceptions.
    ///
    /// Nest it behind your own authentication: it has none, shows your limits to every reader, and
    /// lets every reader reset keys and exempt them.
    ///
    /// | request | answer |
    /// |---|---|
    /// | `GET /rules` | `file`, `revision`, `hash`, `loaded_at` and `failing_since` in seconds since 1970 (the latter, like `last_error`, null unless the last attempt to read the file has failed), and the `text` in force |
    /// | `POST /explain` | what would happen to the request that the body describes: see [`explain`](Self::explain) |
    /// | `GET /limits/{name}?request=…` | the same for one limit |
    /// | `DELETE /limits/{name}?request=…` | makes the request's key in this limit unused; `reset` is false if the limit does not apply to it |
    /// | `PUT /keys/{name}` | [treats](Self::except) the key of a request differently for a while, in this limit; `set` is false, with `why`, if the limit does not apply to it or finds no key |
    /// | `DELETE /keys/{name}?request=…` | lifts that, and pardons a banned key; `lifted` is false if the limit does not apply |
    /// | `GET /keys/{name}` | the first 1,000 `keys` that are treated so: `key` (as the store calls it), `treatment` and `until` in seconds since 1970. Of a key with [strikes](throttle_tower::Limit::ban) the treatment has their number, `bans`, and `banned_until`, and `until` is when they are forgotten |
    ///
    /// The body of a `PUT` has the `request`; the `treatment`: `exempt`, `blocked`, or `limit` with
    /// the algorithm in `limit`, as a rule file says it; and `until` in seconds since 1970, or
    /// `for` with a duration. With the treatment `drained`, which has neither, the key has nothing
    /// [left](Self::drain) now and recovers from there:
    ///
    /// ```text
    /// curl -X PUT localhost:3007/admin/keys/login -d '{"treatment": "limit", "limit": "sliding-log = { rate = \"50/15m\" }",
    ///     "for": "2h", "request": {"method": "POST", "uri": "/login", "route": "/login", "peer": "203.0.113.9"}}'
    /// ```
    ///
    /// A request is described in JSON, as the limits see it: `uri`, and where it matters `method`
    /// (by default GET), `headers`, `peer` (the address that the connection comes from) and `route`
    /// (as axum writes it):
    ///
    /// ```text
    /// curl localhost:3007/admin/explain -d '{"method": "POST", "uri": "/login", "route": "/login", "peer": "203.0.113.9"}'
    /// curl -G -X DELETE localhost:3007/admin/limits/login --data-urlencode \
    ///     'request={"method": "POST", "uri": "/login", "route": "/login", "peer": "203.0.113.9"}'
    /// ```
    ///
    /// An explanation has `admitted`, `held` (the request waits, and is then admitted),
    /// `retry_after_ms` (after which time the request [would be](super::Explanation::retry_after);
    /// null if it never is or if that is not known), and `limits` with `name`, `by` (as the file
    /// says it, in JSON), `verdict` (`admits`, `holds`, `refuses`, `skips`, or `would-refuse` if an
    /// [audited](throttle_tower::Limit::audit) limit has too little left) and `why` it skips or refuses
    /// without looking at what is left. If the limit looks, it has `cost`, `left`, `of` (what an
    /// unused key has), `retry_after_ms`, `resets_in_ms`, `has_key` (false where all requests
    /// without a key share a budget), `excepted` (true if an exception of the key decides) and the
    /// number of the `tier`, which is 255 for parameters of the identity's own; for a limit with
    /// classes also the request's `class` and its `reserve`, which is not among what is left. If
    /// the whole layer does not apply to the request, the explanation says why in `layer_skips`.
    /// Fields may be added in later versions.
    ///
    /// A description that cannot be read is answered with 400, one of more than 64 KiB with 413, an
    /// unknown limit with 404, and a store that fails with 502; each has an `error` that says what
    /// to do. The key of a request that is described in a query may be in logs of proxies: reset by
    /// `Handle::reset` where that matters.
    ///
    /// ```
    /// use axum::Router;
    /// use http::{Request, StatusCode};
    /// use throttle_tower::MemoryBackend;
    /// use throttle_rules::{Registry, Rules};
    /// use tower::ServiceExt;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let rules = Rules::from_str("throttle.toml", "version = 1\nlimit = []", Registry::new())?;
    /// let (throttle, handle) = rules.layer(MemoryBackend::new())?;
    /// let app: Router = Router::new().nest("/admin", handle.admin()); // In production: handle.admin().layer(authentication).
    /// let response = app
    ///     .oneshot(Request::get("/admin/rules").body(String::new())?)
    ///     .await?;
    /// assert_eq!(response.status(), StatusCode::OK);
    /// # let _ = throttle;
    /// # Ok(())
    /// # }
    /// ```
    pub fn admin<S: Clone + Send + Sync + 'static>(&self) -> Router<S> {
        let [rules, explain, look, reset] = [(); 4].map(|()| self.clone());
        Router::new()
            .route("/rules", get(async move || Json(shown_rules(&rules))))
            .route(
                "/explain",
                post(async move |body: Body| {
                    let explained = explained(&explain, &read_body(body)?).await?;
                    Ok::<_, Rejection>(Json(shown(&explained)))
                }),
            )
            .route(
                "/limits/{name}",
                get(async move |name: Name, about: About| {
                    let name = known(&look, name)?;
                    let explained = explained(&look, &read_query(about)?).await?;
                    let limit = explained
                        .limits
                        .into_iter()
                        .find(|limit| limit.name == name);
                    limit
                        .map(|limit| Json(shown_limit(&limit)))
                        .ok_or_else(|| unknown(&name))
                })
                .delete(async move |name: Name, about: About| {
                    let (name, head) = (known(&reset, name)?, read_query(about)?);
                    let done = reset.reset(&name, &head).await;
                    done.map(|reset| Json(json!({ "reset": reset })))
                        .map_err(|error| failed(&error))
                }),
            )
            .merge(admin_keys::router(self))
            .layer(DefaultBodyLimit::max(MAX_BYTES))
    }
}

async fn explained(handle: &Handle, head: &Parts) -> Result<Explanation, Rejection> {
    handle.explain(head).await.map_err(|error| failed(&error))
}

fn shown_rules(handle: &Handle) -> Value {
    let (status, text) = handle.status_and_text();
    json!({
        "file": status.file,
        "revision": status.revision,
        "hash": status.hash,
        "loaded_at": seconds(status.loaded_at),
        "failing_since": status.failing_since.map(seconds),
        "last_error": status.last_error.map(|error| error.to_string()),
        "text": text,
    })
}

/// Seconds since 1970.
pub(super) fn seconds(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Milliseconds, rounded up: a client that comes earlier would come too early.
fn millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

fn shown(explained: &Explanation) -> Value {
    let Explanation {
        is_admitted,
        is_held,
        retry_after,
        layer_skips,
        limits,
    } = explained;
    let mut shown = json!({
        "admitted": is_admitted,
        "held": is_held,
        "retry_after_ms": retry_after.map(millis),
        "limits": limits.iter().map(shown_limit).collect::<Vec<_>>(),
    });
    if let Some(why) = layer_skips {
        shown["layer_skips"] = json!(why);
    }
    shown
}

fn shown_limit(limit: &ExplainedLimit) -> Value {
    let ExplainedLimit {
        name,
        by,
        class,
        verdict,
        left,
    } = limit;
    let (verdict, why) = match verdict {
        Verdict::Admits => ("admits", None),
        Verdict::Holds => ("holds", None),
        Verdict::Refuses => ("refuses", None),
        Verdict::WouldRefuse => ("would-refuse", None),
        Verdict::RefusesWithoutKey(status) => (
            "refuses",
            Some(format!(
                "the request has no key, and on-missing answers {}",
                status.as_u16()
            )),
        ),
        Verdict::Skips(why) => ("skips", Some(why.clone())),
    };
    let mut shown = json!({ "name": name, "by": json_of_toml(by), "verdict": verdict });
    if let Some(why) = why {
        shown["why"] = why.into();
    }
    if let Some(KeyBalance {
        cost,
        has_key,
        tier,
        is_excepted,
        reserve,
        units,
        of,
        retry_after,
        resets_in,
    }) = left
    {
        (shown["cost"], shown["left"], shown["of"]) = (json!(cost), json!(units), json!(of));
        (shown["has_key"], shown["tier"]) = (json!(has_key), json!(tier));
        if let Some(class) = class {
            (shown["class"], shown["reserve"]) = (json!(class), json!(reserve));
        }
        (shown["retry_after_ms"], shown["resets_in_ms"]) =
            (json!(retry_after.map(millis)), json!(millis(*resets_in)));
        if *is_excepted {
            shown["excepted"] = json!(true);
        }
    }
    shown
}

/// A key as the file says it, in JSON.
fn json_of_toml(by: &str) -> Value {
    #[derive(Deserialize)]
    struct By {
        by: Value,
    }

    toml::from_str(&format!("by = {by}"))
        .map(|By { by }| by)
        .unwrap_or_default()
}
