//! What the environment says.

use std::env::VarError;
use std::ops::RangeInclusive;
use std::time::Duration;

use reqwest::Url;

pub const USAGE: &str = "\
reqwest-client: a batch of calls at a steady pace. It is set by the environment:

  COUNT      calls to make, 1 to 100000 (400)
  RATE       calls a second and host, 1 to 1000 (50)
  MAX_WAIT   seconds that a call may wait for its turn, 0 to 3600 (30)
  HEADROOM   milliseconds by which calls may travel at different speeds, 0 to 1000 (20)
  PATIENCE   timeout of two calls in ten, in seconds, 1 to 3600 (2)
  URL        whom to call, http://…; without it, an upstream in this process";

pub struct Settings {
    pub count: u64,
    pub rate: u64,
    pub max_wait: Duration,
    pub headroom: Duration,
    pub patience: Duration,
    pub url: Option<Url>,
}

impl Settings {
    pub fn from_env() -> Result<Self, String> {
        Ok(Self {
            count: number("COUNT", 400, 1..=100_000)?,
            rate: number("RATE", 50, 1..=1000)?,
            max_wait: Duration::from_secs(number("MAX_WAIT", 30, 0..=3600)?),
            headroom: Duration::from_millis(number("HEADROOM", 20, 0..=1000)?),
            patience: Duration::from_secs(number("PATIENCE", 2, 1..=3600)?),
            url: variable("URL")?.map(|url| parsed(&url)).transpose()?,
        })
    }
}

fn number(name: &str, default: u64, allowed: RangeInclusive<u64>) -> Result<u64, String> {
    let Some(value) = variable(name)? else { return Ok(default) };
    value.parse().ok().filter(|number| allowed.contains(number)).ok_or_else(|| {
        format!("{name} is {value:?}: it must be a whole number from {} to {}", allowed.start(), allowed.end())
    })
}

fn parsed(url: &str) -> Result<Url, String> {
    let parsed = Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    parsed.ok_or_else(|| format!("URL is {url:?}: it must be a full one, as in http://127.0.0.1:3000/"))
}

fn variable(name: &str) -> Result<Option<String>, String> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(format!("{name} is not Unicode")),
    }
}
