//! The algorithms, of which a limit and a tier have one.

use serde_json::{Value, json};

use super::table::{Definition, Table, has_one_of, reference};
use super::value::{described, units, words};
use crate::rules::algorithm::{ALGORITHMS, CALENDAR, PERIODS};

const BURST: &str = "How many units an idle client can use at once. By default the count of the rate.";

/// Adds the algorithms to a table, which must have one of them.
pub(super) fn one_algorithm(table: Table) -> Table {
    let with_all = ALGORITHMS.into_iter().fold(table, |table, name| table.field(name, reference(name)));
    with_all.rule(has_one_of(&ALGORITHMS))
}

pub(super) fn definitions() -> Vec<Definition> {
    ALGORITHMS.map(|name| algorithm(name).definition()).into()
}

fn algorithm(name: &'static str) -> Table {
    let with_rate = |about| Table::new(name, about).required("rate", reference("rate"));
    match name {
        "gcra" => with_rate("Spreads requests evenly, with a burst for those that come after a pause (GCRA).")
            .field("burst", units(BURST)),
        "token-bucket" => {
            with_rate("A bucket that is filled continuously. A request takes tokens.").field("burst", units(BURST))
        }
        "leaky-meter" => with_rate("A bucket that drains continuously. A request that would overflow it is refused.")
            .field("capacity", units("How many units the bucket holds. By default the count of the rate.")),
        "interval-bucket" => Table::new(name, "A bucket that is filled in steps.")
            .required("capacity", units("How many units there are at most."))
            .required("refill", units("How many units come back at a time."))
            .required("interval", described("duration", "How often units come back."))
            .field("aligned", flag("Whether units come back at whole intervals of the clock.")),
        "fixed-window" => with_rate("So many in each window of the clock.")
            .field("offset", described("shift", "How much later than whole periods of the clock windows begin.")),
        "sliding-window" => {
            with_rate("So many in each window that ends now, counted in sub-windows.").field("buckets", buckets())
        }
        "sliding-log" => with_rate("So many in each window that ends now, exactly: each request is remembered."),
        "calendar-quota" => PERIODS.into_iter().fold(quota(name), |table, kind| table.field(kind, period(kind))),
        _ => panic!("{name} is not described"),
    }
}

fn quota(name: &'static str) -> Table {
    Table::new(name, "So many in a day, a week, a month, or another period.")
        .required("count", units("How many units a period has."))
        .field("utc-offset", reference("utc-offset"))
        .rule(has_one_of(&PERIODS))
}

fn period(kind: &str) -> Value {
    match kind {
        "per" => words("The period of the calendar. A week begins on Monday.", CALENDAR.map(|(word, _)| word)),
        "fixed" => described("duration", "A period of this length, counted from 1970-01-01."),
        "rolling" => described("duration", "A period of this length, which begins with a client's first request."),
        _ => panic!("{kind} is not described"),
    }
}

fn flag(about: &str) -> Value {
    super::value::flag(about)
}

fn buckets() -> Value {
    json!({
        "description": "Into how many sub-windows the period is divided, in whole microseconds.",
        "type": "integer",
        "minimum": 1,
        "maximum": 1024,
        "default": 10,
    })
}
