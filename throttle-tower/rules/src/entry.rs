//! One limit of a file, of any kind: `[[limit]]`, `[[plans]]` or `[[concurrency]]`.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use throttle_core::{Algorithm, PolicyName};

use super::algorithm::{self, ALGORITHMS};
use super::context::Context;
use super::file_value::FileValue;
use super::form::*;
use super::key::{self, BY_OF_A_LIMIT, BY_OF_PERMITS, BY_OF_PLANS};
use super::matching::{self, Matcher};
use super::options::{self, COMMON, COST, OPTIONS, PendingLimit};
use super::registry::{KeySource, registered};
use super::value_text::{Fields, fields_text};
use super::values::DURATION;
use throttle_tower::extract::Constant;
use throttle_tower::limit::{InFlight, Limit, LimitTree, limit};
use throttle_tower::plans::plans;

/// A limit of a file without its settings: where it stands, and what is asked of it once the limits
/// are composed.
#[derive(Clone)]
pub(super) struct Entry {
    /// What messages call it: `limit "per-ip"`.
    pub(super) owner: String,
    pub(super) name: String,
    pub(super) span: Range<usize>,
    /// Whether it is decided by a backend, and says nothing about one that fails.
    pub(super) needs_on_error: bool,
    /// Which requests it applies to.
    pub(super) matcher: Arc<Matcher>,
    /// What the file says of it, but for its name.
    pub(super) fields: Fields,
}

impl Entry {
    /// What its key is made of, as the file says.
    pub(super) fn by(&self) -> &str {
        self.fields.get("by").map_or("\"constant\"", String::as_str)
    }
}

/// The names of the fields below, in the order in which they are read.
pub(super) const KINDS: [&str; 3] = ["limit", "plans", "concurrency"];

/// The fields of a document that hold limits.
pub(super) const ENTRIES: FieldForm = FieldForm::Shared(&[
    One(
        "limit",
        "Limits on rates. An empty list says that every request is to be admitted.",
        Optional,
        Entries(&LIMIT, "write each as a table of its own, under [[limit]]"),
    ),
    One(
        "plans",
        "Limits that depend on the client's plan.",
        Optional,
        Entries(&PLANS, "write each as a table of its own, under [[plans]]"),
    ),
    One(
        "concurrency",
        "Limits on requests in flight.",
        Optional,
        Entries(
            &CONCURRENCY,
            "write each as a table of its own, under [[concurrency]]",
        ),
    ),
]);

const LIMIT: ValueForm = Table(
    "limit",
    "A limit on the rate of requests.",
    &[NAME, ALGORITHMS, BY_OF_A_LIMIT, OPTIONS],
    "it must be a table: [[limit]]",
);

const NAME: FieldForm = One(
    "name",
    ABOUT_NAMES,
    Required("write one, which clients see in headers, as in name = \"per-ip\""),
    NAME_FORM,
);

const ABOUT_NAMES: &str = "The name of the limit, and of its budgets. Clients read it in headers.";

const NAME_FORM: ValueForm = Text("name", "it must be text, as in \"per-ip\"");

const PLANS: ValueForm = Table(
    "plans",
    "A limit that depends on the client's plan.",
    &[
        NAME,
        One("tiers", "", Required(TIERS), Each("tiers", &TIER, TIERS)),
        BY_OF_PLANS,
        One(
            "lookup",
            "A registered lookup of the tier of an identity.",
            Required(LOOKUP),
            Text("registered-lookup", LOOKUP),
        ),
        One(
            "unknown",
            "The tier of identities that the lookup does not know.",
            Required("name the tier of identities that the lookup does not know"),
            Text("name", "it must be the name of a tier"),
        ),
        One(
            "cache",
            "",
            Optional,
            Table(
                "cache",
                "What is remembered of lookups.",
                &[
                    One(
                        "identities",
                        "How many identities are remembered.",
                        COUNT,
                        Units,
                    ),
                    One(
                        "keep-for",
                        "How long the tier of an identity is remembered.",
                        LENGTH,
                        DURATION,
                    ),
                ],
                "it must be a table, as in { identities = 100, keep-for = \"1s\" }",
            ),
        ),
        One(
            "lookups",
            "",
            Optional,
            Table(
                "lookups",
                "Bounds of lookups.",
                &[
                    One(
                        "at-once",
                        "How many there may be at once.",
                        COUNT,
                        Number(1, u64::MAX),
                    ),
                    One("deadline", "How long a lookup may take.", LENGTH, DURATION),
                ],
                "it must be a table, as in { at-once = 100, deadline = \"1s\" }",
            ),
        ),
        One(
            "unknown-as-missing",
            "Whether unknown identities are requests without a key.",
            Optional,
            Flag,
        ),
        OPTIONS,
    ],
    "it must be a table: [[plans]]",
);

const TIERS: &str = "write a table of tiers, as in { free = { gcra = { rate = \"60/minute\" } } }";

const TIER: ValueForm = Table(
    "tier",
    "The limit of one plan.",
    &[ALGORITHMS],
    "it must be a table with an algorithm, as in { gcra = { rate = \"60/minute\" } }",
);

const LOOKUP: &str = "name a lookup that the program has registered with Registry::lookup";

const COUNT: Presence = Required("write a whole number from 1");

const LENGTH: Presence = Required("write a duration, as in \"1s\"");

const CONCURRENCY: ValueForm = Table(
    "concurrency",
    "A limit on requests in flight.",
    &[
        One("name", ABOUT_NAMES, Usual("in-flight"), NAME_FORM),
        One(
            "most",
            "How many requests may be in flight.",
            Required("write how many requests may be in flight, as in most = 200"),
            Number(1, u64::MAX),
        ),
        BY_OF_PERMITS,
        One(
            "cost",
            "How many permits a request needs, or a registered cost.",
            Usual("1"),
            COST,
        ),
        COMMON,
    ],
    "it must be a table: [[concurrency]]",
);

/// Reads one limit of a kind: the limit, and what decides by it, which is `None` after a problem.
/// Returns `None` if it is no table or has no name.
pub(super) fn read(
    table: &FileValue<'_>,
    kind: &str,
    context: &Context<'_>,
) -> Option<(Entry, Option<LimitTree>)> {
    let mut fields = table.value.as_table().map(fields_text)?;
    let name = table.name;
    let field = table.at("name");
    if let Some(Err(error)) = field.text().map(PolicyName::new) {
        field.problem_as(error);
    }
    let matcher = Arc::new(matching::read(table, context.registry));
    options::refuse_idle_missing_rule(table);
    let tree = match kind {
        "concurrency" => of_permits(table, context),
        _ => {
            let limit = match kind {
                "limit" => limit_on_a_rate(table, context),
                _ => limit_by_plans(table, context),
            };
            PendingLimit::of_rate(limit, table, context).checked(table)
        }
    };
    let has_on_error = fields.contains_key("on-error") || context.defaults.on_error.is_some();
    fields.remove("name");
    // A limit that becomes one of another kind is changed, too.
    if kind != "limit" {
        fields.insert("kind".to_owned(), kind.to_owned());
    }
    let entry = Entry {
        owner: table.owner.to_string(),
        name: Some(name).filter(|name| !name.is_empty())?.to_owned(),
        span: field.span.clone(),
        needs_on_error: kind != "concurrency" && !has_on_error,
        matcher,
        fields,
    };
    Some((entry, tree))
}

/// What a limit is called. One that has no name is checked all the same.
fn name_of<'a>(table: &FileValue<'a>) -> &'a str {
    match table.name {
        "" => "unnamed",
        name => name,
    }
}

fn limit_on_a_rate(table: &FileValue<'_>, context: &Context<'_>) -> Option<Limit> {
    let algorithm = algorithm::read(table);
    let key = table.get("by").and_then(|by| key::read(by, context))?;
    match key {
        KeySource::Extractor(key) => {
            refuse_key_deadline(table);
            Some(limit(name_of(table), algorithm?).by(key))
        }
        KeySource::Future(key) => {
            Some(limit(name_of(table), algorithm?).by_async(move |parts| key(parts)))
        }
    }
}

/// A deadline that nothing has to meet would look as if it protected from something.
fn refuse_key_deadline(table: &FileValue<'_>) {
    if let Some(field) = table.get("key-deadline") {
        field.problem(
            "it is for a key that a future returns, and this key is known at once; remove it",
        );
    }
}

fn limit_by_plans(table: &FileValue<'_>, context: &Context<'_>) -> Option<Limit> {
    refuse_key_deadline(table);
    let rule = "and the identity of plans must be known at once";
    let key = table
        .get("by")
        .and_then(|by| key::read_at_once(by, context, rule));
    let lookup = table
        .get("lookup")
        .and_then(|lookup| registered(lookup, "lookup", &context.registry.lookups, &[]));
    // The order of the tiers is that of their numbers.
    let tiers: Vec<Option<(String, Algorithm)>> = table
        .get("tiers")?
        .children
        .iter()
        .map(|tier| Some((tier.name.to_owned(), algorithm::read(tier)?)))
        .collect();
    let tiers: Option<Vec<_>> = tiers.into_iter().collect();
    let lookup = lookup?;
    let mut plans = plans(name_of(table), tiers.filter(|_| table.at("tiers").fits)?)
        .by(key?)
        .lookup(move |identity| lookup(identity));
    if table.at("unknown-as-missing").flag() == Some(true) {
        plans = plans.unknown_as_missing();
    }
    if let Some((identities, keep_for)) = bounds(table.get("cache"), "identities", "keep-for") {
        plans = plans.cache(identities, keep_for);
    }
    if let Some((at_once, deadline)) = bounds(table.get("lookups"), "at-once", "deadline") {
        plans = plans.lookups(at_once, deadline);
    }
    Some(plans.unknown(table.at("unknown").text()?))
}

fn bounds(table: Option<&FileValue<'_>>, count: &str, length: &str) -> Option<(usize, Duration)> {
    let count = table?.at(count).number()?;
    Some((
        usize::try_from(count).unwrap_or(usize::MAX),
        table?.at(length).duration()?,
    ))
}

fn of_permits(table: &FileValue<'_>, context: &Context<'_>) -> Option<LimitTree> {
    let rule = "and permits are taken at once; register an extractor with Registry::key";
    let by = table.get("by");
    let key = match by {
        Some(by) => key::read_at_once(by, context, rule),
        None => Some(Arc::new(Constant) as key::Extractor),
    };
    if let Some(field) = table.get("cost").filter(|cost| cost.number() == Some(0)) {
        field.problem("a request that needs no permit is not limited; write a number from 1");
    }
    if let (None, Some(field)) = (by, table.get("on-missing")) {
        field.problem_as(
            "on-missing has no effect without by, because all requests are counted together; \
             remove it",
        );
    }
    let most = table.at("most").number();
    let limit = most
        .zip(key)
        .map(|(most, key)| limit(name_of(table), InFlight::new(most)).by(key));
    PendingLimit::of_each_kind(limit, table, context).checked(table)
}
