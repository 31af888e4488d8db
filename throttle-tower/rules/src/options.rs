//! The options that limits, plans and limits on requests in flight have in common.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::request::Parts;
use throttle_core::ConfigError;
use throttle_core::backend::Ban;

use super::context::{Context, Defaults};
use super::file_value::{FileValue, without_policy};
use super::form::*;
use super::key;
use super::matching::{MATCH, WHEN};
use super::registry::{ClassOf, CostOf, REFUNDS, Registry, registered};
use super::values::DURATION;
use throttle_tower::limit::{Audit, IntoLimitTree, Limit, LimitTree, OnError, OnMissing, Rated};

pub(super) const DEFAULTS: ValueForm = Table(
    "defaults",
    "Rules for limits without their own.",
    &[ON_ERROR, ON_MISSING],
    "it must be a table: [defaults]",
);

impl Defaults {
    pub(super) fn read(section: &FileValue<'_>) -> Self {
        Self {
            on_error: on_error(section),
            on_missing: on_missing(section),
        }
    }
}

/// What all limits have.
pub(super) const COMMON: FieldForm = Shared(&[
    MATCH,
    One("when", "", Optional, Defined(&WHEN)),
    ON_MISSING,
    One(
        "classes",
        "A registered function that names the class of a request.",
        Optional,
        Text(
            "registered-classes",
            "write the name of a function, as in classes = \"importance\"",
        ),
    ),
    One(
        "reserve",
        "",
        Optional,
        Each(
            "reserve",
            &Number(0, u64::MAX),
            "write a table of classes, as in reserve = { interactive = 0, batch = 40 }",
        ),
    ),
]);

/// What limits on rates have.
pub(super) const OPTIONS: FieldForm = Shared(&[
    COMMON,
    One(
        "cost",
        "How many units a request takes, or a registered cost.",
        Usual("1"),
        COST,
    ),
    ON_ERROR,
    One(
        "refund",
        "Which requests are given back their charge. Successful is 2xx and 3xx.",
        Optional,
        Any(
            &[Defined(&REFUND), Distinct(&Defined(&REFUND), REFUND_FORMS)],
            REFUND_FORMS,
        ),
    ),
    One(
        "charge-refused",
        "Whether refused requests are charged.",
        Optional,
        Flag,
    ),
    One(
        "settled-later",
        "Whether the handler settles the cost, which is an estimate.",
        Optional,
        Flag,
    ),
    One("ban", "", Optional, BAN),
    One(
        "strike-if",
        "Responses with these statuses are strikes, beside refusals. Only with a ban.",
        Optional,
        Distinct(
            &Number(100, 599),
            "write a list of statuses, as in [401, 403]",
        ),
    ),
    One(
        "unit",
        "What is counted, as clients read it in headers.",
        Usual("requests"),
        Text("name", "it must be text, as in \"tokens\""),
    ),
    One(
        "wait-up-to",
        "Requests wait up to so long for their turn instead of being refused.",
        Optional,
        DURATION,
    ),
    One(
        "mode",
        "Whether the limit refuses requests. If it is audited, it shows what it would do.",
        Usual("enforce"),
        Words(
            || words(&MODES),
            "it must be \"enforce\" (the default), \"audit\" or \"audit-announced\"",
        ),
    ),
    One(
        "warn-at",
        "The part of the capacity from which on a key is near the end of the limit, as events and \
         metrics report it.",
        Optional,
        Part,
    ),
    One(
        "key-deadline",
        "How long a key that a future returns may take. Only with such a key.",
        Usual("1s"),
        DURATION,
    ),
]);

pub(super) const COST: ValueForm = Any(
    &[Text("registered-cost", ""), Number(0, u64::MAX)],
    "it must be a whole number from 0",
);

const ON_MISSING: FieldForm = One(
    "on-missing",
    "",
    Optional,
    Defined(&Definition(
        "on-missing",
        "Requests without a key: they share one budget, skip the limit, or are refused with \
                a status, as in { reject = 401 }.",
        Usual("share"),
        Any(
            &[
                Words(|| words(&MISSING), ""),
                Table(
                    "rejection",
                    "Refuses requests without a key.",
                    &[One(
                        "reject",
                        "The status of the response.",
                        Required(MISSING_FORMS),
                        Number(400, 599),
                    )],
                    MISSING_FORMS,
                ),
            ],
            MISSING_FORMS,
        ),
    )),
);

const MISSING: [Word<OnMissing>; 2] = [("share", OnMissing::Share), ("skip", OnMissing::Skip)];

const MISSING_FORMS: &str = "write \"share\", \"skip\" or { reject = 401 }";

const ON_ERROR: FieldForm = One(
    "on-error",
    "",
    Optional,
    Defined(&Definition(
        "on-error",
        "What happens while the store fails: \"open\" admits, \"closed\" refuses, \"local/4\" \
                decides by a share of the limit where 4 processes share it. Required with a store \
                that can fail.",
        Optional,
        Any(
            &[
                Parsed("share", "", |text| {
                    processes(text).is_none().then(String::new)
                }),
                Words(|| words(&ERROR), ""),
            ],
            "write \"open\", \"closed\", or \"local/4\" where 4 processes share the limit",
        ),
    )),
);

const ERROR: [Word<OnError>; 2] = [("open", OnError::Open), ("closed", OnError::Closed)];

static REFUND: Definition = Definition(
    "refund",
    "",
    Optional,
    Any(
        &[
            Words(|| words(&REFUNDS), REFUND_FORMS),
            Text("registered-refund", REFUND_FORMS),
        ],
        REFUND_FORMS,
    ),
);

const REFUND_FORMS: &str = "write \"successful\", \"failed\", \"server-errors\", \"aborted\", a \
                            registered name, or a list of them";

const BAN: ValueForm = Table(
    "ban",
    "Keys that do not stop are refused for a while, each time longer.",
    &[
        One(
            "after",
            "Strikes before a ban.",
            Required(BAN_FORM),
            Number(1, 1_000_000),
        ),
        One(
            "growing",
            "How many times longer each ban is than the one before.",
            Usual("2"),
            Number(1, 100),
        ),
        One(
            "within",
            "For how long a strike counts.",
            Usual("10m"),
            DURATION,
        ),
        One(
            "lasting",
            "The length of the first ban.",
            Usual("10m"),
            DURATION,
        ),
        One(
            "up-to",
            "The length of the longest ban.",
            Usual("1d"),
            DURATION,
        ),
        One(
            "forgotten-after",
            "After this time without a ban the next one is a first one.",
            Usual("7d"),
            DURATION,
        ),
        One(
            "even-if-spoofable",
            "Whether keys are banned that a client can choose, because something before the \
                 program checks them.",
            Usual("false"),
            Flag,
        ),
    ],
    BAN_FORM,
);

type SetTime = fn(Ban, Duration) -> Ban;

const BAN_TIMES: [Word<SetTime>; 4] = [
    ("within", Ban::within),
    ("lasting", Ban::lasting),
    ("up-to", Ban::up_to),
    ("forgotten-after", Ban::forgotten_after),
];

const BAN_FORM: &str = "write a table, as in ban = { after = 5, lasting = \"10m\" }";

/// What a limit does with requests beyond it.
const MODES: [Word<Option<Audit>>; 3] = [
    ("enforce", None),
    ("audit", Some(Audit::Silent)),
    ("audit-announced", Some(Audit::Announced)),
];

/// A limit that gets its options, or none after a problem: its options are read all the same.
pub(super) struct PendingLimit<F = Rated>(Option<Limit<F>>);

impl<F: 'static> PendingLimit<F> {
    /// Sets what limits of each kind can say.
    pub(super) fn of_each_kind(
        limit: Option<Limit<F>>,
        table: &FileValue<'_>,
        context: &Context<'_>,
    ) -> Self {
        let mut limit = Self(limit);
        limit.set(cost(table, context.registry), |limit, cost| match cost {
            Cost::Units(units) => limit.cost(units),
            Cost::Of(cost) => limit.cost(move |parts: &Parts| cost(parts)),
        });
        let on_missing = on_missing(table).or(context.defaults.on_missing);
        limit.set(on_missing, Limit::on_missing);
        let classes = classes(table, context.registry);
        limit.set(classes, |limit, (of, classes)| {
            let names: Vec<_> = classes.iter().map(|(name, _)| Arc::from(&**name)).collect();
            // Of a class that the limit does not have, the name is that of none.
            let class_of = move |parts: &Parts| of(parts, &names).unwrap_or_default();
            limit.priority(classes, class_of)
        });
        limit
    }

    fn set<T>(&mut self, value: Option<T>, set: impl FnOnce(Limit<F>, T) -> Limit<F>) {
        if let Some(value) = value {
            self.0 = self.0.take().map(|limit| set(limit, value));
        }
    }

    /// The limit. A problem if a setting is wrong in itself or with another one.
    pub(super) fn checked(self, table: &FileValue<'_>) -> Option<LimitTree> {
        let limit = self.0?.into_limit_tree();
        match limit.policies() {
            Ok(_) => Some(limit),
            Err(error) => {
                // The name was checked before, whatever else is wrong.
                if error.field() != "policy name" {
                    report(table, &error);
                }
                None
            }
        }
    }
}

impl PendingLimit {
    /// Sets what the file says of a limit on a rate next to its algorithm and its key.
    pub(super) fn of_rate(
        limit: Option<Limit>,
        table: &FileValue<'_>,
        context: &Context<'_>,
    ) -> Self {
        let mut limit = Self::of_each_kind(limit, table, context);
        let flag = |name: &str| table.at(name).flag().filter(|is_set| *is_set);
        let settled = flag("settled-later");
        check_cost(table, settled.is_some());
        limit.set(settled, |limit, _| limit.settled_later());
        limit.set(flag("charge-refused"), |limit, _| limit.charge_refused());
        let on_error = on_error(table).or(context.defaults.on_error);
        limit.set(on_error, Limit::on_error);
        if let Some(refunds) = table.get("refund") {
            set_refunds(&mut limit, refunds, context.registry);
        }
        limit.set(ban(table), Limit::ban);
        limit.set(strikes(table), |limit, strikes| {
            limit.strike_if(move |status, _| strikes.contains(&status))
        });
        limit.set(table.at("unit").text(), Limit::unit);
        limit.set(table.at("wait-up-to").duration(), Limit::wait_up_to);
        limit.set(table.at("mode").word(&MODES).flatten(), Limit::audit);
        limit.set(table.at("warn-at").part(), Limit::warn_at);
        limit.set(table.at("key-deadline").duration(), Limit::key_deadline);
        limit
    }
}

/// Reports what the builders refuse at the field that it is about.
fn report(table: &FileValue<'_>, error: &ConfigError) {
    let name = match error.field() {
        "class" => "reserve".to_owned(),
        "tier" => "tiers".to_owned(),
        field => field.replace('_', "-"),
    };
    let field = table.children.iter().find(|child| child.name == name);
    field.unwrap_or(table).problem_as(without_policy(error));
}

/// A cost of every request, or one by request.
enum Cost {
    Units(u64),
    Of(CostOf),
}

fn cost(table: &FileValue<'_>, registry: &Registry) -> Option<Cost> {
    let cost = table.get("cost")?;
    match cost.number() {
        Some(units) => Some(Cost::Units(units)),
        None => registered(cost, "cost", &registry.costs, &[]).map(Cost::Of),
    }
}

fn check_cost(table: &FileValue<'_>, is_settled: bool) {
    match (table.get("settled-later"), table.get("cost")) {
        (Some(settled), None) if is_settled => {
            settled.problem("there is no cost to settle; write the estimate, as in cost = 500");
        }
        (_, Some(field)) if !is_settled && field.number() == Some(0) => field.problem(
            "requests that cost nothing are not limited; write a number from 1, or settled-later \
             = true where the handler settles the cost",
        ),
        _ => {}
    }
}

/// When keys are banned.
fn ban(table: &FileValue<'_>) -> Option<Ban> {
    let table = table.get("ban").filter(|table| table.fits)?;
    let number = |name: &str| table.at(name).number().map(|number| number as u32);
    let mut ban = Ban::after(number("after")?);
    ban = number("growing").map_or(ban, |factor| ban.growing(factor));
    for (name, set) in BAN_TIMES {
        ban = table.at(name).duration().map_or(ban, |time| set(ban, time));
    }
    ban.check()
        .map_err(|error| table.config_problem(&error))
        .ok()?;
    Some(match table.at("even-if-spoofable").flag() {
        Some(true) => ban.even_if_spoofable(),
        _ => ban,
    })
}

/// The statuses of responses that are strikes.
fn strikes(table: &FileValue<'_>) -> Option<Vec<StatusCode>> {
    let list = table.get("strike-if").filter(|list| list.fits)?;
    Some(list.children.iter().filter_map(status).collect())
}

fn status(value: &FileValue<'_>) -> Option<StatusCode> {
    StatusCode::from_u16(value.number()? as u16).ok()
}

/// The function that names the class of a request, and the classes with what each leaves free, the
/// one with the least first.
fn classes(table: &FileValue<'_>, registry: &Registry) -> Option<(ClassOf, Vec<(String, u64)>)> {
    let of = table.get("classes");
    let reserve = table.get("reserve");
    match (of, reserve) {
        (Some(of), None) => of.problem(
            "no class has a reserve; write reserve = { interactive = 0, batch = 40 } beside it",
        ),
        (None, Some(reserve)) => reserve.problem_as(
            "reserve is without classes: the program names the class of a request; write classes \
             = \"importance\", a function that is registered with Registry::classes",
        ),
        _ => {}
    }
    let of = registered(of?, "classes", &registry.classes, &[])?;
    let reserve = reserve?;
    let class = |class: &FileValue<'_>| Some((class.name.to_owned(), class.number()?));
    let classes: Option<Vec<_>> = reserve.children.iter().map(class).collect();
    let mut classes = classes.filter(|_| reserve.fits)?;
    classes.sort_by_key(|(_, reserve)| *reserve);
    Some((of, classes))
}

/// A rule for requests without a key would look as if there were any.
pub(super) fn refuse_idle_missing_rule(table: &FileValue<'_>) {
    if let (Some(rule), Some(by)) = (table.get("on-missing"), table.get("by"))
        && key::is_never_missing(by.value)
    {
        rule.problem_as(
            "on-missing has no effect, because no request is without this key; remove it",
        );
    }
}

fn on_missing(table: &FileValue<'_>) -> Option<OnMissing> {
    let rule = table.get("on-missing")?;
    let reject = || status(rule.get("reject")?).map(OnMissing::Reject);
    rule.word(&MISSING).or_else(reject)
}

fn on_error(table: &FileValue<'_>) -> Option<OnError> {
    let rule = table.get("on-error")?;
    let local = || processes(rule.text()?).map(OnError::local);
    rule.word(&ERROR).or_else(local)
}

/// How many processes share a limit.
fn processes(text: &str) -> Option<u32> {
    let processes = text.strip_prefix("local/")?.parse().ok();
    processes.filter(|processes| *processes > 0)
}

fn set_refunds(limit: &mut PendingLimit, refunds: &FileValue<'_>, registry: &Registry) {
    let each = refunds.each();
    let has = |rule: &str| each.iter().any(|refund| refund.text() == Some(rule));
    if has("successful") && has("failed") {
        refunds.problem_as(
            "refund has both \"successful\" and \"failed\": every response would be refunded; keep \
             one",
        );
    }
    for refund in each {
        if let Some(set) = refund.word(&REFUNDS) {
            limit.set(Some(set), |limit, set| set(limit));
        } else {
            let refund = registered(refund, "refund", &registry.refunds, &words(&REFUNDS));
            limit.set(refund, |limit, refund| {
                limit.refund_if(move |status, headers| refund(status, headers))
            });
        }
    }
}
