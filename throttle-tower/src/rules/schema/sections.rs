//! The sections that are no limits: `[client-ip]`, `[defaults]`, `[layer]`.

use serde_json::{Value, json};

use super::patterns;
use super::table::{Definition, Table, any_of, has, has_as, has_one_of, if_then, not, reference};
use super::value::{described, flag, list_of, number, text, with_default, words};
use crate::client_ip::MAX_HOPS;
use crate::rules::client_ip::{ALONE, LISTS};
use crate::rules::layer_settings::{DIALECTS, MOST_JITTER};
use crate::throttle::Options;

pub(super) fn definitions() -> Vec<Definition> {
    vec![client_ip().definition(), address_header().definition(), defaults().definition(), layer().definition()]
}

/// Which fields a source needs, and which have no meaning with it.
fn client_ip() -> Table {
    let source_is = |source: &Value| has_as("source", source);
    let alone = source_is(&json!({ "enum": ALONE.map(|(word, _)| word) }));
    let list = source_is(&json!({ "enum": LISTS.map(|(word, _)| word) }));
    let header = source_is(&json!({ "type": "object" }));
    let broad = json!({ "pattern": format!("^(?:{})$", patterns::everyone()) });
    let narrow = json!({ "properties": { "trusted": { "items": not(&broad) } } });
    let hops = json!({
        "description": "Instead of their addresses, how many proxies append to the header.",
        "type": "integer",
        "minimum": 1,
        "maximum": MAX_HOPS,
    });
    Table::new("client-ip", "Where the client's address comes from. Without the section it is the peer's.")
        .required("source", source())
        .field(
            "trusted",
            list_of(
                "The addresses and networks of your proxies.",
                &text("An address or a network.", &patterns::network()),
            ),
        )
        .field("hops", hops)
        .field("nat64", text("The prefix of your network's own NAT64.", &patterns::nat64()))
        .field(
            "trust-everyone",
            flag("Admits networks as broad as 0.0.0.0/0: only where a firewall admits nothing but proxies."),
        )
        .rule(if_then(&alone, &not(&any_of(["trusted", "hops", "trust-everyone"].map(has)))))
        .rule(if_then(&list, &has_one_of(&["trusted", "hops"])))
        .rule(if_then(&header, &json!({ "allOf": [has("trusted"), not(&has("hops"))] })))
        .rule(if_then(&has("hops"), &not(&has("trust-everyone"))))
        .rule(any_of([has_as("trust-everyone", &json!({ "const": true })), narrow]))
}

fn source() -> Value {
    let words = ALONE.map(|(word, _)| word).into_iter().chain(LISTS.map(|(word, _)| word));
    json!({
        "description": "The peer, a header that lists the hops, a platform, or a header that holds the address alone.",
        "anyOf": [{ "enum": words.collect::<Vec<_>>() }, reference("address-header")],
    })
}

fn address_header() -> Table {
    Table::new("address-header", "A header that holds the address alone.")
        .required("header", text("Its name, as in \"cf-connecting-ip\".", patterns::ADDRESS_HEADER))
}

fn defaults() -> Table {
    Table::new("defaults", "Rules for limits without their own.")
        .field("on-error", reference("on-error"))
        .field("on-missing", reference("on-missing"))
}

fn layer() -> Table {
    let jitter = json!({
        "description": "By how many percent Retry-After is lengthened at most, so that not all retry at once.",
        "type": "integer",
        "minimum": 0,
        "maximum": MOST_JITTER,
        "default": 0,
    });
    let waiting = number("How many requests may wait at once for limits with wait-up-to.", 0);
    let hints = described(
        "duration",
        "Refusals tell SDKs in milliseconds when to retry, and not to retry if the wait is longer than this.",
    );
    let unavailable = described("duration", "The Retry-After of a 503. Without it a 503 has none.");
    let grpc = json!({
        "description": "Whether refused gRPC requests get the response that gRPC clients read.",
        "type": "boolean",
        "default": Options::default().grpc_refusals,
    });
    Table::new("layer", "Headers, and bounds of the layer.")
        .field(
            "headers",
            with_default(
                words("Which headers tell clients of the limits.", DIALECTS.map(|(word, _)| word)),
                "draft-11",
            ),
        )
        .field("sdk-hints", hints)
        .field("retry-jitter", jitter)
        .field("max-waiting", with_default(waiting, Options::default().max_waiting))
        .field("grpc-refusals", grpc)
        .field("unavailable-retry-after", unavailable)
        .field("report-in-response", flag("Whether admitted responses carry a report for outer layers."))
}
