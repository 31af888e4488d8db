//! The algorithm of a limit or a tier: the one table that is named after it.

use throttle_core::{
    Algorithm, CalendarQuota, ConfigError, FixedWindow, Gcra, IntervalBucket, LeakyMeter, SlidingLog, SlidingWindow,
    TokenBucket,
};

use super::reader::{Field, Section};
use super::values::{self, Word};

/// The algorithms that refuse.
pub(super) const ALGORITHMS: [&str; 8] = [
    "gcra",
    "token-bucket",
    "leaky-meter",
    "interval-bucket",
    "fixed-window",
    "sliding-window",
    "sliding-log",
    "calendar-quota",
];

/// The ways to say how long a period of a quota is.
pub(super) const PERIODS: [&str; 3] = ["per", "fixed", "rolling"];

type Quota = fn(u64) -> CalendarQuota;

/// The periods that a calendar has.
pub(super) const CALENDAR: [Word<Quota>; 3] =
    [("day", CalendarQuota::daily), ("week", CalendarQuota::weekly), ("month", CalendarQuota::monthly)];

/// Reads the algorithm of a section; a problem if there is none, or several.
pub(super) fn read(section: &Section<'_>) -> Option<Algorithm> {
    if let Some(delays) = section.field_if_written("leaky-bucket") {
        delays.problem_as("leaky-bucket delays, and a limit refuses; write leaky-meter or gcra");
        ALGORITHMS.iter().for_each(|name| drop(section.field(name)));
        return None;
    }
    let remedy = "write one, as in gcra = { rate = \"10/second\", burst = 20 }";
    let (name, field) = section.one_of(&ALGORITHMS, "algorithm", remedy)?;
    let table = field.section("it must be a table, as in { rate = \"10/second\" }")?;
    let built = match name {
        "gcra" => gcra(&table),
        "token-bucket" => token_bucket(&table),
        "leaky-meter" => leaky_meter(&table),
        "interval-bucket" => interval_bucket(&table),
        "fixed-window" => fixed_window(&table),
        "sliding-window" => sliding_window(&table),
        "sliding-log" => rate(&table).map(|rate| SlidingLog::new(rate).build()),
        _ => calendar_quota(&table),
    };
    let algorithm = built.and_then(|built| built.map_err(|error| report(&table, &field, &error)).ok());
    table.finish();
    algorithm
}

type Built = Option<Result<Algorithm, ConfigError>>;

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
        "refill" => &["refill"],
        "interval in microseconds" => &["interval"],
        _ => &[],
    };
    let about = names.iter().find_map(|name| table.field_if_written(name));
    about.as_ref().unwrap_or(algorithm).config_problem(error);
}

/// An option's problem has been reported: the algorithm must not be built without it.
fn option<T>(field: Option<Field<'_>>, read: impl Fn(&Field<'_>) -> Option<T>) -> Option<Option<T>> {
    field.map_or(Some(None), |field| read(&field).map(Some))
}

fn rate(table: &Section<'_>) -> Option<throttle_core::Rate> {
    values::rate(&table.required("rate", "write a count and a period, as in \"10/second\"")?)
}

fn units(field: &Field<'_>) -> Option<u64> {
    field.number(1, u64::MAX)
}

fn gcra(table: &Section<'_>) -> Built {
    let (rate, burst) = (rate(table), option(table.field("burst"), units));
    let gcra = Gcra::new(rate?);
    Some(burst?.map_or(gcra, |burst| gcra.burst(burst)).build())
}

fn token_bucket(table: &Section<'_>) -> Built {
    let (rate, burst) = (rate(table), option(table.field("burst"), units));
    let bucket = TokenBucket::new(rate?);
    Some(burst?.map_or(bucket, |burst| bucket.burst(burst)).build())
}

fn leaky_meter(table: &Section<'_>) -> Built {
    let (rate, capacity) = (rate(table), option(table.field("capacity"), units));
    let meter = LeakyMeter::new(rate?);
    Some(capacity?.map_or(meter, |capacity| meter.capacity(capacity)).build())
}

fn interval_bucket(table: &Section<'_>) -> Built {
    let capacity = table.required("capacity", "write how many units there are at most").as_ref().and_then(units);
    let refill = table.required("refill", "write how many units come back at a time").as_ref().and_then(units);
    let interval = table.required("interval", "write how often units come back, as in \"1h\"");
    let interval = interval.as_ref().and_then(values::duration);
    let aligned = option(table.field("aligned"), |field| field.boolean());
    let bucket = IntervalBucket::new(capacity?).refill(refill?, interval?);
    Some(if aligned? == Some(true) { bucket.aligned() } else { bucket }.build())
}

fn fixed_window(table: &Section<'_>) -> Built {
    let (rate, offset) = (rate(table), option(table.field("offset"), values::shift));
    Some(FixedWindow::new(rate?).offset_micros(offset?.unwrap_or(0)).build())
}

fn sliding_window(table: &Section<'_>) -> Built {
    let (rate, buckets) = (rate(table), option(table.field("buckets"), units));
    let window = SlidingWindow::new(rate?);
    Some(buckets?.map_or(window, |buckets| window.buckets(buckets)).build())
}

fn calendar_quota(table: &Section<'_>) -> Built {
    let count = table.required("count", "write how many units a period has").as_ref().and_then(units);
    let remedy = "write per = \"day\", \"week\" or \"month\", fixed = \"10d\" or rolling = \"30d\"";
    let period = table.one_of(&PERIODS, "period", remedy);
    let offset = option(table.field("utc-offset"), values::utc_offset);
    let (count, (kind, period)) = (count?, period?);
    let quota = match kind {
        "fixed" => CalendarQuota::fixed(count, values::duration(&period)?),
        "rolling" => CalendarQuota::rolling(count, values::duration(&period)?),
        _ => match values::word(period.text(), &CALENDAR) {
            Some(quota) => quota(count),
            None => {
                period.problem("it must be \"day\", \"week\" or \"month\"; other periods are fixed or rolling");
                return None;
            }
        },
    };
    Some(offset?.map_or(quota, |minutes| quota.utc_offset_minutes(minutes)).build())
}
