//! The scripts that decide on the server, their arguments and their replies. Each kind of set has one text, assembled
//! from the parts that it needs.

mod parts;
pub(crate) mod prepared;
pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod server_work;
#[cfg(test)]
mod tests;

use std::fmt::Write;

use parts::{ALL, Kind};
use throttle_core::{AnyCharge, Carry, Policy, PolicyNode, PolicySet};

use crate::link::script::Script;

/// What a set needs.
///
/// Arguments of `decide` and `carry`: as keys one for each request and policy that applies to it; then the time in µs,
/// or nothing for the server's, or `@` and an instant by the server's that has passed; the milliseconds that a key
/// outlives its reset; a header for each policy; and for each request and policy a cost, or nothing where the policy
/// does not apply. The reply is the time, and for each request a flag and the values it was decided on, each behind its
/// length: `A` admitted and charged, `D` refused, `C` not decided because other parameters wrote a value, `W` not
/// decided because a value makes no sense.
///
/// Of `settle` and `settle_carried`: as keys one for each item; time, milliseconds and headers as before; for each item
/// the policy counted from one, the mark's two numbers, what was taken and what it shall have been. The reply is a
/// flag.
pub(crate) struct Scripts {
    pub(crate) decide: Script,
    /// Decides where a value was written under other parameters.
    pub(crate) carry: Script,
    pub(crate) settle: Script,
    pub(crate) settle_carried: Script,
}

impl Scripts {
    pub(crate) fn assemble(set: &PolicySet) -> Self {
        let own: Vec<&Kind> = set.policies().iter().map(|policy| Kind::of(policy.algorithm())).collect();
        let tree = tree(set);
        Self {
            decide: match own.as_slice() {
                [kind] => script_of(&[&tries(&own), &one(&own), &single(kind)]),
                _ if is_plain_all(set) && own.len() <= UNROLLED => {
                    script_of(&[&tries(&own), &one(&own), &several(set, &own, Values::Own, &tree)])
                }
                _ => script_of(&[&tries(&own), &several(set, &own, Values::Own, &tree)]),
            },
            carry: script_of(&[&several(set, &own, Values::Any, &tree)]),
            settle: script_of(&[&tries(&own), &several(set, &own, Values::Own, parts::SETTLE)]),
            settle_carried: script_of(&[&several(set, &own, Values::Any, parts::SETTLE)]),
        }
    }
}

fn script_of(bodies: &[&str]) -> Script {
    Script::new(parts::with_names(bodies))
}

/// Which algorithm wrote a value, and how many bytes come before its numbers.
pub(crate) fn layout(value: &[u8]) -> Option<(&'static str, usize)> {
    let letter = char::from(*value.first()?);
    ALL.iter().find(|kind| kind.letter == letter).map(|kind| (kind.name, kind.header()))
}

/// The first of a value's states: the one that was charged last, without the states of other parameters.
pub(crate) fn first_state(value: &[u8]) -> &[u8] {
    let length = || {
        let (count, rest) = value.split_last()?;
        let trailer = rest.len().checked_sub(24 * (usize::from(*count) + 1))?;
        Some(f64::from_le_bytes(*rest.get(trailer..)?.first_chunk()?) as usize)
    };
    match layout(value).and_then(|(_, header)| value.get(header - 1)) {
        Some(b'1') => length().and_then(|length| value.get(..length)).unwrap_or(value),
        _ => value,
    }
}

/// No limit's state names an instant from here on, in µs: the server accepts no such time to live.
const LATEST: &str = "1e18";

/// Up to this many policies are decided one after the other, without a loop.
const UNROLLED: usize = 8;

fn is_plain_all(set: &PolicySet) -> bool {
    let mut nodes = set.tree().map(|(node, _)| node);
    nodes.next() == Some(PolicyNode::All) && nodes.all(|node| matches!(node, PolicyNode::Policy(_)))
}

/// The text with which each algorithm of a set tries a cost.
fn tries(own: &[&Kind]) -> String {
    let used = ALL.iter().filter(|kind| own.iter().any(|own| own.name == kind.name));
    used.flat_map(|kind| [kind.part("try"), kind.part("tell")]).flatten().collect()
}

/// Decides one request to which every policy applies.
fn one(own: &[&Kind]) -> String {
    let part = |name: &str| parts::part(parts::ONE_REQUEST, name).unwrap_or_default();
    let count = own.len();
    let each = |name: &str| -> String {
        let filled = own.iter().enumerate().map(|(place, kind)| {
            let i = place + 1;
            let told = match kind.part("tell") {
                Some(_) => {
                    format!("value{i} and tell_{}(value{i}, at{i}, now, cost{i}, a{i}, b{i}, c{i}) or ''", kind.name)
                }
                None => format!("value{i} or ''"),
            };
            // The first policy is always tried; each further one only if those before it admit.
            let name = if name == "ask" && i > 1 { "ask_next" } else { name };
            part(name)
                .replace("@misfit@", &kind.misfit(&i.to_string()))
                .replace(
                    "@variant@",
                    &if kind.has_variants { format!(", sub(header{i}, 2, 2)") } else { String::new() },
                )
                .replace("@told@", &told)
                .replace("@try@", &format!("try_{}", kind.name))
                .replace("@format@", kind.format)
                .replace("@header@", &(2 + i).to_string())
                .replace("@cost@", &(2 + count + i).to_string())
                .replace("@before@", &place.to_string())
                .replace("@i@", &i.to_string())
        });
        filled.collect()
    };
    let listed =
        |item: &dyn Fn(usize) -> String, between: &str| (1..=count).map(item).collect::<Vec<_>>().join(between);
    let fits = listed(&|i| format!("fits{i}"), " and ");
    let told = listed(&|i| format!("#told{i}, told{i}"), ", ");
    let writable = listed(&|i| format!("instant{i} < {LATEST}"), " and ");
    let open = part("open").replace("@count@", &count.to_string()).replace("@words@", &(2 + 2 * count).to_string());
    format!(
        "{open}{}if {fits} then\n{}{}if not payload{count} then\nreturn pack('<dc1{lengths}', now, 'D', {told})\nend\n\
         if {writable} then\n{}return pack('<dc1{lengths}', now, 'A', {told})\nend\nend\nend\n",
        each("read"),
        each("told"),
        each("ask"),
        each("write"),
        lengths = "I4c0".repeat(count),
    )
}

/// Several requests about one policy.
fn single(kind: &Kind) -> String {
    let told = match kind.part("tell") {
        Some(_) => format!("value and tell_{}(value, at, now, cost, a, b, c) or ''", kind.name),
        None => "value or ''".to_owned(),
    };
    parts::ONE_POLICY
        .replace("@format@", kind.format)
        .replace("@misfit@", &kind.misfit(""))
        .replace("@told@", &told)
        .replace("@latest@", LATEST)
        .replace("@try@", &format!("try_{}", kind.name))
        .replace("@variant@", if kind.has_variants { "local variant = sub(header, 2, 2)" } else { "" })
        .replace("@with_variant@", if kind.has_variants { ", variant" } else { "" })
}

/// Which values a script can read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Values {
    /// Values written under the set's own parameters.
    Own,
    Any,
}

/// The script of any set; `main` decides or settles.
fn several(set: &PolicySet, own: &[&Kind], values: Values, main: &str) -> String {
    let (carries, settles) = (values == Values::Any, main == parts::SETTLE);
    let mut text = String::new();
    if carries {
        text += &tries(&ALL.iter().collect::<Vec<_>>());
    }
    for kind in ALL.iter().filter(|kind| carries || own.iter().any(|own| own.name == kind.name)) {
        let wanted = [
            ("look", carries || settles),
            ("fresh", carries),
            ("fill", carries && !settles),
            ("over", carries && settles),
            ("settle", settles),
        ];
        text.extend(wanted.iter().filter(|(_, is_wanted)| *is_wanted).filter_map(|(part, _)| kind.part(part)));
    }
    table(&mut text, "formats", own.iter().map(|kind| format!("'{}'", kind.format)));
    table(&mut text, "sizes", own.iter().map(|kind| kind.size.to_string()));
    // A part that an algorithm may not have.
    let optional =
        |part: &str, kind: &Kind| kind.part(part).map_or("false".to_owned(), |_| format!("{part}_{}", kind.name));
    if settles {
        table(&mut text, "settles", own.iter().map(|kind| format!("settle_{}", kind.name)));
    } else {
        table(&mut text, "tells", own.iter().map(|kind| optional("tell", kind)));
    }
    if carries || !settles {
        table(&mut text, "tries", own.iter().map(|kind| format!("try_{}", kind.name)));
    }
    let mut kin = parts::DEFER.to_owned();
    if carries {
        table(&mut text, "looks", own.iter().map(|kind| format!("look_{}", kind.name)));
        let row = |kind: &Kind| {
            let Kind { letter, name, format, size, .. } = kind;
            let steps = if settles {
                format!("settle = settle_{name}")
            } else {
                format!("try = try_{name}, fill = {}", optional("fill", kind))
            };
            let header = kind.header();
            format!(
                "{letter} = {{look = look_{name}, fresh = fresh_{name}, {steps}, format = '{format}', \
                 header = {header}, size = {size}}}"
            )
        };
        table(&mut text, "kinds", ALL.iter().map(row));
        table(&mut text, "rules", set.policies().iter().map(rule));
        table(&mut text, "overs", own.iter().filter(|_| settles).map(|kind| optional("over", kind)));
        let parts = ["read", if settles { "settle" } else { "charge" }];
        kin = parts.into_iter().filter_map(|name| parts::part(parts::KIN, name)).collect();
        kin = kin.replace("@most@", MOST_KIN);
    }
    let cells = parts::CELLS.replace("@count@", &own.len().to_string()).replace("@latest@", LATEST);
    text += &cells.replace("@foreign@", &kin);
    text + &with_kin(main, carries)
}

/// Most states of a key beside the one that was charged last, as in memory.
const MOST_KIN: &str = "7";

/// The rule by which units that other parameters counted count, in Lua.
fn rule(policy: &Policy) -> String {
    match policy.carry() {
        Carry::Keep => "'keep'".to_owned(),
        Carry::Proportional => "'proportional'".to_owned(),
        // There is no other rule today. Under an unknown one, the key would start fresh.
        _ => "'reset'".to_owned(),
    }
}

/// A text with the lines that concern kin only, or without them.
fn with_kin(text: &str, carries: bool) -> String {
    let lines = text.lines().filter(|line| carries || !line.ends_with("-- kin"));
    lines.flat_map(|line| [line.strip_suffix("-- kin").unwrap_or(line), "\n"]).collect()
}

fn table(text: &mut String, name: &str, rows: impl Iterator<Item = String>) {
    let rows: Vec<String> = rows.collect();
    let _ = writeln!(text, "local {name} = {{{}}}", rows.join(", "));
}

/// The Lua code that evaluates a set's tree.
fn tree(set: &PolicySet) -> String {
    let (nodes, last): (Vec<String>, Vec<String>) = set
        .tree()
        .map(|(node, end)| {
            let code = match node {
                PolicyNode::Policy(policy) => policy.cast_signed() + 1,
                PolicyNode::All => 0,
                PolicyNode::Any(AnyCharge::First) => -1,
                PolicyNode::Any(AnyCharge::EveryAdmitting) => -2,
            };
            // Lua counts from one; a range that ends before a place in Rust ends at that number in Lua.
            (code.to_string(), end.to_string())
        })
        .unzip();
    parts::ANY_SET.replace("@nodes@", &nodes.join(", ")).replace("@last@", &last.join(", "))
}
