//! The requirements for every course, and the figures that show whether they are met.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use http::StatusCode;
use throttle_core::BackendErrorKind;
use throttle_test_servers::Server;

use crate::app::{App, Heard, Mode, Path, Sample, TINY};
use crate::figures::Figures;
use crate::ledger::Ledger;
use crate::{BACK, DEADLINE};

/// The most that a slow machine may add to the limit on a latency. Without a deadline, a breaker or
/// new connections, latencies would be those of the faults, which are seconds.
const MOST_NOISE: Duration = Duration::from_secs(1);

/// Behind an open breaker, three in four requests that the store does not decide must be decided
/// within this time. They take a hundredth of it, while behind a closed breaker they would take the
/// whole [`DEADLINE`].
const NOT_ASKED: Duration = Duration::from_millis(10);

/// A completed course.
pub(crate) struct Report {
    pub(crate) runs: Vec<Run>,
    began: Option<Instant>,
    ended: Option<Instant>,
}

/// One mode of the course.
pub(crate) struct Run {
    pub(crate) app: App,
    pub(crate) samples: Vec<Sample>,
    opened: Option<Instant>,
}

impl Report {
    pub(crate) fn new(
        apps: Vec<App>,
        began: Option<Instant>,
        ended: Option<Instant>,
        opened: Vec<Option<Instant>>,
    ) -> Self {
        let runs = apps.into_iter().zip(opened).map(|(app, opened)| Run {
            samples: app.samples(),
            app,
            opened,
        });
        Self {
            runs: runs.collect(),
            began,
            ended,
        }
    }

    fn is_during(&self, instant: Instant) -> bool {
        self.began.is_none_or(|began| instant >= began)
            && self.ended.is_none_or(|ended| instant < ended)
    }

    /// What a busy machine may add to a limit: twice the lateness of its timers during the fault,
    /// and at most [`MOST_NOISE`].
    fn noise(&self) -> Duration {
        let during = self.runs.iter().flat_map(|run| self.during(run));
        let late = Figures::of(during.map(|sample| sample.overslept));
        (late.p99() * 2).min(MOST_NOISE)
    }

    fn before(&self, run: &Run) -> Figures {
        let before = run
            .samples
            .iter()
            .filter(|sample| self.began.is_some_and(|began| sample.sent < began));
        Figures::of(before.map(|sample| sample.added))
    }

    fn during<'a>(&'a self, run: &'a Run) -> impl Iterator<Item = &'a Sample> {
        run.samples
            .iter()
            .filter(|sample| self.is_during(sample.sent))
    }

    fn after_opening<'a>(&'a self, run: &'a Run) -> impl Iterator<Item = &'a Sample> {
        self.during(run)
            .filter(|sample| run.opened.is_some_and(|opened| sample.sent >= opened))
    }

    /// How long after its return the store first decided again.
    fn back_after(&self, run: &Run) -> Option<Duration> {
        let ended = self.ended?;
        let decided = run
            .samples
            .iter()
            .filter(|sample| !sample.is_degraded() && sample.decided() >= ended);
        decided.map(|sample| sample.decided() - ended).min()
    }

    /// All that holds for most faults: the answers, the breaker, the store's return, and the
    /// charges.
    pub(crate) fn check_all(&self, fault: &str, server: &Server) {
        self.check(fault);
        self.check_breaker(fault);
        self.check_return(fault);
        self.check_charges(&[server], 0);
    }

    /// No request gets a response that its mode does not allow; every account of degraded requests
    /// agrees; no request waits longer than the deadline. Prints the figures.
    pub(crate) fn check(&self, fault: &str) {
        self.check_answers(fault);
        for run in &self.runs {
            let during = Figures::of(self.during(run).map(Sample::blamed));
            let limit = DEADLINE + Duration::from_millis(5) + self.noise();
            assert!(
                during.p99() <= limit,
                "{fault}, {:?}: added {during}, of {limit:?}",
                run.app.mode
            );
        }
    }

    /// The same checks without the deadline.
    pub(crate) fn check_answers(&self, fault: &str) {
        self.print(fault);
        self.runs.iter().for_each(Run::check_answers);
    }

    /// Half of all decisions are made soon, however long the deadline of this course is.
    pub(crate) fn check_most_in_time(&self) {
        for run in &self.runs {
            let during = Figures::of(self.during(run).map(|sample| sample.added));
            assert!(
                during.percentile(50) <= 10 * DEADLINE,
                "{:?}: added {during}",
                run.app.mode
            );
        }
    }

    /// Once the breaker is open, requests are no longer delayed.
    pub(crate) fn check_breaker(&self, fault: &str) {
        for run in &self.runs {
            assert!(
                run.opened.is_some(),
                "{fault}, {:?}: the breaker did not open",
                run.app.mode
            );
            let degraded = self
                .after_opening(run)
                .filter(|sample| sample.is_degraded());
            let after = Figures::of(degraded.map(Sample::blamed));
            let late = after.percentile(75) > NOT_ASKED;
            assert!(
                !late,
                "{fault}, {:?}: added {after} behind an open breaker",
                run.app.mode
            );
        }
    }

    /// The store decides again soon: at least in one mode, because a stall of the machine may cost
    /// another one its first attempt.
    pub(crate) fn check_return(&self, fault: &str) {
        let back: Vec<_> = self.runs.iter().map(|run| self.back_after(run)).collect();
        let soonest = back.iter().flatten().min();
        let limit = BACK + self.noise();
        assert!(
            soonest.is_some_and(|soonest| *soonest <= limit),
            "{fault}: the first decisions came {back:?} after the return"
        );
    }

    /// Charges are counted exactly, except for those that a failover may lose; and nothing is
    /// stored for ever.
    pub(crate) fn check_charges(&self, servers: &[&Server], lost: u64) {
        for run in &self.runs {
            let ledger = Ledger::of(&run.app, servers.iter().copied());
            say(&format!(
                "  {:<7} charges: {:?}\n",
                run.app.mode.prefix(),
                ledger.total()
            ));
            ledger.check(lost);
            ledger.check_that_pairs_agree();
        }
        for server in servers {
            assert_eq!(server.keys_without_ttl(), Vec::<String>::new());
        }
    }

    /// How long after the fault the last request was degraded.
    fn last_degraded(&self, run: &Run) -> Option<Duration> {
        let last = run
            .samples
            .iter()
            .rev()
            .filter(|sample| sample.is_degraded())
            .map(|sample| sample.sent)
            .max()?;
        Some(last.saturating_duration_since(self.began?))
    }

    /// How many requests were degraded, of how many that were sent this long after the fault, or
    /// later.
    pub(crate) fn degraded_from(&self, run: &Run, after: Duration) -> (usize, usize) {
        let from = self.began.expect("a fault began") + after;
        let is_later = |sample: &Sample| sample.sent >= from;
        let later = run.samples.iter().filter(|sample| is_later(sample)).count();
        (run.degraded(is_later), later)
    }

    /// The number of decisions during the fault of which it is unknown whether they were charged.
    pub(crate) fn unknown_during(&self, run: &Run) -> usize {
        let is_unknown = |sample: &&Sample| {
            matches!(
                sample.heard,
                Heard::Degraded {
                    uncharged: false,
                    ..
                }
            )
        };
        self.during(run).filter(is_unknown).count()
    }

    /// The number of degraded requests.
    pub(crate) fn degraded(&self) -> usize {
        self.runs.iter().map(|run| run.degraded(|_| true)).sum()
    }

    fn print(&self, fault: &str) {
        let mut text = format!("{fault}\n");
        let all = self.runs.iter().flat_map(|run| &run.samples);
        let all = Figures::of(all.map(|sample| sample.overslept));
        let _ = writeln!(text, "  the machine: timers late by {all}");
        for run in &self.runs {
            let figures = |label: &str, figures: Figures| {
                format!("  {:<7} {label:<15} {figures}\n", run.app.mode.prefix())
            };
            text += &figures("before", self.before(run));
            text += &figures(
                "during",
                Figures::of(self.during(run).map(|sample| sample.added)),
            );
            text += &figures(
                "breaker open",
                Figures::of(self.after_opening(run).map(|sample| sample.added)),
            );
            let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
            for sample in &run.samples {
                if let Heard::Degraded {
                    kind, uncharged, ..
                } = sample.heard
                {
                    *kinds
                        .entry(format!(
                            "{kind:?}{}",
                            if uncharged { "" } else { " (unknown)" }
                        ))
                        .or_default() += 1;
                }
            }
            let opened = run
                .opened
                .zip(self.began)
                .map(|(opened, began)| opened.saturating_duration_since(began));
            let _ = writeln!(
                text,
                "  {:<7} degraded {kinds:?}; breaker after {opened:?}; last degraded after {:?}; decides again after \
                 {:?}\n          {:?}",
                run.app.mode.prefix(),
                self.last_degraded(run),
                self.back_after(run),
                run.app.backend.stats(),
            );
        }
        say(&text);
    }
}

impl Run {
    /// The share of this process is the whole limit, and admits no more than that.
    fn check_own_share(&self) {
        let mut admitted: BTreeMap<&str, u64> = BTreeMap::new();
        for sample in self
            .samples
            .iter()
            .filter(|sample| sample.path == Path::Tiny)
        {
            if let Heard::Degraded {
                local: Some(true), ..
            } = sample.heard
            {
                *admitted.entry(&sample.key).or_default() += 1;
            }
        }
        assert!(
            admitted.values().all(|count| *count <= TINY),
            "admitted by the process's own share: {admitted:?}"
        );
    }

    /// The number of requests that a server refused to decide, and that count as perhaps charged. A
    /// request that the machine makes late may have been charged.
    pub(crate) fn unknown_though_answered(&self) -> usize {
        self.degraded(|sample| {
            matches!(
                sample.heard,
                Heard::Degraded { kind, uncharged: false, .. } if kind != BackendErrorKind::Timeout
            )
        })
    }

    /// The number of degraded requests that match.
    pub(crate) fn degraded(&self, such: impl Fn(&Sample) -> bool) -> usize {
        self.samples
            .iter()
            .filter(|sample| sample.is_degraded() && such(sample))
            .count()
    }

    /// Each response agrees with its decision, and the backend has counted every failure.
    fn check_answers(&self) {
        let mut degraded = 0;
        for sample in &self.samples {
            let (status, reported) = match (sample.heard, self.app.mode) {
                (Heard::Admitted, _) => (StatusCode::OK, true),
                (Heard::Refused, _) => (StatusCode::TOO_MANY_REQUESTS, true),
                // An open limit is decided by the share only while the store may be healthy.
                (
                    Heard::Degraded {
                        kind,
                        local: Some(admitted),
                        ..
                    },
                    mode,
                ) if mode == Mode::Local || (mode == Mode::Open && is_busy(kind)) => (
                    if admitted {
                        StatusCode::OK
                    } else {
                        StatusCode::TOO_MANY_REQUESTS
                    },
                    true,
                ),
                (
                    Heard::Degraded {
                        kind, local: None, ..
                    },
                    Mode::Open,
                ) if !is_busy(kind) => (StatusCode::OK, false),
                (Heard::Degraded { local: None, .. }, Mode::Closed) => {
                    (StatusCode::SERVICE_UNAVAILABLE, false)
                }
                other => panic!("{other:?}: {sample:?}"),
            };
            assert_eq!(
                (sample.status, sample.reported),
                (status, reported),
                "{sample:?}"
            );
            assert!(
                status != StatusCode::TOO_MANY_REQUESTS || sample.path == Path::Tiny,
                "{sample:?}"
            );
            degraded += u64::from(sample.is_degraded());
        }
        let unknown = |sample: &&Sample| {
            matches!(
                sample.heard,
                Heard::Degraded {
                    uncharged: false,
                    ..
                }
            )
        };
        let unknown = self.samples.iter().filter(unknown).count() as u64;
        let stats = self.app.backend.stats();
        assert_eq!(stats.failures, degraded, "{stats:?}");
        assert_eq!(stats.unknown, unknown, "{stats:?}");
        assert_eq!(
            stats.decisions,
            self.samples.len() as u64 - degraded,
            "{stats:?}"
        );
        self.check_own_share();
    }
}

/// Whether the store may be healthy despite this error.
fn is_busy(kind: BackendErrorKind) -> bool {
    matches!(
        kind,
        BackendErrorKind::Timeout | BackendErrorKind::Saturated
    )
}

#[expect(clippy::print_stdout, reason = "figures for runs with --nocapture")]
pub(crate) fn say(text: &str) {
    print!("{text}");
}
