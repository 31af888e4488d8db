//! The scripts that decide and settle on the server, their arguments and their replies. Each set
//! has one text of either kind, for all its tiers and for parameters of keys' own.

pub(crate) mod kind;
mod parts;
pub(crate) mod prepared_set;
pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod server_work;
#[cfg(test)]
mod tests;

use kind::{ALL, Kind, Size};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use throttle_core::{AnyCharge, PolicyNode, PolicySet};

use crate::link::script::Script;

/// What a set needs.
///
/// Arguments of `decide`: as keys one for each request and policy that applies to it; then the time
/// in µs, or nothing for the server's, or `@` and an instant by the server's that has passed; the
/// milliseconds that a key outlives the step of its reset; for each policy a header, which names the parameters
/// to decide by; and for each request and policy a cost, or nothing where the policy does not
/// apply. If some request has a reserve, an `r` stands before the costs, and behind those of each
/// request its reserves; then a negative cost is not charged. The reply is the time, and for each
/// request a flag and the values it was decided on, each behind its length: `A` admitted and
/// charged, `D` refused, `W` not decided because a value makes no sense.
///
/// Of `settle`: as keys one for each item; time, milliseconds and headers as before; for each item
/// the policy counted from one, the mark's two numbers, what was taken and what it shall have been.
/// The reply is a flag.
pub(crate) struct Scripts {
    pub(crate) decide: Script,
    pub(crate) settle: Script,
}

impl Scripts {
    /// Sets with the same algorithms and the same tree have the same scripts, which are assembled
    /// once.
    pub(crate) fn of(set: &PolicySet) -> Arc<Self> {
        static KNOWN: Mutex<BTreeMap<String, Arc<Scripts>>> = Mutex::new(BTreeMap::new());
        let first: Vec<&Kind> = set
            .policies()
            .iter()
            .map(|policy| Kind::of(policy.algorithm()))
            .collect();
        let tree = tree(set);
        let shape: String = first
            .iter()
            .map(|kind| kind.letter)
            .chain(tree.chars())
            .collect();
        let mut known = KNOWN.lock();
        if known.len() > MOST_KNOWN {
            known.retain(|_, scripts| Arc::strong_count(scripts) > 1);
        }
        Arc::clone(
            known
                .entry(shape)
                .or_insert_with(|| Arc::new(Self::assemble(set, &first, &tree))),
        )
    }

    /// The usual case is decided by a text for the kinds of algorithms that the policies have in
    /// their first tiers. The general text behind it knows all of them.
    fn assemble(set: &PolicySet, first: &[&Kind], tree: &str) -> Self {
        let is_unrolled =
            first.len() == 1 && !set.has_audited() || is_plain_all(set) && first.len() <= UNROLLED;
        let one_request = if is_unrolled {
            tries(first) + &one(first)
        } else {
            String::new()
        };
        let batch = if let ([kind], false) = (first, set.has_audited()) {
            filled(parts::BATCH, kind, "")
        } else {
            String::new()
        };
        let decide = general(&["try", "tell", "look"], first.len()) + tree;
        let settle = general(SETTLING, first.len()) + parts::SETTLE;
        Self {
            decide: script_of(&[&one_request, REPLY, &batch, &decide]),
            settle: script_of(&[&settle]),
        }
    }
}

/// Sets an exception for one key, or lifts it, or counts a strike. Arguments: the key; time and
/// milliseconds as above, the header of the policy, the bytes of the exception, or nothing, and for
/// a strike the numbers of the ban. The reply is a flag: `A` done, `B` and the bytes of a ban that
/// has begun, `P` the exception is over already, `W` nothing done because the value makes no sense.
pub(crate) fn except() -> &'static Script {
    static SCRIPT: LazyLock<Script> =
        LazyLock::new(|| script_of(&[&(general(SETTLING, 1) + parts::EXCEPT)]));
    &SCRIPT
}

/// Lists which of some keys have an exception, each with the first bytes of its value. The argument
/// is the time.
pub(crate) fn exceptions() -> &'static Script {
    static SCRIPT: LazyLock<Script> = LazyLock::new(|| script_of(&[parts::EXCEPTIONS]));
    &SCRIPT
}

fn script_of(bodies: &[&str]) -> Script {
    let text = parts::without_comments(&[&[parts::TIME], bodies].concat());
    Script::new(text.replace("@latest@", LATEST).replace("@step@", STEP))
}

/// The steps that correct a charge.
const SETTLING: &[&str] = &["try", "look", "over", "latest", "settle"];

/// Any algorithm's steps, and the cells of so many policies.
fn general(steps: &[&str], count: usize) -> String {
    kinds(steps) + &parts::CELLS.replace("@count@", &count.to_string())
}

/// What the texts behind it append to, and how many requests are in it.
const REPLY: &str = "local reply, decided = {pack('<d', now)}, 0\n";

/// No limit's state names an instant from here on, in µs: the server accepts no such time to live.
const LATEST: &str = "1e18";

/// The µs of a step, of which keys are kept until the end. A key is kept longer by at most so much,
/// and one that is asked less often has its time to live renewed each time.
const STEP: &str = "5e6";

/// From so many on, only scripts are kept that sets use.
const MOST_KNOWN: usize = 64;

/// Up to this many policies are decided one after the other, without a loop.
const UNROLLED: usize = 8;

/// Whether all policies must admit, and none is audited.
fn is_plain_all(set: &PolicySet) -> bool {
    let mut nodes = set.tree().map(|(node, _)| node);
    !set.has_audited() && nodes.all(|node| matches!(node, PolicyNode::Policy(_) | PolicyNode::All))
}

/// The text with which each of some algorithms tries a cost.
fn tries(first: &[&Kind]) -> String {
    let used = ALL
        .iter()
        .filter(|kind| first.iter().any(|first| first.name == kind.name));
    used.flat_map(|kind| [kind.part("try"), kind.part("tell")])
        .flatten()
        .collect()
}

/// Decides one request to which every policy applies.
fn one(first: &[&Kind]) -> String {
    let part = |name: &str| parts::part(parts::ONE_REQUEST, name).unwrap_or_default();
    let count = first.len();
    let each = |name: &str| -> String {
        let filled = first.iter().zip(1..).map(|(kind, i)| {
            // The first policy is always tried; each further one only if those before it admit.
            let name = if name == "ask" && i > 1 {
                "ask_next"
            } else {
                name
            };
            filled(part(name), kind, &i.to_string())
                .replace("@header@", &(2 + i).to_string())
                .replace("@cost@", &(2 + count + i).to_string())
                .replace("@before@", &(i - 1).to_string())
        });
        filled.collect()
    };
    let listed = |item: &dyn Fn(usize) -> String, between: &str| {
        (1..=count).map(item).collect::<Vec<_>>().join(between)
    };
    let fits = listed(&|i| format!("fits{i}"), " and ");
    let told = listed(&|i| format!("#told{i}, told{i}"), ", ");
    let writable = listed(&|i| format!("instant{i} < {LATEST}"), " and ");
    let is_of = |i: usize| format!("sub(ARGV[{}], 1, 1) == '{}'", 2 + i, first[i - 1].letter);
    let open = part("open")
        .replace("@count@", &count.to_string())
        .replace("@words@", &(2 + 2 * count).to_string())
        .replace("@kinds@", &listed(&is_of, " and "));
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

/// A text about a policy of one kind, whose variables end in `i`.
fn filled(text: &str, kind: &Kind, i: &str) -> String {
    let told = match kind.part("tell") {
        Some(_) => format!(
            "value{i} and tell_{}(value{i}, at{i}, now, cost{i}, a{i}, b{i}, c{i}) or ''",
            kind.name
        ),
        None => format!("value{i} or ''"),
    };
    let variant = if kind.has_variants {
        format!(", sub(header{i}, 2, 2)")
    } else {
        String::new()
    };
    text.replace("@misfit@", &kind.misfit(i))
        .replace("@told@", &told)
        .replace("@try@", &format!("try_{}", kind.name))
        .replace("@variant@", &variant)
        .replace("@format@", kind.format)
        .replace("@letter@", &kind.letter.to_string())
        .replace("@i@", i)
}

/// The function that returns the steps of an algorithm by its letter. The functions of an algorithm
/// come to be when it is the first to be needed.
fn kinds(steps: &[&str]) -> String {
    let branch = |kind: &Kind| {
        let Kind {
            letter,
            name,
            format,
            ..
        } = kind;
        let size = match kind.size {
            Size::Bytes(size) => size,
            Size::Ring => 1,
            Size::Log => 0,
        };
        let known = || {
            steps
                .iter()
                .filter_map(|step| Some((step, kind.part(step)?)))
        };
        let text: String = known().map(|(_, text)| text).collect();
        let fields: String = known()
            .map(|(step, _)| format!("{step} = {step}_{name}, "))
            .collect();
        let header = kind.header();
        format!(
            "if letter == '{letter}' then\n{text}\
             return {{{fields}format = '{format}', header = {header}, size = {size}}}\nend\n"
        )
    };
    format!(
        "local function kind_of(letter)\n{}end\n",
        ALL.iter().map(branch).collect::<String>()
    )
}

/// The Lua code that evaluates a set's tree.
fn tree(set: &PolicySet) -> String {
    // An audited policy is two nodes: that it is audited, and the policy.
    let is_audited =
        |node| matches!(node, PolicyNode::Policy(policy) if set.policies()[policy].is_audited());
    let audited = |end: usize| {
        set.tree()
            .take(end)
            .filter(|(node, _)| is_audited(*node))
            .count()
    };
    let (mut nodes, mut last) = (Vec::new(), Vec::new());
    for (node, end) in set.tree() {
        // Lua counts from one; a range that ends before an index in Rust ends at that number in Lua.
        let end = (end + audited(end)).to_string();
        if is_audited(node) {
            nodes.push("-3".to_owned());
            last.push(end.clone());
        }
        let code = match node {
            PolicyNode::Policy(policy) => policy.cast_signed() + 1,
            PolicyNode::All => 0,
            PolicyNode::Any(AnyCharge::First) => -1,
            PolicyNode::Any(AnyCharge::EveryAdmitting) => -2,
        };
        nodes.push(code.to_string());
        last.push(end);
    }
    parts::ANY_SET
        .replace("@nodes@", &nodes.join(", "))
        .replace("@last@", &last.join(", "))
}
