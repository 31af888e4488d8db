//! The algorithm of a limit or a tier: the one table that is named after it.

use throttle_core::{
    Algorithm, CalendarQuota, ConfigError, FixedWindow, Gcra, IntervalBucket, LeakyMeter, Rate,
    SlidingLog, SlidingWindow, TokenBucket,
};

use super::outline::{Form, by_default};
use super::reader::{Field, Row, Section, Word};
use super::values;

type Build = fn(&Section<'_>) -> Built;
type Built = Option<Result<Algorithm, ConfigError>>;

const BURST: &str =
    "How many units an idle client can use at once. By default the count of the rate.";

/// The algorithms that refuse.
const ALGORITHMS: [Row<Build>; 8] = [
    (
        "gcra",
        "Spreads requests evenly, with a burst for those that come after a pause (GCRA).",
        |table| {
            let (rate, burst) = (rate(table), option(table.field("burst", BURST), units));
            let gcra = Gcra::new(rate?);
            Some(burst?.map_or(gcra, |burst| gcra.burst(burst)).build())
        },
    ),
    (
        "token-bucket",
        "A bucket that is filled continuously. A request takes tokens.",
        |table| {
            let (rate, burst) = (rate(table), option(table.field("burst", BURST), units));
            let bucket = TokenBucket::new(rate?);
            Some(burst?.map_or(bucket, |burst| bucket.burst(burst)).build())
        },
    ),
    (
        "leaky-meter",
        "A bucket that drains continuously. A request that would overflow it is refused.",
        |table| {
            let about = "How many units the bucket holds. By default the count of the rate.";
            let (rate, capacity) = (rate(table), option(table.field("capacity", about), units));
            let meter = LeakyMeter::new(rate?);
            Some(
                capacity?
                    .map_or(meter, |capacity| meter.capacity(capacity))
                    .build(),
            )
        },
    ),
    (
        "interval-bucket",
        "A bucket that is filled in steps.",
        |table| {
            let capacity = needed_units(table, "capacity", "How many units there are at most.");
            let refill = needed_units(table, "refill", "How many units come back at a time.");
            let interval = table.required(
                "interval",
                "How often units come back.",
                "write how often units come back, as in \"1h\"",
            );
            let interval = interval.as_ref().and_then(values::duration);
            let about = "Whether units come back at whole intervals of the clock.";
            let aligned = option(table.field("aligned", about), Field::boolean);
            let bucket = IntervalBucket::new(capacity?).refill(refill?, interval?);
            Some(
                if aligned? == Some(true) {
                    bucket.aligned()
                } else {
                    bucket
                }
                .build(),
            )
        },
    ),
    (
        "fixed-window",
        "So many in each window of the clock.",
        |table| {
            let about = "How much later than whole periods of the clock windows begin.";
            let (rate, offset) = (
                rate(table),
                option(table.field("offset", about), values::shift),
            );
            Some(
                FixedWindow::new(rate?)
                    .offset_micros(offset?.unwrap_or(0))
                    .build(),
            )
        },
    ),
    (
        "sliding-window",
        "So many in each window that ends now, counted in sub-windows.",
        |table| {
            let about = by_default(
                10,
                "Into how many sub-windows the period is divided, in whole microseconds.",
            );
            let buckets = |field: &Field<'_>| {
                field.note(Form::Number(1, 1024));
                units(field)
            };
            let (rate, buckets) = (rate(table), option(table.field("buckets", about), buckets));
            let window = SlidingWindow::new(rate?);
            Some(
                buckets?
                    .map_or(window, |buckets| window.buckets(buckets))
                    .build(),
            )
        },
    ),
    (
        "sliding-log",
        "So many in each window that ends now, exactly: each request is remembered.",
        |table| rate(table).map(|rate| SlidingLog::new(rate).build()),
    ),
    (
        "calendar-quota",
        "So many in a day, a week, a month, or another period.",
        calendar_quota,
    ),
];

/// Reads the algorithm of a section; a problem if there is none, or several.
pub(super) fn read(section: &Section<'_>) -> Option<Algorithm> {
    if let Some(delays) = section.field_if_written("leaky-bucket") {
        delays.problem_as("leaky-bucket delays, and a limit refuses; write leaky-meter or gcra");
        ALGORITHMS
            .iter()
            .for_each(|(name, ..)| drop(section.field(name, "")));
        return None;
    }
    let remedy = "write one, as in gcra = { rate = \"10/second\", burst = 20 }";
    section.one_of(
        &ALGORITHMS,
        ("algorithm", remedy),
        |(name, about, build), field| {
            let table = field.section(
                (name, about),
                "it must be a table, as in { rate = \"10/second\" }",
            )?;
            let algorithm = build(&table)
                .and_then(|built| built.map_err(|error| report(&table, field, &error)).ok());
            table.finish();
            algorithm
        },
    )
}

/// Reports what a builder refuses at the field that it is about.
fn report(table: &Section<'_>, algorithm: &Field<'_>, error: &ConfigError) {
    let names: &[&'static str] = match error.field() {
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
    let about = names.iter().find_map(|name| table.field_if_written(name));
    about.as_ref().unwrap_or(algorithm).config_problem(error);
}

/// An option's problem has been reported: the algorithm must not be built without it.
fn option<'a, T>(
    field: Option<Field<'a>>,
    read: impl Fn(&Field<'a>) -> Option<T>,
) -> Option<Option<T>> {
    field.map_or(Some(None), |field| read(&field).map(Some))
}

fn rate(table: &Section<'_>) -> Option<Rate> {
    values::rate(&table.required(
        "rate",
        "",
        "write a count and a period, as in \"10/second\"",
    )?)
}

/// Whether there are too many is checked with the rest: they must be below 2^53, so that every
/// store counts exactly.
fn units(field: &Field<'_>) -> Option<u64> {
    field.note(Form::Number(1, (1 << 53) - 1));
    field.number(1, u64::MAX)
}

fn needed_units(table: &Section<'_>, name: &'static str, about: &'static str) -> Option<u64> {
    let remedy = format!(
        "write h{}",
        about.trim_start_matches('H').trim_end_matches('.')
    );
    table
        .required(name, about, &remedy)
        .as_ref()
        .and_then(units)
}

/// How long a period of a quota is.
enum Period {
    Calendar,
    Fixed,
    Rolling,
}

const PERIODS: [Row<Period>; 3] = [
    (
        "per",
        "The period of the calendar. A week begins on Monday.",
        Period::Calendar,
    ),
    (
        "fixed",
        "A period of this length, counted from 1970-01-01.",
        Period::Fixed,
    ),
    (
        "rolling",
        "A period of this length, which begins with a client's first request.",
        Period::Rolling,
    ),
];

type Quota = fn(u64) -> CalendarQuota;

/// The periods that a calendar has.
const CALENDAR: [Word<Quota>; 3] = [
    ("day", CalendarQuota::daily),
    ("week", CalendarQuota::weekly),
    ("month", CalendarQuota::monthly),
];

fn calendar_quota(table: &Section<'_>) -> Built {
    let count = needed_units(table, "count", "How many units a period has.");
    let remedy = "write per = \"day\", \"week\" or \"month\", fixed = \"10d\" or rolling = \"30d\"";
    let quota = table.one_of(&PERIODS, ("period", remedy), |(.., kind), period| {
        let length = || values::duration(period);
        match kind {
            Period::Fixed => length().and_then(|length| Some(CalendarQuota::fixed(count?, length))),
            Period::Rolling => {
                length().and_then(|length| Some(CalendarQuota::rolling(count?, length)))
            }
            Period::Calendar => {
                let rule =
                    "it must be \"day\", \"week\" or \"month\"; other periods are fixed or rolling";
                period
                    .expect_word(&CALENDAR, rule)
                    .and_then(|quota| Some(quota(count?)))
            }
        }
    });
    let about = by_default(
        1,
        "On which day it begins: 1 to 28 or \"last\" of a month, 1 (Monday) to 7 of a week.",
    );
    let day = option(table.field("anchor-day", about), |field| {
        field.any_form(anchor_day)
    });
    let about = by_default(0, "At which hour of that day it begins.");
    let hour = option(table.field("anchor-hour", about), |field| {
        field.number(0, 23)
    });
    let offset = option(table.field("utc-offset", ""), values::utc_offset);
    let quota = quota?
        .utc_offset_minutes(offset?.unwrap_or(0))
        .anchor_hour(hour?.unwrap_or(0) as u8);
    Some(day?.map_or(quota, |anchored| anchored(quota)).build())
}

type Anchored = Box<dyn FnOnce(CalendarQuota) -> CalendarQuota>;

fn anchor_day(field: &Field<'_>) -> Option<Anchored> {
    if field.word(&[("last", ())]).is_some() {
        return Some(Box::new(CalendarQuota::anchor_last_day));
    }
    field.note(Form::Number(1, 28));
    let day = field.as_number().filter(|day| (1..=28).contains(day));
    if day.is_none() {
        field.problem(
            "it must be a whole number from 1 to 28, or \"last\" for the last day of each month",
        );
    }
    day.map(|day| Box::new(move |quota: CalendarQuota| quota.anchor_day(day as u8)) as Anchored)
}
