//! The golden vectors: a file of suites, each with an algorithm, its parameters, and operations
//! with expected results.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use throttle_core::{
    Algorithm, AnyCharge, CalendarQuota, Decision, FixedWindow, Gcra, IntervalBucket, LeakyBucket,
    LeakyMeter, Policy, PolicySet, PolicyTree, Rate, SlidingLog, SlidingWindow, TokenBucket,
};

#[derive(Deserialize)]
pub(crate) struct File {
    pub(crate) format: u32,
    pub(crate) suites: Vec<Suite>,
}

#[derive(Deserialize)]
pub(crate) struct Suite {
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) spec: Spec,
    pub(crate) ops: Vec<Op>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Spec {
    pub(crate) algorithm: String,
    pub(crate) params: Value,
}

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub(crate) enum Op {
    Take { t: i64, cost: u64, expect: Expect },
    Refund { t: i64, of: usize, expect: Expect },
}

#[derive(Debug, Deserialize, PartialEq, Eq)]
pub(crate) struct Expect {
    pub(crate) allowed: bool,
    pub(crate) remaining: u64,
    pub(crate) retry_after_us: Option<u64>,
    pub(crate) reset_after_us: u64,
    pub(crate) delay_us: Option<u64>,
    pub(crate) binding: Option<usize>,
}

impl Expect {
    /// The fields that a vector contains for a decision about `cost` units.
    pub(crate) fn reported(spec: &Spec, decision: &Decision, cost: u64) -> Self {
        let micros = |duration: Duration| duration.as_micros() as u64;
        Self {
            allowed: decision.is_admitted(),
            remaining: decision.remaining(),
            retry_after_us: decision.retry_after().map(micros),
            reset_after_us: micros(decision.reset_after()),
            delay_us: (spec.is_shaper() && decision.is_admitted() && cost > 0)
                .then(|| micros(decision.delay())),
            binding: if spec.is_composite() {
                decision.binding()
            } else {
                None
            },
        }
    }
}

/// The vendored file, or the one that `THROTTLE_GOLDEN` names.
pub(crate) fn load() -> File {
    let named = std::env::var("THROTTLE_GOLDEN");
    let named = named.unwrap_or_else(|_| "throttle-core/tests/golden.json".into());
    // Tests run in the folder of their package, but the name is from that of the repository.
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|folder| folder.join(&named))
        .find(|path| path.exists())
        .unwrap_or_else(|| PathBuf::from(&named));
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("THROTTLE_GOLDEN={}: {error}", path.display()));
    let path = path.display();
    let file: File = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
    assert_eq!(file.format, 1, "{path} has another format");
    assert!(!file.suites.is_empty(), "{path} has no suites");
    file
}

impl Spec {
    fn number(&self, name: &str) -> u64 {
        self.params[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name} in {self:?}"))
    }

    fn signed(&self, name: &str) -> i64 {
        self.params[name].as_i64().unwrap_or(0)
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.params[name].as_str()
    }

    fn rate(&self, period: &str) -> Rate {
        Rate::new(
            self.number("limit"),
            Duration::from_micros(self.number(period)),
        )
    }

    pub(crate) fn algorithm(&self) -> Algorithm {
        match self.algorithm.as_str() {
            "gcra" => Gcra::new(self.rate("period_us"))
                .burst(self.number("burst"))
                .build(),
            "token_bucket" => TokenBucket::new(self.rate("period_us"))
                .burst(self.number("burst"))
                .build(),
            "leaky_meter" => LeakyMeter::new(self.rate("period_us"))
                .capacity(self.number("burst"))
                .build(),
            "interval_bucket" => {
                let interval = Duration::from_micros(self.number("interval_us"));
                let bucket = IntervalBucket::new(self.number("capacity"))
                    .refill(self.number("refill"), interval);
                if self.text("align") == Some("epoch") {
                    bucket.aligned().build()
                } else {
                    bucket.build()
                }
            }
            "fixed_window" => FixedWindow::new(self.rate("window_us"))
                .offset_micros(self.signed("offset_us"))
                .build(),
            "sliding_log" => SlidingLog::new(self.rate("window_us")).build(),
            "sliding_buckets" => SlidingWindow::new(self.rate("window_us"))
                .buckets(self.number("buckets"))
                .build(),
            "calendar_quota" => {
                let limit = self.number("limit");
                let quota = match self.text("cadence") {
                    Some("day") => CalendarQuota::daily(limit),
                    Some("week") => CalendarQuota::weekly(limit),
                    Some("month") => CalendarQuota::monthly(limit),
                    other => panic!("cadence {other:?}"),
                };
                quota
                    .utc_offset_minutes(self.signed("offset_minutes") as i32)
                    .build()
            }
            "shaper" => {
                let wait = Duration::from_micros(self.number("max_wait_us"));
                LeakyBucket::new(self.rate("period_us"))
                    .max_wait(wait)
                    .build()
            }
            other => panic!("unknown algorithm {other}"),
        }
        .unwrap_or_else(|error| panic!("{self:?}: {error}"))
    }

    pub(crate) fn rule(&self) -> PolicyTree {
        self.rule_named("p")
    }

    fn rule_named(&self, name: &str) -> PolicyTree {
        if self.algorithm != "composite" {
            return Policy::new(name, self.algorithm())
                .expect("a valid name")
                .into();
        }
        let children: Vec<Spec> =
            serde_json::from_value(self.params["children"].clone()).expect("children");
        let members = children
            .iter()
            .enumerate()
            .map(|(i, child)| child.rule_named(&format!("{name}.{i}")))
            .collect();
        match (self.text("mode"), self.text("charge")) {
            (Some("all"), _) => PolicyTree::All(members),
            (Some("any"), Some("first")) => PolicyTree::Any(members, AnyCharge::First),
            // The model's own default.
            (Some("any"), _) => PolicyTree::Any(members, AnyCharge::EveryAdmitting),
            other => panic!("mode {other:?}"),
        }
    }

    pub(crate) fn set(&self) -> PolicySet {
        PolicySet::new(self.rule()).expect("a valid set")
    }

    pub(crate) fn is_shaper(&self) -> bool {
        self.algorithm == "shaper"
    }

    pub(crate) fn is_composite(&self) -> bool {
        self.algorithm == "composite"
    }
}
