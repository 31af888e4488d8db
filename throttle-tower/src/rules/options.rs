//! The options that limits, plans and limits on requests in flight have in common.

use std::sync::Arc;

use http::StatusCode;
use throttle_core::ConfigError;
use throttle_core::backend::Ban;

use super::context::{Context, Defaults};
use super::key;
use super::matching::{self, Matcher};
use super::names::did_you_mean;
use super::outline::{About, Form, by_default};
use super::reader::{Field, Section, Word};
use super::registry::{CostOf, REFUNDS, Registry, registered};
use super::values;
use crate::limit::{Limit, LimitTree, OnError, OnMissing, Priority, Rated};

impl Defaults {
    pub(super) fn read(root: &Section<'_>) -> Self {
        let definition = ("defaults", "Rules for limits without their own.");
        let section = root
            .field("defaults", "")
            .and_then(|field| field.section(definition, "it must be a table: [defaults]"));
        let Some(section) = section else {
            return Self::default();
        };
        let defaults = Self {
            on_error: on_error(&section),
            on_missing: on_missing(&section),
        };
        section.finish();
        defaults
    }
}

/// A cost of every request, or one by request.
pub(super) enum Cost {
    Units(u64),
    Of(CostOf),
}

/// What a limit of a family can say next to its algorithm and its key.
pub(super) struct Options<F = Rated> {
    pub(super) matcher: Arc<Matcher>,
    pub(super) has_on_error: bool,
    settings: Vec<Setting<F>>,
}

type Setting<F = Rated> = Box<dyn FnOnce(Limit<F>) -> Limit<F>>;

impl<F: 'static> Options<F> {
    /// What limits of each family can say.
    pub(super) fn of_each_family(
        section: &Section<'_>,
        cost: Option<Cost>,
        context: &Context<'_>,
    ) -> Self {
        let mut options = Self {
            matcher: Arc::new(matching::read(section, context.registry)),
            has_on_error: false,
            settings: Vec::new(),
        };
        options.add_matcher();
        options.add(cost, |limit, cost| match cost {
            Cost::Units(units) => limit.cost(units),
            Cost::Of(cost) => limit.cost(move |parts: &http::request::Parts| cost(parts)),
        });
        let on_missing = on_missing(section).or(context.defaults.on_missing);
        options.add(on_missing, Limit::on_missing);
        options.add(priority(section, context.registry), Limit::in_classes);
        options
    }

    fn add<T: 'static>(&mut self, value: Option<T>, set: fn(Limit<F>, T) -> Limit<F>) {
        self.settings
            .extend(value.map(|value| Box::new(move |limit| set(limit, value)) as Setting<F>));
    }

    fn add_matcher(&mut self) {
        self.add(
            Some(Arc::clone(&self.matcher)).filter(|matcher| !matcher.is_empty()),
            |limit, matcher| {
                let limit = if matcher.uses_route() {
                    limit.for_some_routes()
                } else {
                    limit
                };
                limit.on_condition(matcher)
            },
        );
    }

    /// The limit with these options. A problem if a setting is wrong in itself or with another one.
    pub(super) fn apply(self, section: &Section<'_>, limit: Limit<F>) -> Option<LimitTree> {
        let limit = self
            .settings
            .into_iter()
            .fold(limit, |limit, set| set(limit));
        match limit.counted() {
            Ok(_) => Some(limit.into()),
            // The name was checked before, whatever else is wrong.
            Err(error) if error.field() == "policy name" => None,
            Err(error) => {
                report(section, &error);
                None
            }
        }
    }
}

impl Options {
    pub(super) fn read(section: &Section<'_>, context: &Context<'_>) -> Self {
        let cost = cost(
            section,
            "How many units a request takes, or a registered cost.",
            0,
            context.registry,
        );
        let costs_nothing = matches!(cost, Some(Cost::Units(0)));
        let mut options = Self::of_each_family(section, cost, context);
        let on_error = on_error(section).or(context.defaults.on_error);
        options.has_on_error = on_error.is_some();
        options.add(on_error, Limit::on_error);
        let about = "Which requests are given back their charge. Successful is 2xx and 3xx.";
        let refunds = section
            .field("refund", about)
            .map(|field| refunds(&field, context.registry));
        options.settings.extend(refunds.into_iter().flatten());
        let flag = |name, about| {
            section
                .field(name, about)
                .as_ref()
                .and_then(Field::boolean)
                .filter(|is_set| *is_set)
        };
        let charged = flag("charge-refused", "Whether refused requests are charged.");
        options.add(charged, |limit, _| limit.charge_refused());
        let settled = flag(
            "settled-later",
            "Whether the handler settles the cost, which is an estimate.",
        );
        options.add(ban(section), |limit, (ban, insists)| {
            if insists {
                limit.ban_even_if_spoofable(ban)
            } else {
                limit.ban(ban)
            }
        });
        options.add(strikes(section), |limit, strikes: Vec<StatusCode>| {
            limit.strike_if(move |status, _| strikes.contains(&status))
        });
        check_cost(section, settled.is_some(), costs_nothing);
        options.add(settled, |limit, _| limit.settled_later());
        let unit = section.field(
            "unit",
            by_default(
                "requests",
                "What is counted, as clients read it in headers.",
            ),
        );
        let unit =
            unit.and_then(|field| field.expect_text("name", "it must be text, as in \"tokens\""));
        options.add(unit.map(str::to_owned), Limit::unit);
        let duration = |name, about: About| {
            section
                .field(name, about)
                .as_ref()
                .and_then(values::duration)
        };
        let about = "Requests wait up to so long for their turn instead of being refused.";
        options.add(duration("wait-up-to", about.into()), Limit::wait_up_to);
        let about = by_default(
            "enforce",
            "Whether the limit refuses requests. If it is audited, it shows what it would do.",
        );
        let rule = "it must be \"enforce\" (the default), \"audit\" or \"audit-announced\"";
        let mode = section
            .field("mode", about)
            .and_then(|field| field.expect_word(&MODES, rule));
        options.add(mode, |limit, set_mode| set_mode(limit));
        let about = "The part of the capacity from which on a key is near the end of the limit, \
            as events and metrics report it.";
        let warn_at = section
            .field("warn-at", about)
            .as_ref()
            .and_then(Field::part);
        options.add(warn_at, Limit::warn_at);
        let about = "How long a key that a future returns may take. Only with such a key.";
        options.add(
            duration("key-deadline", by_default("1s", about)),
            Limit::key_deadline,
        );
        options
    }
}

type SetMode = fn(Limit) -> Limit;

/// What a limit does with requests beyond it.
const MODES: [Word<SetMode>; 3] = [
    ("enforce", |limit| limit),
    ("audit", Limit::audit),
    ("audit-announced", Limit::audit_announced),
];

fn check_cost(section: &Section<'_>, is_settled: bool, costs_nothing: bool) {
    match (
        section.field_if_written("settled-later"),
        section.field_if_written("cost"),
    ) {
        (Some(settled), None) if is_settled => {
            settled.problem("there is no cost to settle; write the estimate, as in cost = 500");
        }
        (_, Some(cost)) if costs_nothing && !is_settled => cost.problem(
            "requests that cost nothing are not limited; write a number from 1, or settled-later \
                = true where the \
             handler settles the cost",
        ),
        _ => {}
    }
}

/// Reports what the builders refuse at the field that it is about.
pub(super) fn report(section: &Section<'_>, error: &ConfigError) {
    const FIELDS: [&str; 7] = [
        "cost", "unit", "unknown", "tiers", "cache", "reserve", "ban",
    ];
    let name = match error.field() {
        "policy name" => Some("name"),
        "class" => Some("reserve"),
        "tier" => Some("tiers"),
        "wait_up_to" => Some("wait-up-to"),
        "on_missing" => Some("on-missing"),
        "strike_if" => Some("strike-if"),
        same => FIELDS.into_iter().find(|field| *field == same),
    };
    let message = super::file_value::without_policy(error);
    match name.and_then(|name| section.field_if_written(name)) {
        Some(field) => field.problem_as(message),
        None => section.problem(message),
    }
}

pub(super) fn cost(
    section: &Section<'_>,
    about: &'static str,
    least: u64,
    registry: &Registry,
) -> Option<Cost> {
    section
        .field("cost", by_default(1, about))?
        .any_form(|field| match field.text() {
            Some(name) => {
                registered(field, name, ("registered-cost", &registry.costs), &[]).map(Cost::Of)
            }
            None => {
                field.note(Form::Number(least, u64::MAX));
                field.number(0, u64::MAX).map(Cost::Units)
            }
        })
}

/// When keys are banned, and whether also those that a client can choose.
fn ban(section: &Section<'_>) -> Option<(Ban, bool)> {
    let form = "write a table, as in ban = { after = 5, lasting = \"10m\" }";
    section.field("ban", "")?.defined("ban", "", |field| {
        let table = field.section(("ban", "Keys that do not stop are refused for a while, each \
            time longer."), form)?;
        let number = |field: Field<'_>, most| field.number(1, most).and_then(|number| u32::try_from(number).ok());
        let time = |name, usual: &'static str, about| match table.field(name, by_default(usual, about)) {
            Some(field) => values::duration(&field).map(Some),
            None => Some(None),
        };
        let after = table.required("after", "Strikes before a ban.", form).and_then(|field| number(field, 1_000_000));
        let growing = table.field("growing", by_default(2, "How many times longer each ban is \
            than the one before."));
        let growing = growing.map_or(Some(None), |field| number(field, 100).map(Some));
        let within = time("within", "10m", "For how long a strike counts.");
        let lasting = time("lasting", "10m", "The length of the first ban.");
        let up_to = time("up-to", "1d", "The length of the longest ban.");
        let forgotten = time("forgotten-after", "7d", "After this time without a ban the next one \
            is a first one.");
        let about =
            "Whether keys are banned that a client can choose, because something before the \
                program checks them.";
        let insists = table.field("even-if-spoofable", by_default(false, about));
        let insists = insists.map_or(Some(false), |field| field.boolean());
        table.finish();
        let mut ban = Ban::after(after?);
        ban = growing?.map_or(ban, |factor| ban.growing(factor));
        ban = within?.map_or(ban, |time| ban.within(time));
        ban = lasting?.map_or(ban, |time| ban.lasting(time));
        ban = up_to?.map_or(ban, |time| ban.up_to(time));
        ban = forgotten?.map_or(ban, |time| ban.forgotten_after(time));
        ban.check().map_err(|error| field.config_problem(&error)).ok()?;
        Some((ban, insists?))
    })
}

/// The statuses of responses that are strikes.
fn strikes(section: &Section<'_>) -> Option<Vec<StatusCode>> {
    let about = "Responses with these statuses are strikes, beside refusals. Only with a ban.";
    let list = section
        .field("strike-if", about)?
        .distinct_list("write a list of statuses, as in [401, 403]")?;
    let status =
        |field: &Field<'_>| StatusCode::from_u16(u16::try_from(field.number(100, 599)?).ok()?).ok();
    Some(list.iter().filter_map(status).collect())
}

/// The classes of requests that share a limit, the one with the least reserve first.
fn priority(section: &Section<'_>, registry: &Registry) -> Option<Arc<Priority>> {
    let (function, table) = (
        "classes = \"importance\"",
        "reserve = { interactive = 0, batch = 40 }",
    );
    let of = section
        .field(
            "classes",
            "A registered function that names the class of a request.",
        )
        .and_then(|field| {
            let name = field.expect_text(
                "registered-classes",
                &format!("write the name of a function, as in {function}"),
            )?;
            registered(&field, name, ("registered-classes", &registry.classes), &[])
        });
    let classes = section.field("reserve", "").and_then(|field| {
        let classes = field
            .section(
                ("reserve", ""),
                &format!("write a table of classes, as in {table}"),
            )?
            .all();
        let class =
            |(name, field): (&str, Field<'_>)| Some((name.to_owned(), field.number(0, u64::MAX)?));
        let mut classes: Vec<_> = classes
            .into_iter()
            .map(class)
            .collect::<Vec<_>>()
            .into_iter()
            .collect::<Option<_>>()?;
        classes.sort_by_key(|(_, reserve)| *reserve);
        Some(classes)
    });
    match (
        section.field_if_written("classes"),
        section.field_if_written("reserve"),
    ) {
        (Some(field), None) => field.problem(format_args!(
            "no class has a reserve; write {table} beside it"
        )),
        (None, Some(field)) => field.problem_as(format_args!(
            "reserve is without classes: the program names the class of a request; write \
                {function}, a function that \
             is registered with Registry::classes"
        )),
        _ => {}
    }
    Some(Priority::new(classes?, of?))
}

/// A rule for requests without a key would look as if there were any.
pub(super) fn refuse_idle_missing_rule(section: &Section<'_>) {
    let (Some(rule), Some(by)) = (
        section.field_if_written("on-missing"),
        section.field_if_written("by"),
    ) else {
        return;
    };
    if key::is_never_missing(by.raw()) {
        rule.problem_as(
            "on-missing has no effect, because no request is without this key; remove it",
        );
    }
}

fn on_missing(section: &Section<'_>) -> Option<OnMissing> {
    let about = "Requests without a key: they share one budget, skip the limit, or are refused \
        with a status, as in { \
                 reject = 401 }.";
    let words = [("share", OnMissing::Share), ("skip", OnMissing::Skip)];
    let forms = "write \"share\", \"skip\" or { reject = 401 }";
    section
        .field("on-missing", "")?
        .defined("on-missing", by_default("share", about), |field| {
            if field.is_table() {
                let table =
                    field.section(("rejection", "Refuses requests without a key."), forms)?;
                let status = table.required("reject", "The status of the response.", forms);
                let status = status.and_then(|status| status.number(400, 599));
                table.finish();
                return StatusCode::from_u16(u16::try_from(status?).ok()?)
                    .ok()
                    .map(OnMissing::Reject);
            }
            let near = did_you_mean(field.text().unwrap_or(""), words.map(|(word, _)| word));
            field.expect_word(&words, format_args!("{forms}{near}"))
        })
}

fn on_error(section: &Section<'_>) -> Option<OnError> {
    let about = "What happens while the store fails: \"open\" admits, \"closed\" \
        refuses, \"local/4\" decides by a \
                 share of the limit where 4 processes share it. Required with a store that can \
                 fail.";
    let words = [("open", OnError::Open), ("closed", OnError::Closed)];
    let processes = |text: &str| {
        text.strip_prefix("local/")?
            .parse()
            .ok()
            .filter(|processes: &u32| *processes > 0)
    };
    section
        .field("on-error", "")?
        .defined("on-error", about, |field| {
            field.note(Form::Named("share"));
            if let Some(processes) = field.text().and_then(processes) {
                return Some(OnError::local(processes));
            }
            let near = did_you_mean(field.text().unwrap_or(""), words.map(|(word, _)| word));
            let forms =
                "write \"open\", \"closed\", or \"local/4\" where 4 processes share the limit";
            field.expect_word(&words, format_args!("{forms}{near}"))
        })
}

fn refunds(field: &Field<'_>, registry: &Registry) -> Vec<Setting> {
    let forms = "write \"successful\", \"failed\", \"server-errors\", \"aborted\", a registered \
        name, or a list of them";
    let one = |field: &Field<'_>| {
        field.defined("refund", "", |field| {
            if let Some(set) = field.word(&REFUNDS) {
                return Some(Box::new(set) as Setting);
            }
            let name = field.expect_text("registered-refund", forms)?;
            let known = ("registered-refund", &registry.refunds);
            let refund = registered(field, name, known, &REFUNDS.map(|(name, _)| name))?;
            Some(Box::new(move |limit: Limit| {
                limit.refund_if(move |status, headers| refund(status, headers))
            }))
        })
    };
    let elements = field.elements();
    let has = |rule: &str| elements.iter().any(|one| one.text() == Some(rule));
    if has("successful") && has("failed") {
        field.problem_as(
            "refund has both \"successful\" and \"failed\": every response would be \
            refunded; keep one",
        );
    }
    let all = field.any_form(|field| match field.is_list() {
        true => Some(field.distinct_list(forms)?.iter().filter_map(one).collect()),
        false => one(field).map(|refund| vec![refund]),
    });
    all.unwrap_or_default()
}
