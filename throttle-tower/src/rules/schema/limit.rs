//! Limits of all kinds: `[[limit]]`, `[[plans]]` and `[[concurrency]]`.

use serde_json::{Value, json};
use throttle_core::Policy;

use super::algorithm::one_algorithm;
use super::key::BY;
use super::table::{Definition, Table, any_of, has, has_as, if_then, reference};
use super::value::{described, flag, list_of, number, with_default, words};
use crate::rules::registry::REFUNDS;

const NAME: &str = "The name of the limit, and of its budgets. Clients read it in headers.";

pub(super) fn definitions() -> Vec<Definition> {
    let refund = ("refund", any_of([words("A refund that is built in.", REFUNDS), reference("registered-refund")]));
    let tables = [limit(), plans(), tier(), cache(), lookups(), concurrency()];
    tables.map(Table::definition).into_iter().chain([refund]).collect()
}

fn limit() -> Table {
    let key = any_of(["key", "registered-key-of-a-future"].map(reference));
    let future = json!({ "properties": { "by": reference("registered-key-of-a-future") } });
    let deadline = described("duration", "How long a key that a future returns may take. Only with such a key.");
    let table = Table::new("limit", "A limit on the rate of requests.")
        .required("name", described("name", NAME))
        .required("by", json!({ "description": BY, "allOf": [key] }))
        .field("key-deadline", with_default(deadline, "1s"))
        .rule(if_then(&has("key-deadline"), &future));
    one_algorithm(with_options(table))
}

/// What limits on rates have in common.
fn with_options(table: Table) -> Table {
    let cost = "How many units a request takes, or a registered cost.";
    let is_settled = has_as("settled-later", &json!({ "const": true }));
    let unit = described("name", "What is counted, as clients read it in headers.");
    let wait = described("duration", "Requests wait up to so long for their turn instead of being refused.");
    table
        .field("match", reference("match"))
        .field("when", reference("when"))
        .field("cost", with_default(units_or_registered(cost, 0), 1))
        .field("unit", with_default(unit, "requests"))
        .field("on-missing", reference("on-missing"))
        .field("on-error", reference("on-error"))
        .field("refund", refund())
        .field("charge-refused", flag("Whether refused requests are charged."))
        .field("settled-later", flag("Whether the handler settles the cost, which is an estimate."))
        .field("wait-up-to", wait)
        .rule(if_then(&is_settled, &has("cost")))
        .rule(if_then(&has_as("cost", &json!({ "const": 0 })), &is_settled))
}

fn units_or_registered(about: &str, least: u64) -> Value {
    json!({ "description": about, "anyOf": [{ "type": "integer", "minimum": least }, reference("registered-cost")] })
}

/// Both together would refund every response.
fn refund() -> Value {
    let has = |refund: &str| json!({ "contains": { "const": refund } });
    let mut several = list_of("Each of them.", &reference("refund"));
    several["not"] = json!({ "allOf": [has("successful"), has("failed")] });
    let mut refund = any_of([reference("refund"), several]);
    refund["description"] = "Which requests are given back their charge. Successful is 2xx and 3xx.".into();
    refund
}

fn plans() -> Table {
    let tiers = json!({
        "description": "The tiers. Their order is that of their numbers.",
        "type": "object",
        "propertyNames": reference("name"),
        "additionalProperties": reference("tier"),
        "minProperties": 1,
        "maxProperties": Policy::MAX_TIERS,
    });
    let unknown = described("name", "The tier of identities that the lookup does not know.");
    let table = Table::new("plans", "A limit that depends on the client's plan.")
        .required("name", described("name", NAME))
        .required("by", described("key", BY))
        .required("tiers", tiers)
        .required("lookup", described("registered-lookup", "A registered lookup of the tier of an identity."))
        .required("unknown", unknown)
        .field("cache", reference("cache"))
        .field("lookups", reference("lookups"))
        .field("unknown-as-missing", flag("Whether unknown identities are requests without a key."))
        .field("key-deadline", json!({ "description": "Only limits can have it.", "not": {} }));
    with_options(table)
}

fn tier() -> Table {
    one_algorithm(Table::new("tier", "The limit of one plan."))
}

fn cache() -> Table {
    let mut identities = number("How many identities are remembered.", 1);
    identities["maximum"] = json!(1 << 24);
    let keep = described("duration", "How long the tier of an identity is remembered.");
    Table::new("cache", "What is remembered of lookups.")
        .required("identities", with_default(identities, 10_000))
        .required("keep-for", with_default(keep, "1m"))
}

fn lookups() -> Table {
    let deadline = described("duration", "How long a lookup may take.");
    Table::new("lookups", "Bounds of lookups.")
        .required("at-once", with_default(number("How many there may be at once.", 1), 256))
        .required("deadline", with_default(deadline, "1s"))
}

fn concurrency() -> Table {
    Table::new("concurrency", "A limit on requests in flight.")
        .required("most", number("How many requests may be in flight.", 1))
        .field("name", with_default(described("name", NAME), "in-flight"))
        .field("by", with_default(described("key", BY), "constant"))
        .field("match", reference("match"))
        .field("when", reference("when"))
        .field(
            "cost",
            with_default(units_or_registered("How many permits a request needs, or a registered cost.", 1), 1),
        )
        .field("on-missing", reference("on-missing"))
}
