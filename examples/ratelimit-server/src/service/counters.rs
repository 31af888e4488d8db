//! Counters of hits, as envoyproxy/ratelimit names them.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use super::hit::{Hit, Standing};
use crate::limits::Hits;

/// Names of metrics can hold what clients send; more than this are counted together.
const MOST_NAMES: usize = 10_000;
static NAMES: Mutex<Option<HashSet<String>>> = Mutex::new(None);

pub fn count(hit: &Hit, standing: &Standing) {
    let Hits::Charge(hits) = hit.hits else {
        return;
    };
    let name = bounded(&hit.found.metric);
    let add =
        |counter: &'static str| metrics::counter!(counter, "key" => name.clone()).increment(hits);
    add("ratelimit_total_hits");
    if standing.refuses {
        add("ratelimit_over_limit");
        if hit.found.is_shadow() {
            add("ratelimit_shadow_mode");
        }
        return;
    }
    add("ratelimit_within_limit");
    // Four fifths are used.
    if standing.remaining < standing.capacity / 5 {
        add("ratelimit_near_limit");
    }
}

fn bounded(name: &str) -> String {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    if names.contains(name)
        || (names.len() < MOST_NAMES && name.len() < 1_024 && names.insert(name.to_owned()))
    {
        name.to_owned()
    } else {
        "other".to_owned()
    }
}
