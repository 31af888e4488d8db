//! What a simulated fleet did.

use std::fmt::Write;

use super::servers::Server;
use super::settings::{MILLI, Nanos, SECOND, Settings};

/// What decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Store,
    /// The process's own share of the limit.
    Share,
    /// No limit: the limit is open.
    Open,
    /// 503: the limit is closed.
    Closed,
}

pub(super) struct Outcome {
    pub(super) settings: Settings,
    pub(super) asked: u64,
    /// Decisions by what decided, in the order of [`By`].
    pub(super) by: [u64; 4],
    /// Decisions that the store did not make although the server of their key was there.
    pub(super) others_lost: u64,
    /// While the first server is away: decisions, and those that the store did not make.
    pub(super) during: (u64, u64),
    /// Requests that were admitted, of each key.
    pub(super) admitted: Vec<u64>,
    /// Of each key: admitted by no store.
    pub(super) admitted_outside: Vec<u64>,
    /// Times from question to answer, in order.
    pub(super) latencies: Vec<Nanos>,
    /// The sum of the times that there was a request, each time as often as there were requests.
    pub(super) under_way: u128,
    pub(super) openings: u64,
    /// The questions for slots of each process.
    pub(super) slot_questions: Vec<u64>,
    /// When a store last did not decide.
    pub(super) last_failure: Nanos,
    pub(super) open_breakers: usize,
    /// Each server at its first address.
    pub(super) servers: Vec<Server>,
    /// The first server at its second address.
    pub(super) replica: Server,
    pub(super) end: Nanos,
}

impl Outcome {
    pub(super) fn by(&self, by: By) -> u64 {
        self.by[by as usize]
    }

    pub(super) fn percentile(&self, share: f64) -> Nanos {
        let index = (self.latencies.len() as f64 * share) as usize;
        self.latencies.get(index).copied().unwrap_or(0)
    }

    pub(super) fn mean_latency(&self) -> f64 {
        self.latencies.iter().sum::<Nanos>() as f64 / self.latencies.len() as f64
    }

    /// Most units that one key was admitted.
    pub(super) fn worst(&self) -> u64 {
        self.admitted.iter().copied().max().unwrap_or(0)
    }

    /// Units of each key that were admitted beyond what the limit allows.
    pub(super) fn over(&self) -> impl Iterator<Item = u64> {
        let allowed = self.settings.allowed(self.end);
        self.admitted
            .iter()
            .map(move |units| units.saturating_sub(allowed))
    }

    /// The part of its time in which the last server works.
    fn busy(&self) -> f64 {
        let last = self.servers.last().expect("a server");
        last.work.iter().sum::<Nanos>() as f64 / self.settings.length as f64
    }

    /// Questions for the slots that each process asks in a second while a server is away.
    pub(super) fn questions_a_second(&self) -> f64 {
        let Some(loss) = self.settings.loss else {
            return 0.0;
        };
        let asked = self.slot_questions.iter().sum::<u64>() as f64;
        let seconds = (loss.until - loss.from) as f64 / SECOND as f64;
        asked / self.settings.processes as f64 / seconds
    }

    pub(super) fn row(&self, name: &str) -> String {
        let millis = |share| self.percentile(share) as f64 / MILLI as f64;
        let busy = self.busy() * 100.0;
        let mut row = format!("| {name} | {} | {busy:.0} % |", self.asked);
        let _ = write!(
            row,
            " {:.2} | {:.2} | {:.2} |",
            millis(0.5),
            millis(0.99),
            millis(0.999)
        );
        let (decisions, without) = self.during;
        let share = match decisions {
            0 => "–".to_owned(),
            all => format!("{:.1} %", without as f64 / all as f64 * 100.0),
        };
        let allowed = self.settings.allowed(self.end);
        let _ = write!(
            row,
            " {share} | {} | {} | {} / {allowed} | {} | {:.2} |",
            self.others_lost,
            self.openings,
            self.worst(),
            self.over().sum::<u64>(),
            self.questions_a_second()
        );
        row
    }
}

pub(super) const HEAD: &str = "\
| case | decisions | busy | p50, ms | p99, ms | p99.9, ms | not by the store while a server is away \
    | of other servers' keys, at any time | breakers opened | worst key / allowed | units over \
    | slot questions a process and second |
|---|---|---|---|---|---|---|---|---|---|---|---|";
