//! What must hold between the fields of a table, and the bounds of lists.

use serde_json::{Value, json};
use throttle_core::PolicySet;

use super::patterns;
use super::table::{any_of, has, has_as, has_one_of, if_then, not, reference};
use super::words;
use crate::client_ip::{ALONE, LISTS};
use crate::compose::MAX_WAYS;
use crate::document::VERSION;
use crate::entry::KINDS;

pub(super) fn with_rules(name: &str, mut table: Value) -> Value {
    let rules = match name {
        "" => document(&mut table["properties"]),
        "limit" => {
            let future = json!({ "properties": { "by": reference("registered-key-of-a-future") } });
            options()
                .into_iter()
                .chain([if_then(&has("key-deadline"), &future)])
                .collect()
        }
        "plans" => {
            table["properties"]["key-deadline"] =
                json!({ "description": "Only limits can have it.", "not": {} });
            options()
        }
        "concurrency" => {
            table["properties"]["cost"]["anyOf"][1]["minimum"] = 1.into();
            classes().into()
        }
        "cache" => {
            let identities = &mut table["properties"]["identities"];
            (identities["default"], identities["maximum"]) = (10_000.into(), (1 << 24).into());
            table["properties"]["keep-for"]["default"] = "1m".into();
            vec![]
        }
        "lookups" => {
            table["properties"]["at-once"]["default"] = 256.into();
            table["properties"]["deadline"]["default"] = "1s".into();
            vec![]
        }
        "sliding-window" => {
            table["properties"]["buckets"]["maximum"] = 1024.into();
            vec![]
        }
        "client-ip" => client_ip(),
        "key-table" => vec![if_then(&has("normalize"), &has("header"))],
        "composition" => {
            table["properties"]["any"]["maxItems"] = json!(MAX_WAYS);
            table["properties"]["charge"]["default"] = "first".into();
            vec![if_then(&has("charge"), &has("any"))]
        }
        "match" => {
            table["minProperties"] = 1.into();
            vec![]
        }
        _ => vec![],
    };
    if !rules.is_empty() {
        let former = table["allOf"].as_array().cloned().unwrap_or_default();
        table["allOf"] = json!([former, rules].concat());
    }
    table
}

fn document(fields: &mut Value) -> Vec<Value> {
    fields["version"] = json!({ "description": "The version of the format.", "enum": [VERSION] });
    for kind in KINDS {
        let list = &mut fields[kind];
        // Two elements that are the same would have the same name.
        (list["minItems"], list["maxItems"]) = (0.into(), json!(PolicySet::MAX_POLICIES));
    }
    // Of several, at most one can do without a name.
    fields["concurrency"]["if"] = json!({ "minItems": 2 });
    fields["concurrency"]["then"] = json!({ "contains": { "required": ["name"] } });
    vec![any_of(KINDS.map(|kind| json!({ "required": [kind] })))]
}

/// Of what limits on rates have in common.
fn options() -> Vec<Value> {
    let is_settled = has_as("settled-later", &json!({ "const": true }));
    let has_refund = |refund: &str| json!({ "contains": { "const": refund } });
    let every =
        json!({ "type": "array", "allOf": [has_refund("successful"), has_refund("failed")] });
    let rules = [
        if_then(&is_settled, &has("cost")),
        if_then(&has_as("cost", &json!({ "const": 0 })), &is_settled),
        not(&has_as("refund", &every)),
    ];
    rules.into_iter().chain(classes()).collect()
}

fn classes() -> [Value; 2] {
    [
        if_then(&has("classes"), &has("reserve")),
        if_then(&has("reserve"), &has("classes")),
    ]
}

/// Which fields a source needs, and which have no meaning with it.
fn client_ip() -> Vec<Value> {
    let [alone, list] = [words(&ALONE), words(&LISTS)].map(|words| has_as("source", &words));
    let header = has_as("source", &json!({ "type": "object" }));
    let broad = json!({ "pattern": format!("^(?:{})$", patterns::everyone()) });
    let narrow = json!({ "properties": { "trusted": { "items": not(&broad) } } });
    vec![
        if_then(
            &alone,
            &not(&any_of(["trusted", "hops", "trust-everyone"].map(has))),
        ),
        if_then(&list, &has_one_of(&["trusted", "hops"])),
        if_then(
            &header,
            &json!({ "allOf": [has("trusted"), not(&has("hops"))] }),
        ),
        if_then(&has("hops"), &not(&has("trust-everyone"))),
        any_of([has_as("trust-everyone", &json!({ "const": true })), narrow]),
    ]
}
