//! The scripts that decide on the server: one text for each kind of set, linked of the parts that it needs.

mod parts;
#[cfg(test)]
mod tests;

use std::fmt::Write;

use parts::{ALL, Kind};
use throttle_core::{AnyCharge, LimitSet, TreeNode};

/// A script and the name that a server knows it by.
pub(crate) struct Script {
    source: String,
    sha: String,
}

impl Script {
    fn new(body: &str) -> Self {
        let source = parts::with_names(body);
        let sha = sha1_smol::Sha1::from(source.as_bytes()).digest().to_string();
        Self { source, sha }
    }

    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// SHA-1 of the source, in hexadecimal.
    pub(crate) fn sha(&self) -> &str {
        &self.sha
    }
}

/// What a set needs.
///
/// Arguments of `decide` and `carry`: as keys one for each request and policy that applies to it; then the time in µs, or
/// nothing for the server's; the milliseconds that a key outlives its reset; a header for each policy; and for each request
/// and policy a cost, or nothing where the policy does not apply. The reply is the time, and for each request a flag and the
/// values it was decided on, each behind its length: `A` admitted and charged, `D` refused, `C` not decided because other
/// parameters wrote a value, `W` not decided because a value makes no sense.
///
/// Of `settle` and `settle_carried`: as keys one for each item; time, milliseconds and headers as before; for each item
/// the policy counted from one, the mark's two numbers, what was taken and what it shall have been. The reply is a flag.
pub(crate) struct Scripts {
    pub(crate) decide: Script,
    /// Decides where other parameters wrote a value.
    pub(crate) carry: Script,
    pub(crate) settle: Script,
    pub(crate) settle_carried: Script,
}

impl Scripts {
    pub(crate) fn link(set: &LimitSet) -> Self {
        let own: Vec<&Kind> = set.policies().iter().map(|policy| Kind::of(policy.algorithm())).collect();
        Self {
            decide: Script::new(&match (own.as_slice(), set.policies()) {
                ([kind], [_]) => single(kind),
                _ => several(&own, false, &tree(set)),
            }),
            carry: Script::new(&several(&own, true, &tree(set))),
            settle: Script::new(&several(&own, false, parts::SETTLE)),
            settle_carried: Script::new(&several(&own, true, parts::SETTLE)),
        }
    }
}

/// The script of a set that is one policy: no tables, no tree.
fn single(kind: &Kind) -> String {
    let tells = kind.part("tell").is_some();
    let told = if tells {
        format!("value and tell_{}(value, at, now, cost, a, b, c) or ''", kind.name)
    } else {
        "value or ''".to_owned()
    };
    let body = parts::SINGLE
        .replace("@format@", kind.format)
        .replace("@misfit@", kind.misfit)
        .replace("@told@", &told)
        .replace("@try@", &format!("try_{}", kind.name))
        .replace("@variant@", if kind.has_variants { "local variant = sub(header, 2, 2)" } else { "" })
        .replace("@with_variant@", if kind.has_variants { ", variant" } else { "" });
    let mut text = String::new();
    for part in ["try", "tell"] {
        text.extend(kind.part(part));
    }
    text + &body
}

/// The script of any set; `main` decides or settles.
fn several(own: &[&Kind], carries: bool, main: &str) -> String {
    let settles = main.contains("settles[");
    let mut text = String::new();
    let linked: Vec<&Kind> = if carries {
        ALL.iter().collect()
    } else {
        ALL.iter().filter(|kind| own.iter().any(|own| own.name == kind.name)).collect()
    };
    for kind in &linked {
        for part in ["try", "tell", "look", "settle"] {
            let needed = match part {
                "look" => carries || settles,
                "settle" => settles,
                "tell" => !settles,
                _ => true,
            };
            text.extend(kind.part(part).filter(|_| needed));
        }
    }
    table(&mut text, "formats", own.iter().map(|kind| format!("'{}'", kind.format)));
    table(&mut text, "sizes", own.iter().map(|kind| kind.size.to_string()));
    table(&mut text, "tries", own.iter().map(|kind| format!("try_{}", kind.name)));
    if settles {
        table(&mut text, "settles", own.iter().map(|kind| format!("settle_{}", kind.name)));
    } else {
        let tell = |kind: &&Kind| kind.part("tell").map_or("false".to_owned(), |_| format!("tell_{}", kind.name));
        table(&mut text, "tells", own.iter().map(tell));
    }
    if carries {
        table(&mut text, "looks", own.iter().map(|kind| format!("look_{}", kind.name)));
        let row = |kind: &Kind| {
            let Kind { letter, name, format, size, .. } = kind;
            let header = kind.header();
            format!("{letter} = {{look = look_{name}, format = '{format}', header = {header}, size = {size}}}")
        };
        table(&mut text, "kinds", ALL.iter().map(row));
    }
    let foreign = if carries { parts::CARRY } else { parts::DEFER };
    text += &parts::CELLS.replace("@count@", &own.len().to_string()).replace("@foreign@", foreign);
    text + main
}

fn table(text: &mut String, name: &str, rows: impl Iterator<Item = String>) {
    let rows: Vec<String> = rows.collect();
    let _ = writeln!(text, "local {name} = {{{}}}", rows.join(", "));
}

/// The evaluator of a set's tree.
fn tree(set: &LimitSet) -> String {
    let (nodes, last): (Vec<String>, Vec<String>) = set
        .tree()
        .map(|(node, end)| {
            let code = match node {
                TreeNode::Policy(policy) => policy.cast_signed() + 1,
                TreeNode::All => 0,
                TreeNode::Any(AnyCharge::First) => -1,
                TreeNode::Any(AnyCharge::EveryAdmitting) => -2,
            };
            // Lua counts from one; what ends before a place there is last at it here.
            (code.to_string(), end.to_string())
        })
        .unzip();
    parts::SET.replace("@nodes@", &nodes.join(", ")).replace("@last@", &last.join(", "))
}
