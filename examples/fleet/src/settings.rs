//! What the environment says.

use std::env::VarError;
use std::ops::RangeInclusive;

pub const USAGE: &str = "\
fleet: processes that call one upstream at one pace, shared through Redis. It is set by the environment:

  RATE        calls a second that all of them make together, 10 to 1000 (100)
  WORKERS     processes, 2 to 8 (3)
  SECONDS     how long it takes, 5 to 3600 (15)
  OUTAGE      yes or no: whether Redis is stopped for a while (yes, if it is the demo's own)
  REDIS_URL   redis://…; without it, a redis-server is started on a free port";

#[derive(Clone)]
pub struct Settings {
    pub rate: u64,
    pub workers: u32,
    pub seconds: u64,
    pub outage: bool,
    pub redis_url: Option<String>,
}

impl Settings {
    pub fn from_env() -> Result<Self, String> {
        let redis_url = variable("REDIS_URL")?;
        let outage = match (variable("OUTAGE")?.as_deref(), &redis_url) {
            (Some("yes"), Some(_)) => {
                return Err(
                    "OUTAGE is \"yes\", but the Redis of REDIS_URL is not this demo's to stop: leave out one of them"
                        .to_owned(),
                );
            }
            (Some("yes") | None, None) => true,
            (Some("no"), _) | (None, Some(_)) => false,
            (Some(other), _) => return Err(format!("OUTAGE is {other:?}: it must be yes or no")),
        };
        Ok(Self {
            rate: number("RATE", 100, 10..=1000)?,
            workers: number("WORKERS", 3, 2..=8)?,
            seconds: number("SECONDS", 15, 5..=3600)?,
            outage,
            redis_url,
        })
    }
}

pub fn number<T>(name: &str, default: T, allowed: RangeInclusive<T>) -> Result<T, String>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Display,
{
    let Some(value) = variable(name)? else { return Ok(default) };
    value.parse().ok().filter(|number| allowed.contains(number)).ok_or_else(|| {
        format!("{name} is {value:?}: it must be a whole number from {} to {}", allowed.start(), allowed.end())
    })
}

fn variable(name: &str) -> Result<Option<String>, String> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(format!("{name} is not Unicode")),
    }
}
