//! Counters of hits, as envoyproxy/ratelimit names them.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use metrics::{Counter, counter};

/// Names can hold what clients send. Further names are counted together.
const MOST_NAMES: usize = 10_000;
const LONGEST_NAME: usize = 1_023;
static WITH_VALUES: LazyLock<RwLock<HashMap<String, Arc<Counters>>>> =
    LazyLock::new(RwLock::default);

/// The counters of one name. A hit touches these handles only.
pub struct Counters {
    total: Counter,
    over: Counter,
    shadow: Counter,
    within: Counter,
    near: Counter,
}

impl Counters {
    pub fn new(name: &str) -> Self {
        let of = |metric: &'static str| counter!(metric, "key" => name.to_owned());
        Self {
            total: of("ratelimit_total_hits"),
            over: of("ratelimit_over_limit"),
            shadow: of("ratelimit_shadow_mode"),
            within: of("ratelimit_within_limit"),
            near: of("ratelimit_near_limit"),
        }
    }

    /// The counters of a name that holds values of a request.
    pub fn with_values(name: &str) -> Arc<Self> {
        let known = |name: &str| {
            let names = WITH_VALUES.read().unwrap_or_else(PoisonError::into_inner);
            (names.get(name).cloned(), names.len())
        };
        let name = match known(name) {
            (Some(counters), _) => return counters,
            (None, names) if names < MOST_NAMES && name.len() <= LONGEST_NAME => name,
            _ => "other",
        };
        let mut names = WITH_VALUES.write().unwrap_or_else(PoisonError::into_inner);
        let counters = names.entry(name.to_owned());
        Arc::clone(counters.or_insert_with(|| Arc::new(Self::new(name))))
    }

    /// Counts hits of a limit. `is_near`: four fifths are used.
    pub fn count(&self, hits: u64, refuses: bool, is_shadow: bool, is_near: bool) {
        self.total.increment(hits);
        let (counted, also, is_both) = if refuses {
            (&self.over, &self.shadow, is_shadow)
        } else {
            (&self.within, &self.near, is_near)
        };
        counted.increment(hits);
        if is_both {
            also.increment(hits);
        }
    }
}
