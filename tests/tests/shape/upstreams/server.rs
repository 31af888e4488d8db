//! Upstreams that count what arrives.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use http::Response;

/// How an upstream limits its calls. Times are seconds since the start.
pub(super) enum Limit {
    Window {
        most: u64,
        period: f64,
        /// How much of the first window is over at the start.
        offset: f64,
        window: f64,
        used: u64,
    },
    Sliding {
        most: usize,
        period: f64,
        seen: VecDeque<f64>,
    },
    Bucket {
        rate: f64,
        burst: f64,
        level: f64,
        at: f64,
    },
    Gone,
    Endless,
}

impl Limit {
    pub(super) fn window(most: u64, period: f64, offset: f64) -> Self {
        Self::Window {
            most,
            period,
            offset,
            window: -1.0,
            used: 0,
        }
    }

    pub(super) fn sliding(most: usize, period: f64) -> Self {
        Self::Sliding {
            most,
            period,
            seen: VecDeque::new(),
        }
    }

    pub(super) fn bucket(rate: f64, burst: f64, level: f64) -> Self {
        Self::Bucket {
            rate,
            burst,
            level,
            at: 0.0,
        }
    }

    /// Whether a call would be answered that arrives then.
    fn would_answer(&mut self, now: f64) -> bool {
        match self {
            Self::Window {
                most,
                period,
                offset,
                window,
                used,
            } => {
                let current = ((now + *offset) / *period).floor();
                if current != *window {
                    (*window, *used) = (current, 0);
                }
                used < most
            }
            Self::Sliding { most, period, seen } => {
                while seen.front().is_some_and(|at| *at <= now - *period) {
                    seen.pop_front();
                }
                seen.len() < *most
            }
            Self::Bucket {
                rate,
                burst,
                level,
                at,
            } => {
                *level = (*level + (now - *at) * *rate).min(*burst);
                *at = now;
                *level >= 1.0
            }
            Self::Gone => false,
            Self::Endless => true,
        }
    }

    fn take(&mut self, now: f64) {
        match self {
            Self::Window { used, .. } => *used += 1,
            Self::Sliding { seen, .. } => seen.push_back(now),
            Self::Bucket { level, .. } => *level -= 1.0,
            Self::Gone | Self::Endless => {}
        }
    }

    fn left(&self) -> u64 {
        match self {
            Self::Window { most, used, .. } => most - used,
            Self::Sliding { most, seen, .. } => (most - seen.len()) as u64,
            Self::Bucket { level, .. } => *level as u64,
            Self::Gone => 0,
            Self::Endless => u64::MAX,
        }
    }

    /// Until the next call is answered, and until all of the quota is back.
    fn resets(&self, now: f64) -> (f64, f64) {
        match self {
            Self::Window {
                period,
                offset,
                window,
                ..
            } => {
                let end = (window + 1.0) * period - offset - now;
                (end, end)
            }
            Self::Bucket {
                rate, burst, level, ..
            } => (((1.0 - level) / rate).max(0.0), (burst - level) / rate),
            _ => (0.0, 0.0),
        }
    }
}

/// What an upstream states.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tells {
    Nothing,
    /// What is left, and the end of the window as an instant.
    Quota,
    /// The end of the window, in a refusal.
    NextWindow,
    /// So many seconds, in a refusal.
    Wait(u64),
    /// What is left, when all is back, and in a refusal the wait for the next unit.
    Full,
    /// An error's type, in a refusal.
    ErrorType,
    /// Above half of the limit answers are late, and state a wait.
    Late,
    /// In each tenth answer, when to look at what it has begun.
    LookAgain,
}

/// An upstream. A client that calls inside of a stated wait may be banned.
pub(super) struct Server {
    limit: Limit,
    tells: Tells,
    status: u16,
    trip: f64,
    ban: Option<(u64, f64)>,
    strikes: u64,
    banned_until: f64,
    /// What it has asked its client to wait, and when the client heard of it at the latest.
    told_until: f64,
    told_at: f64,
    answered: u64,
    pub(super) refused: u64,
    pub(super) inside_wait: u64,
    pub(super) bans: u64,
}

impl Server {
    pub(super) fn new(limit: Limit, tells: Tells, status: u16, trip: f64) -> Self {
        Self {
            limit,
            tells,
            status,
            trip,
            ban: None,
            strikes: 0,
            banned_until: 0.0,
            told_until: 0.0,
            told_at: 0.0,
            answered: 0,
            refused: 0,
            inside_wait: 0,
            bans: 0,
        }
    }

    /// Bans for so long, and twice as long each time, after so many calls inside of a stated wait.
    pub(super) fn bans(mut self, after: u64, seconds: f64) -> Self {
        self.ban = Some((after, seconds));
        self
    }

    /// Whether a call that arrives now would be answered, and its client has not been asked to
    /// wait. A wait counts from when it is heard.
    pub(super) fn would_answer(&mut self, now: f64) -> bool {
        now >= self.told_until.max(self.banned_until) + 0.65 * self.trip
            && self.limit.would_answer(now)
    }

    /// Decides about a call that arrives now. Returns the response, and how late it is in seconds.
    pub(super) fn call(&mut self, now: f64) -> (Response<()>, f64) {
        // Those that were under way could not know.
        if self.told_at + 1.3 * self.trip < now && now < self.told_until - 1e-6 {
            self.inside_wait += 1;
            self.strikes += 1;
        }
        if now < self.banned_until {
            return (self.banned(now), 0.0);
        }
        if let Some((after, seconds)) = self.ban.filter(|(after, _)| self.strikes >= *after) {
            (self.strikes, self.banned_until) = (0, now + seconds);
            self.bans += 1;
            self.ban = Some((after, 2.0 * seconds));
            return (self.banned(now), 0.0);
        }
        if self.limit.would_answer(now) {
            self.limit.take(now);
            self.answered += 1;
            self.answer(now)
        } else {
            self.refused += 1;
            (self.refusal(now), 0.0)
        }
    }

    fn banned(&mut self, now: f64) -> Response<()> {
        self.refused += 1;
        self.ask_to_wait(now, self.banned_until);
        say(
            418,
            &[("retry-after", (self.banned_until - now).ceil())],
            now,
        )
    }

    fn answer(&self, now: f64) -> (Response<()>, f64) {
        let (left, (_, all)) = (self.limit.left() as f64, self.limit.resets(now));
        let response = match self.tells {
            Tells::Quota => self.quota(200, now),
            Tells::Full => say(
                200,
                &[
                    ("x-ratelimit-remaining", left),
                    ("x-ratelimit-reset", all.ceil()),
                ],
                now,
            ),
            Tells::Late if left < 200.0 => {
                let over = 200.0 - left;
                let lines = [
                    ("x-ratelimit-remaining", 0.0),
                    ("x-ratelimit-reset", 300.0),
                    ("retry-after", 10.0),
                ];
                return (say(200, &lines, now), (0.02 * over).min(30.0));
            }
            Tells::Late => say(
                200,
                &[
                    ("x-ratelimit-remaining", left - 200.0),
                    ("x-ratelimit-reset", 300.0),
                ],
                now,
            ),
            Tells::LookAgain if self.answered.is_multiple_of(10) => {
                say(202, &[("retry-after", 17.0)], now)
            }
            _ => say(200, &[], now),
        };
        (response, 0.0)
    }

    fn refusal(&mut self, now: f64) -> Response<()> {
        let (next, all) = self.limit.resets(now);
        let wait = match self.tells {
            Tells::Wait(seconds) => Some(seconds as f64),
            Tells::NextWindow => Some(next.ceil()),
            Tells::Full => Some(next.ceil().max(1.0)),
            Tells::Late => Some(30.0),
            _ => None,
        };
        let until = wait.or(Some(next).filter(|_| self.tells == Tells::Quota));
        if let Some(wait) = until {
            self.ask_to_wait(now, now + wait);
        }
        let mut response = match self.tells {
            Tells::Quota => self.quota(self.status, now),
            Tells::Full => say(
                self.status,
                &[
                    ("x-ratelimit-remaining", 0.0),
                    ("x-ratelimit-reset", all.ceil()),
                ],
                now,
            ),
            Tells::Late => say(
                self.status,
                &[("x-ratelimit-remaining", 0.0), ("x-ratelimit-reset", 300.0)],
                now,
            ),
            _ => say(self.status, &[], now),
        };
        let headers = response.headers_mut();
        if let Some(wait) = wait {
            headers.insert("retry-after", (wait as u64).into());
        }
        if self.tells == Tells::ErrorType {
            headers.insert("x-amzn-errortype", "ThrottlingException".parse().unwrap());
        }
        response
    }

    fn quota(&self, status: u16, now: f64) -> Response<()> {
        let reset = EPOCH as f64 + now + self.limit.resets(now).0;
        let lines = [
            ("x-ratelimit-remaining", self.limit.left() as f64),
            ("x-ratelimit-reset", (reset - 1e-6).ceil()),
        ];
        say(status, &lines, now)
    }

    fn ask_to_wait(&mut self, now: f64, until: f64) {
        if now >= self.told_until {
            self.told_at = now;
        }
        self.told_until = self.told_until.max(until);
    }
}

/// When the upstreams' clocks start, in seconds since 1970: another time than that of this machine,
/// and the beginning of each window.
const EPOCH: u64 = 1_795_176_000 / 3_600 * 3_600;

/// A response of so many seconds after the start, with numbers as headers.
fn say(status: u16, lines: &[(&'static str, f64)], now: f64) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = status.try_into().expect("a status");
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(EPOCH + now as u64);
    response
        .headers_mut()
        .insert("date", httpdate(at).parse().expect("a date"));
    for (name, value) in lines {
        response.headers_mut().insert(*name, (*value as u64).into());
    }
    response
}

fn httpdate(at: SystemTime) -> String {
    let seconds = at
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("after 1970")
        .as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // 20 November 2026 was day 20,777.
    let weekday = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"][days as usize % 7];
    let day = 20 + days - 20_777;
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{weekday}, {day:02} Nov 2026 {hour:02}:{minute:02}:{second:02} GMT")
}
