//! The algorithm of a limit or a tier: the one table that is named after it.

use throttle_core::{
    Algorithm, CalendarQuota, ConfigError, FixedWindow, Gcra, IntervalBucket, LeakyMeter,
    SlidingLog, SlidingWindow, TokenBucket,
};

use super::file_value::FileValue;
use super::form::*;
use super::values;

const RATE: FieldForm = One(
    "rate",
    "",
    Required("write a count and a period, as in \"10/second\""),
    values::RATE,
);

const BURST: FieldForm = One(
    "burst",
    "How many units an idle client can use at once. By default the count of the rate.",
    Optional,
    Units,
);

/// The algorithms that refuse.
pub(super) const ALGORITHMS: FieldForm = OneOf(
    "algorithm",
    "write one, as in gcra = { rate = \"10/second\", burst = 20 }",
    &[
        One(
            "leaky-bucket",
            "",
            Optional,
            Never("leaky-bucket delays, and a limit refuses; write leaky-meter or gcra"),
        ),
        algorithm(
            "gcra",
            "Spreads requests evenly, with a burst for those that come after a pause (GCRA).",
            &[RATE, BURST],
        ),
        algorithm(
            "token-bucket",
            "A bucket that is filled continuously. A request takes tokens.",
            &[RATE, BURST],
        ),
        algorithm(
            "leaky-meter",
            "A bucket that drains continuously. A request that would overflow it is refused.",
            &[
                RATE,
                One(
                    "capacity",
                    "How many units the bucket holds. By default the count of the rate.",
                    Optional,
                    Units,
                ),
            ],
        ),
        algorithm(
            "interval-bucket",
            "A bucket that is filled in steps.",
            &[
                One(
                    "capacity",
                    "How many units there are at most.",
                    Required("write how many units there are at most"),
                    Units,
                ),
                One(
                    "refill",
                    "How many units come back at a time.",
                    Required("write how many units come back at a time"),
                    Units,
                ),
                One(
                    "interval",
                    "How often units come back.",
                    Required("write how often units come back, as in \"1h\""),
                    values::DURATION,
                ),
                One(
                    "aligned",
                    "Whether units come back at whole intervals of the clock.",
                    Optional,
                    Flag,
                ),
            ],
        ),
        algorithm(
            "fixed-window",
            "So many in each window of the clock.",
            &[
                RATE,
                One(
                    "offset",
                    "How much later than whole periods of the clock windows begin.",
                    Optional,
                    values::SHIFT,
                ),
            ],
        ),
        algorithm(
            "sliding-window",
            "So many in each window that ends now, counted in sub-windows.",
            &[
                RATE,
                One(
                    "buckets",
                    "Into how many sub-windows the period is divided, in whole microseconds.",
                    Usual("10"),
                    Units,
                ),
            ],
        ),
        algorithm(
            "sliding-log",
            "So many in each window that ends now, exactly: each request is remembered.",
            &[RATE],
        ),
        algorithm(
            "calendar-quota",
            "So many in a day, a week, a month, or another period.",
            &[
                One(
                    "count",
                    "How many units a period has.",
                    Required("write how many units a period has"),
                    Units,
                ),
                OneOf(
                    "period",
                    "write per = \"day\", \"week\" or \"month\", fixed = \"10d\" or rolling = \"30d\"",
                    &[
                        One(
                            "per",
                            "The period of the calendar. A week begins on Monday.",
                            Optional,
                            Words(
                                || words(&CALENDAR),
                                "it must be \"day\", \"week\" or \"month\"; other periods are fixed \
                                 or rolling",
                            ),
                        ),
                        One(
                            "fixed",
                            "A period of this length, counted from 1970-01-01.",
                            Optional,
                            values::DURATION,
                        ),
                        One(
                            "rolling",
                            "A period of this length, which begins with a client's first request.",
                            Optional,
                            values::DURATION,
                        ),
                    ],
                ),
                One(
                    "anchor-day",
                    "On which day it begins: 1 to 28 or \"last\" of a month, 1 (Monday) to 7 of a \
                     week.",
                    Usual("1"),
                    Any(
                        &[Words(|| vec!["last"], ""), Number(1, 28)],
                        "it must be a whole number from 1 to 28, or \"last\" for the last day of \
                         each month",
                    ),
                ),
                One(
                    "anchor-hour",
                    "At which hour of that day it begins.",
                    Usual("0"),
                    Number(0, 23),
                ),
                One("utc-offset", "", Optional, values::UTC_OFFSET),
            ],
        ),
    ],
);

const fn algorithm(
    name: &'static str,
    about: &'static str,
    fields: &'static [FieldForm],
) -> FieldForm {
    let rule = "it must be a table, as in { rate = \"10/second\" }";
    One(name, "", Optional, Table(name, about, fields, rule))
}

type Quota = fn(u64) -> CalendarQuota;

/// The periods that a calendar has.
const CALENDAR: [Word<Quota>; 3] = [
    ("day", CalendarQuota::daily),
    ("week", CalendarQuota::weekly),
    ("month", CalendarQuota::monthly),
];

/// The algorithm of a table that has one.
pub(super) fn read(table: &FileValue<'_>) -> Option<Algorithm> {
    let has = |child: &&FileValue<'_>| child.fits && ALGORITHMS.has(child.name);
    let algorithm = table.children.iter().find(has)?;
    build(algorithm)?
        .map_err(|error| report(algorithm, &error))
        .ok()
}

fn build(table: &FileValue<'_>) -> Option<Result<Algorithm, ConfigError>> {
    let units = |name: &str| table.at(name).number();
    let rate = || table.at("rate").rate();
    Some(match table.name {
        "gcra" => {
            let gcra = Gcra::new(rate()?);
            units("burst")
                .map_or(gcra, |burst| gcra.burst(burst))
                .build()
        }
        "token-bucket" => {
            let bucket = TokenBucket::new(rate()?);
            units("burst")
                .map_or(bucket, |burst| bucket.burst(burst))
                .build()
        }
        "leaky-meter" => {
            let meter = LeakyMeter::new(rate()?);
            units("capacity")
                .map_or(meter, |capacity| meter.capacity(capacity))
                .build()
        }
        "interval-bucket" => {
            let interval = table.at("interval").duration()?;
            let bucket = IntervalBucket::new(units("capacity")?).refill(units("refill")?, interval);
            match table.at("aligned").flag() {
                Some(true) => bucket.aligned().build(),
                _ => bucket.build(),
            }
        }
        "fixed-window" => FixedWindow::new(rate()?)
            .offset_micros(table.at("offset").shift().unwrap_or(0))
            .build(),
        "sliding-window" => {
            let window = SlidingWindow::new(rate()?);
            units("buckets")
                .map_or(window, |buckets| window.buckets(buckets))
                .build()
        }
        "sliding-log" => SlidingLog::new(rate()?).build(),
        _ => calendar_quota(table)?.build(),
    })
}

fn calendar_quota(table: &FileValue<'_>) -> Option<CalendarQuota> {
    let count = table.at("count").number()?;
    let quota = if let Some(quota) = table.at("per").word(&CALENDAR) {
        quota(count)
    } else if let Some(length) = table.at("fixed").duration() {
        CalendarQuota::fixed(count, length)
    } else {
        CalendarQuota::rolling(count, table.at("rolling").duration()?)
    };
    let quota = quota
        .utc_offset_minutes(table.at("utc-offset").utc_offset().unwrap_or(0))
        .anchor_hour(table.at("anchor-hour").number().unwrap_or(0) as u8);
    let day = table.at("anchor-day");
    Some(match (day.number(), day.text()) {
        (Some(day), _) => quota.anchor_day(day as u8),
        (None, Some(_)) => quota.anchor_last_day(),
        (None, None) => quota,
    })
}

/// Reports what a builder refuses at the field that it is about.
fn report(table: &FileValue<'_>, error: &ConfigError) {
    let names: &[&str] = match error.field() {
        "rate count" | "rate period in microseconds" => &["rate"],
        // Without one, the burst is the count of the rate.
        "burst" => &["burst", "capacity", "rate"],
        "capacity" => &["capacity"],
        "buckets" | "sub-window in microseconds" => &["buckets", "rate"],
        "limit" => &["count"],
        "UTC offset in minutes" => &["utc-offset"],
        "anchor day" => &["anchor-day"],
        "anchor" => &["anchor-day", "anchor-hour"],
        "refill" => &["refill"],
        "interval in microseconds" => &["interval"],
        _ => &[],
    };
    let field = |name: &&str| table.children.iter().find(|child| child.name == *name);
    let about = names.iter().find_map(field);
    about.unwrap_or(table).config_problem(error);
}
