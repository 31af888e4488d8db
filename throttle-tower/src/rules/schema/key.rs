//! Keys: whose budget a request spends.

use serde_json::{Value, json};

use super::patterns;
use super::table::{Definition, Table, any_of, reference};
use super::value::{list_of, text, words};
use crate::client_ip::IpPrefix;
use crate::rules::key::{IPV4_BITS, IPV6_BITS, KINDS, NORMALIZATIONS};
use crate::rules::registry::KEYS;

/// What every limit has.
pub(super) const BY: &str = "Whose budget a request spends: a key, several as one, or a table with client-ip, header \
                             or first-of. \"constant\" is one budget of all requests.";

pub(super) fn definitions() -> Vec<Definition> {
    let tables = KINDS.map(|kind| table(kind).definition());
    let parts = ["key-name", "several-keys"].into_iter().chain(tables.iter().map(|(name, _)| *name));
    let key = any_of(parts.map(reference));
    let mut definitions = vec![
        ("key", key),
        ("key-name", name()),
        ("several-keys", list_of("All parts together are one key. It is missing where a part is.", &reference("key"))),
        networks().definition(),
    ];
    definitions.extend(tables);
    definitions
}

fn name() -> Value {
    let header = "A header's value, as in \"header:x-tenant\". The client chooses it.";
    any_of([words("A key that is built in.", KEYS), text(header, &patterns::header_key()), reference("registered-key")])
}

fn table(kind: &str) -> Table {
    match kind {
        "client-ip" => Table::new("network-key", "The network of the client's address.")
            .required("client-ip", reference("networks")),
        "header" => Table::new("header-key", "The value of a header. The client chooses it.")
            .required("header", reference("header-name"))
            .field("normalize", words("How values are made equal.", NORMALIZATIONS.map(|(word, _)| word))),
        "first-of" => Table::new("first-key", "The first key that is not missing.")
            .required("first-of", list_of("The keys, in their order.", &reference("key"))),
        _ => panic!("{kind} is not described"),
    }
}

fn networks() -> Table {
    let usual = IpPrefix::default();
    let bits = |most: u8, usual: u8| {
        json!({
            "description": "How many bits of the address tell clients apart.",
            "type": "integer",
            "minimum": 1,
            "maximum": most,
            "default": usual,
        })
    };
    Table::new("networks", "How many bits of an address make a network.")
        .field("ipv4", bits(IPV4_BITS, usual.v4()))
        .field("ipv6", bits(IPV6_BITS, usual.v6()))
}
