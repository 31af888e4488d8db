//! The options that limits, plans and limits on requests in flight have in common.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use throttle_core::ConfigError;

use super::key;
use super::matching::{self, Matcher};
use super::names::did_you_mean;
use super::reader::{Field, Section};
use super::registry::{CostOf, REFUNDS, Refund, Registry, unknown};
use super::values::{self, Word};
use crate::client_ip::ClientIp;
use crate::limit::{Limit, OnError, OnMissing};

/// What the limits of a file are read with.
pub(super) struct Context<'r> {
    pub(super) registry: &'r Registry,
    pub(super) client_ip: ClientIp,
    pub(super) defaults: Defaults,
}

/// `[defaults]`
#[derive(Default)]
pub(super) struct Defaults {
    on_error: Option<OnError>,
    on_missing: Option<OnMissing>,
}

impl Defaults {
    pub(super) fn read(root: &Section<'_>) -> Self {
        let section = root.field("defaults").and_then(|field| field.section("it must be a table: [defaults]"));
        let Some(section) = section else { return Self::default() };
        let on_error = section.field("on-error").as_ref().and_then(on_error);
        let on_missing = section.field("on-missing").as_ref().and_then(on_missing);
        section.finish();
        Self { on_error, on_missing }
    }
}

/// A cost of every request, or one by request.
pub(super) enum Cost {
    Units(u64),
    Of(CostOf),
}

/// What a limit and plans can say beside their algorithms and keys.
pub(super) struct Options {
    cost: Option<Cost>,
    pub(super) matcher: Arc<Matcher>,
    on_missing: Option<OnMissing>,
    pub(super) on_error: Option<OnError>,
    refunds: Vec<RefundRule>,
    charge_refused: bool,
    settled_later: bool,
    unit: Option<String>,
    wait_up_to: Option<Duration>,
    key_deadline: Option<Duration>,
}

enum RefundRule {
    Successful,
    Failed,
    ServerErrors,
    Aborted,
    Registered(Refund),
}

impl Options {
    pub(super) fn read(section: &Section<'_>, context: &Context<'_>) -> Self {
        let flag = |name| section.field(name).as_ref().and_then(Field::boolean).unwrap_or(false);
        let duration = |name| section.field(name).as_ref().and_then(values::duration);
        let text = |field: &Field<'_>| field.expect_text("it must be text, as in \"tokens\"").map(str::to_owned);
        let options = Self {
            cost: cost(section, context.registry),
            matcher: Arc::new(matching::read(section, context.registry)),
            on_missing: missing_rule(section, context),
            on_error: section.field("on-error").as_ref().and_then(on_error).or(context.defaults.on_error),
            refunds: section.field("refund").map(|field| refunds(&field, context.registry)).unwrap_or_default(),
            charge_refused: flag("charge-refused"),
            settled_later: flag("settled-later"),
            unit: section.field("unit").as_ref().and_then(text),
            wait_up_to: duration("wait-up-to"),
            key_deadline: duration("key-deadline"),
        };
        if options.settled_later && section.field_if_written("cost").is_none() {
            let field = section.field_if_written("settled-later");
            field.into_iter().for_each(|field| {
                field.problem(
                    "there is no cost to settle; write the estimate, as in cost = 500, or 0 to charge everything \
                     afterwards",
                );
            });
        }
        if let (false, Some(Cost::Units(0)), Some(field)) =
            (options.settled_later, &options.cost, section.field_if_written("cost"))
        {
            field.problem(
                "requests that cost nothing are not limited; write a number from 1, or settled-later = true where the \
                 handler settles the cost",
            );
        }
        options
    }

    pub(super) fn apply(self, mut limit: Limit) -> Limit {
        limit = match self.cost {
            None => limit,
            Some(Cost::Units(units)) => limit.cost(units),
            Some(Cost::Of(cost)) => limit.cost(move |parts: &http::request::Parts| cost(parts)),
        };
        if !self.matcher.is_empty() {
            limit = if self.matcher.uses_route() { limit.for_some_routes() } else { limit };
            let matcher = self.matcher;
            limit = limit.when(move |parts| matcher.matches(parts));
        }
        for refund in self.refunds {
            limit = match refund {
                RefundRule::Successful => limit.refund_successful(),
                RefundRule::Failed => limit.refund_failed(),
                RefundRule::ServerErrors => limit.refund_server_errors(),
                RefundRule::Aborted => limit.refund_aborted(),
                RefundRule::Registered(refund) => limit.refund_if(move |status, headers| refund(status, headers)),
            };
        }
        let set = |limit: Limit, is_set: bool, set: fn(Limit) -> Limit| if is_set { set(limit) } else { limit };
        limit = set(limit, self.charge_refused, Limit::charge_refused);
        limit = set(limit, self.settled_later, Limit::settled_later);
        limit = optional(limit, self.on_missing, Limit::on_missing);
        limit = optional(limit, self.on_error, Limit::on_error);
        limit = optional(limit, self.unit, Limit::unit);
        limit = optional(limit, self.wait_up_to, Limit::wait_up_to);
        optional(limit, self.key_deadline, Limit::key_deadline)
    }
}

fn optional<T>(limit: Limit, value: Option<T>, set: impl FnOnce(Limit, T) -> Limit) -> Limit {
    match value {
        Some(value) => set(limit, value),
        None => limit,
    }
}

/// Reports what the builders refuse at the field that it is about.
pub(super) fn report(section: &Section<'_>, error: &ConfigError) {
    let name = match error.field() {
        "policy name" => "name",
        "cost" => "cost",
        "unit" => "unit",
        "unknown" => "unknown",
        "tier" | "tiers" => "tiers",
        "cache" => "cache",
        _ => "",
    };
    let message = super::reader::without_policy(error);
    match section.field_if_written(name) {
        Some(field) => field.problem_as(message),
        None => section.problem(message),
    }
}

pub(super) fn cost(section: &Section<'_>, registry: &Registry) -> Option<Cost> {
    let field = section.field("cost")?;
    let Some(name) = field.text() else {
        return field.number(0, u64::MAX).map(Cost::Units);
    };
    let cost = registry.costs.get(name).cloned();
    if cost.is_none() {
        let known: Vec<&str> = registry.costs.keys().map(String::as_str).collect();
        field.problem(unknown("cost", name, &known, "cost"));
    }
    cost.map(Cost::Of)
}

/// The limit's own rule for requests without a key, or the file's.
pub(super) fn missing_rule(section: &Section<'_>, context: &Context<'_>) -> Option<OnMissing> {
    section.field("on-missing").as_ref().and_then(on_missing).or(context.defaults.on_missing)
}

/// A rule for requests without a key would look as if there were any.
pub(super) fn refuse_idle_missing_rule(section: &Section<'_>) {
    let (Some(rule), Some(by)) = (section.field_if_written("on-missing"), section.field_if_written("by")) else {
        return;
    };
    if key::is_never_missing(by.raw()) {
        rule.problem_as("on-missing has no effect, because no request is without this key; remove it");
    }
}

/// The rules for requests without a key, but for those that answer with a status.
pub(super) const ON_MISSING: [Word<OnMissing>; 2] = [("share", OnMissing::Share), ("skip", OnMissing::Skip)];

/// The least and the greatest status of a refused request.
pub(super) const STATUSES: (u64, u64) = (400, 599);

fn on_missing(field: &Field<'_>) -> Option<OnMissing> {
    let forms = "write \"share\", \"skip\" or { reject = 401 }";
    if field.is_table() {
        let table = field.section(forms)?;
        let status = table.required("reject", forms).and_then(|status| status.number(STATUSES.0, STATUSES.1));
        table.finish();
        return StatusCode::from_u16(u16::try_from(status?).ok()?).ok().map(OnMissing::Reject);
    }
    let rule = values::word(field.text(), &ON_MISSING);
    if rule.is_none() {
        let near = did_you_mean(field.text().unwrap_or(""), ON_MISSING.map(|(word, _)| word));
        field.problem(format_args!("{forms}{near}"));
    }
    rule
}

/// The rules for a store that fails, but for those that decide by a share.
pub(super) const ON_ERROR: [Word<OnError>; 2] = [("open", OnError::Open), ("closed", OnError::Closed)];

fn on_error(field: &Field<'_>) -> Option<OnError> {
    let forms = "write \"open\", \"closed\", or \"local/4\" where 4 processes share the limit";
    let processes = |text: &str| text.strip_prefix("local/")?.parse().ok().filter(|processes: &u32| *processes > 0);
    let text = field.text();
    let rule = values::word(text, &ON_ERROR).or_else(|| text.and_then(processes).map(OnError::local));
    if rule.is_none() {
        let near = did_you_mean(text.unwrap_or(""), ON_ERROR.map(|(word, _)| word));
        field.problem(format_args!("{forms}{near}"));
    }
    rule
}

fn refunds(field: &Field<'_>, registry: &Registry) -> Vec<RefundRule> {
    let forms =
        "write \"successful\", \"failed\", \"server-errors\", \"aborted\", a registered name, or a list of them";
    let one = |field: &Field<'_>| {
        let name = field.expect_text(forms)?;
        Some(match (name, registry.refunds.get(name)) {
            ("successful", _) => RefundRule::Successful,
            ("failed", _) => RefundRule::Failed,
            ("server-errors", _) => RefundRule::ServerErrors,
            ("aborted", _) => RefundRule::Aborted,
            (_, Some(refund)) => RefundRule::Registered(Arc::clone(refund)),
            (_, None) => {
                let known: Vec<&str> = REFUNDS.into_iter().chain(registry.refunds.keys().map(String::as_str)).collect();
                field.problem(unknown("refund", name, &known, "refund"));
                return None;
            }
        })
    };
    let has = |rule: &str| {
        field.is_list() && field.list(forms).is_some_and(|all| all.iter().any(|one| one.text() == Some(rule)))
    };
    if has("successful") && has("failed") {
        field.problem_as("refund has both \"successful\" and \"failed\": every response would be refunded; keep one");
    }
    match field.is_list() {
        true => field.distinct_list(forms).unwrap_or_default().iter().filter_map(one).collect(),
        false => one(field).into_iter().collect(),
    }
}
