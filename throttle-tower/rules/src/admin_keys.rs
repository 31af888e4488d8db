//! Keys that are treated differently for a while, over HTTP.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::routing::get;
use axum::{Json, Router};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use throttle_core::backend::{ExceptedKey, Exception, Strikes, Treatment};
use throttle_core::{BackendError, ConfigError, Timestamp};

use super::Rules;
use super::admin_request::{
    About, Body, Name, Rejection, RequestDescription, failed, head, known, read_json, read_query,
    refused, wrong,
};
use super::handle::Handle;
use super::registry::Registry;
use super::values::read_duration;

/// Most keys in a list.
const MOST: usize = 1_000;
const EXAMPLE: &str =
    "write {\"request\": {\"uri\": \"/login\"}, \"treatment\": \"exempt\", \"for\": \"1h\"}";

pub(super) fn router<S: Clone + Send + Sync + 'static>(handle: &Handle) -> Router<S> {
    let [set, lift, list] = [(); 3].map(|()| handle.clone());
    let of_keys = get(async move |name: Name| {
        let name = known(&list, name)?;
        let keys = list
            .exceptions(&name, MOST)
            .await
            .map_err(|error| failed(&error))?;
        Ok::<_, Rejection>(Json(
            json!({ "keys": keys.iter().map(shown).collect::<Vec<_>>() }),
        ))
    })
    .put(async move |name: Name, body: Body| {
        let (name, asked) = (
            known(&set, name)?,
            read_json::<TreatmentBody>(body, EXAMPLE)?,
        );
        let (exception, head) = (asked.exception()?, head(asked.request)?);
        let done = match exception {
            None => set.drain(&name, &head).await,
            exception => set.except(&name, &head, exception).await,
        };
        let why = "the limit does not apply to this request, or finds no key in it: POST /explain \
            says why";
        let answer = |done| {
            if done {
                json!({ "set": true })
            } else {
                json!({ "set": false, "why": why })
            }
        };
        done.map(|done| Json(answer(done)))
            .map_err(|error| not_set(&error))
    })
    .delete(async move |name: Name, about: About| {
        let (name, head) = (known(&lift, name)?, read_query(about)?);
        let done = lift.except(&name, &head, None).await;
        done.map(|done| Json(json!({ "lifted": done })))
            .map_err(|error| failed(&error))
    });
    Router::new().route("/keys/{name}", of_keys)
}

fn not_set(error: &BackendError) -> Rejection {
    match std::error::Error::source(error) {
        Some(wrong) if wrong.is::<ConfigError>() => {
            refused(StatusCode::BAD_REQUEST, wrong.to_string())
        }
        Some(why) => refused(StatusCode::BAD_GATEWAY, format!("{error}: {why}")),
        None => failed(error),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TreatmentBody {
    request: RequestDescription,
    treatment: String,
    limit: Option<String>,
    until: Option<u64>,
    r#for: Option<String>,
}

impl TreatmentBody {
    /// `None` if the key is drained, which is done at once.
    fn exception(&self) -> Result<Option<Exception>, Rejection> {
        let treatment = match (self.treatment.as_str(), &self.limit) {
            ("drained", None) if self.until.is_none() && self.r#for.is_none() => return Ok(None),
            ("exempt", None) => Treatment::Exempt,
            ("blocked", None) => Treatment::Blocked,
            ("limit", Some(limit)) => limit_of(limit)?,
            (other, limit) => {
                let value = format_args!(
                    "{other:?}, {} a limit",
                    if limit.is_some() { "with" } else { "without" }
                );
                let rule =
                    "write exempt, blocked, limit with the algorithm in limit, or drained alone";
                return Err(wrong("treatment", value, rule));
            }
        };
        Ok(Some(Exception {
            treatment,
            until: self.until()?,
        }))
    }

    fn until(&self) -> Result<Timestamp, Rejection> {
        let after = |since: Duration| Timestamp::EPOCH + since;
        match (self.until, &self.r#for) {
            (Some(seconds), None) => Ok(after(Duration::from_secs(seconds))),
            (None, Some(text)) => {
                let rule = "it must be a duration, as in \"15m\" or \"1h\"";
                let time = read_duration(text)
                    .ok_or_else(|| wrong("for", format_args!("{text:?}"), rule))?;
                Ok(after(
                    SystemTime::now()
                        .duration_since(UNIX_EPOCH)
                        .unwrap_or_default()
                        + time,
                ))
            }
            (until, _) => {
                let value = if until.is_some() {
                    "there, and so is for"
                } else {
                    "missing, and so is for"
                };
                Err(wrong(
                    "until",
                    value,
                    "write until (seconds since 1970) or for (a duration, as in \"1h\")",
                ))
            }
        }
    }
}

/// The algorithm of a limit that a rule file would say so.
fn limit_of(limit: &str) -> Result<Treatment, Rejection> {
    let rule = "write one algorithm and nothing else, as in \"gcra = { rate = \\\"9/s\\\" }\"";
    let wrong = || wrong("limit", format_args!("{limit:?}"), rule);
    // An exception has no other fields of a limit, and would drop them. What is no TOML gets the
    // file's error below.
    if toml::from_str::<toml::Table>(limit).is_ok_and(|fields| fields.len() != 1) {
        return Err(wrong());
    }
    let text = format!("version = 1\n[[limit]]\nname = \"limit\"\nby = \"constant\"\n{limit}");
    let rules = Rules::from_str("limit", &text, Registry::new());
    let rules = rules.map_err(|error| refused(StatusCode::BAD_REQUEST, error.to_string()))?;
    match rules.tree().policies().unwrap_or_default().as_slice() {
        [policy] if !policy.is_tiered() => Ok(Treatment::Limit(Arc::new(*policy.algorithm()))),
        _ => Err(wrong()),
    }
}

/// Since 1970; 0 where there was no ban.
fn seconds(until: Timestamp) -> i64 {
    until
        .max(Timestamp::EPOCH)
        .as_micros()
        .div_euclid(1_000_000)
}

fn shown(ExceptedKey { key, exception }: &ExceptedKey) -> Value {
    let treatment = match &exception.treatment {
        Treatment::Exempt => json!("exempt"),
        Treatment::Blocked => json!("blocked"),
        Treatment::Limit(limit) => {
            let (count, period) = (limit.rate().count(), limit.rate().period_micros());
            json!({ "algorithm": limit.name(), "count": count, "period_us": period, "capacity": limit.capacity() })
        }
        Treatment::Struck(Strikes {
            banned_until,
            strikes,
            level,
            ..
        }) => {
            json!({ "banned_until": seconds(*banned_until), "bans": level, "strikes": strikes })
        }
    };
    json!({ "key": key, "treatment": treatment, "until": seconds(exception.until) })
}
