//! A rule file as far as a log can decide it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, anyhow};
use http::header::HOST;
use http::request::Parts;
use throttle_rules::{Registry, Rules};
use throttle_tower::extract::from_fn;
use toml::{Table, Value};

use crate::args::LogArguments;
use crate::by::{By, Known};
use crate::entry::{Entry, Fields};
use crate::names::{self, Names, SECTIONS};
use crate::routes::Routes;

/// A condition that never holds: limits that a log cannot decide have it, so that they stay where
/// `compose` names them.
const NEVER: &str = "not-in-the-log";

/// Limits that are ready to decide the requests of a log.
pub struct RuleFile {
    pub name: String,
    pub rules: Rules,
    pub limits: Vec<Limit>,
    pub routes: Routes,
    /// What the file says and a replay leaves out.
    pub notes: Vec<String>,
    /// What the file says there, so that a change of it is noticed.
    left_out: BTreeMap<String, Value>,
    /// The fields of the log that are costs, by their place.
    costs: Vec<usize>,
}

impl RuleFile {
    /// Returns why a log cannot decide a request, if it lacks what a limit needs.
    pub fn undecided(&self, entry: &Entry) -> Option<&'static str> {
        let mut limits = self.limits.iter().filter(|limit| !limit.is_skipped);
        if entry.address.is_none() && limits.any(|limit| limit.by.lacks_address(entry)) {
            return Some(NO_ADDRESS);
        }
        let cost = |place: &usize| entry.fields.get(*place)?.as_deref();
        let mut costs = self.costs.iter().filter_map(cost);
        costs
            .any(|cost| cost.parse::<u64>().is_err())
            .then_some("the cost is no whole number")
    }

    /// Returns what another file says differently and no log decides.
    pub fn undecided_changes<'f>(&'f self, other: &'f Self) -> Vec<&'f str> {
        let names = self.left_out.keys().chain(other.left_out.keys());
        let changed = names.filter(|name| self.left_out.get(*name) != other.left_out.get(*name));
        let changed: BTreeSet<&str> = changed.map(String::as_str).collect();
        changed.into_iter().collect()
    }
}

/// Why a request cannot be decided that has no address.
pub const NO_ADDRESS: &str = "there is no client address, which a limit needs (the first word, \
    or the field of --ip)";

/// One limit, as people see it.
pub struct Limit {
    pub name: String,
    pub by: By,
    /// Whether it decides nothing here.
    pub is_skipped: bool,
}

/// Checks a file. Returns the names that a program must register.
///
/// # Errors
///
/// All problems of the file.
pub fn check(path: &Path) -> anyhow::Result<Names> {
    // A file that cannot be read is a problem that `Rules` reports.
    let names = Names::of_file(&std::fs::read_to_string(path).unwrap_or_default());
    let rules = Rules::from_path(path, names.registry())?;
    let _layer = rules.layer(throttle_tower::MemoryBackend::new())?;
    Ok(names)
}

/// Reads a file for the replay of a log.
///
/// # Errors
///
/// All problems of the file.
pub fn read(path: &Path, log: &LogArguments) -> anyhow::Result<RuleFile> {
    check(path)?;
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(|| format!("{name} cannot be read"))?;
    from_text(&name, &text, log)
}

/// # Errors
///
/// All problems of the text.
pub fn from_text(name: &str, text: &str, log: &LogArguments) -> anyhow::Result<RuleFile> {
    let mut file: Table = text.parse().map_err(|error| anyhow!("{name}: {error}"))?;
    let fields: Vec<String> = log.fields.iter().map(|(name, _)| name.clone()).collect();
    let (mut limits, mut notes) = (Vec::new(), Vec::new());
    let mut left_out = BTreeMap::new();
    let known = Known {
        fields: &fields,
        headers: log.format.headers(),
    };
    let routes = Routes::of_file(&file);
    prepare_layer(&mut file, &mut notes, &mut left_out);
    for section in SECTIONS {
        let tables = file
            .get_mut(section)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten();
        for table in tables.filter_map(Value::as_table_mut) {
            let name = table
                .get("name")
                .and_then(Value::as_str)
                .unwrap_or("in-flight")
                .to_owned();
            let by = table
                .get("by")
                .map_or(By::Constant, |by| By::read(by, &known));
            let why_skipped = undecided(section, table, &by, &fields, log);
            let is_skipped = why_skipped.is_some();
            match why_skipped {
                Some(why) => {
                    notes.push(format!("limit {name:?} is skipped: {why}"));
                    left_out.insert(format!("limit {name:?}"), Value::from(table.clone()));
                    table.insert("when".to_owned(), NEVER.into());
                }
                None => {
                    if let Some(wait) = names::field(table, "wait-up-to") {
                        left_out.insert(format!("`wait-up-to` of {name:?}"), wait.clone());
                        notes.push(format!(
                            "limit {name:?} refuses at once here: a replay does not hold requests"
                        ));
                    }
                }
            }
            let when = table.get("when").filter(|_| !is_skipped);
            if let Some(when) = when.filter(|when| when.to_string().contains("preflight")) {
                left_out.insert(format!("`when` of {name:?}"), when.clone());
                notes.push(format!(
                    "limit {name:?}: a log does not tell which requests are preflights; none \
                        counts as one"
                ));
            }
            map_headers(table, &fields);
            for option in ["wait-up-to", "key-deadline"] {
                table.remove(option);
                table.remove(&option.replace('-', "_"));
            }
            if section != "concurrency" {
                limits.push(Limit {
                    name,
                    by,
                    is_skipped,
                });
            }
        }
    }
    if limits.iter().any(|limit| limit.by == By::Route) || routes.is_needed() {
        notes.extend(log.route.is_none().then(|| {
            "a request's route is the template of this file that its path matches; other routes \
                count as <unmatched>"
                .to_owned()
        }));
    }
    let text = toml::to_string(&file).with_context(|| format!("{name} cannot be written anew"))?;
    let costs = costs(&file, &fields);
    let rules = Rules::from_str(name, &text, registry(&text, &fields, &costs))?;
    Ok(RuleFile {
        name: name.to_owned(),
        rules,
        limits,
        routes,
        notes,
        left_out,
        costs,
    })
}

/// The address in a log is that of the client, and the conditions of the layer are the program's.
fn prepare_layer(
    file: &mut Table,
    notes: &mut Vec<String>,
    left_out: &mut BTreeMap<String, Value>,
) {
    let client_ip = ["client-ip", "client_ip"]
        .into_iter()
        .find_map(|name| file.remove(name));
    let client_ip = client_ip.filter(|section| {
        let source = section.get("source");
        source.is_some_and(|source| source.as_str() != Some("peer"))
    });
    if let Some(client_ip) = client_ip {
        left_out.insert("[client-ip]".to_owned(), client_ip);
        notes.push(
            "the log's address is taken for the client's, whatever [client-ip] says".to_owned(),
        );
    }
    // The replay reads no headers, so the layer need not write any.
    file.insert(
        "layer".to_owned(),
        Table::from_iter([("headers".to_owned(), Value::from("none"))]).into(),
    );
    if let Some(when) = file.remove("when") {
        left_out.insert("the layer's own `when`".to_owned(), when);
        notes.push("the layer's own `when` is taken to hold for all requests".to_owned());
    }
}

/// Why a log cannot decide a limit.
fn undecided(
    section: &str,
    limit: &Table,
    by: &By,
    fields: &[String],
    log: &LogArguments,
) -> Option<String> {
    if section == "concurrency" {
        return Some("a replay does not count requests in flight".to_owned());
    }
    let unknown = Names::of_limit(limit).listed(fields);
    if !unknown.is_empty() {
        return Some(format!(
            "a log does not tell {}; --field can name a field for a key or a cost",
            unknown.join(", ")
        ));
    }
    let is_settled_later = names::field(limit, "settled-later") == Some(&Value::from(true));
    if is_settled_later && !limit.get("cost").is_some_and(Value::is_str) {
        return Some(
            "a log does not tell what is settled later; --field can name it if `cost` is a name"
                .to_owned(),
        );
    }
    if let Some(header) = by.unknown() {
        return Some(format!(
            "the log has no {header:?}; --field can name a field for it"
        ));
    }
    let has_host = log.format.headers().contains(&HOST);
    let matches_hosts = limit
        .get("match")
        .and_then(|matched| matched.get("hosts"))
        .is_some();
    (matches_hosts && !has_host).then(|| "this format has no host".to_owned())
}

/// A header that `--field` reads is a registered key here.
fn map_headers(limit: &mut Table, fields: &[String]) {
    if let Some(by) = limit.get_mut("by") {
        map_header(by, fields);
    }
}

fn map_header(by: &mut Value, fields: &[String]) {
    let place = |name: &str| fields.iter().position(|field| names::is_named(field, name));
    match by {
        Value::String(name) => {
            if let Some(place) = place(name).filter(|_| name.starts_with("header:")) {
                *name = field_name(place);
            }
        }
        Value::Array(parts) => parts.iter_mut().for_each(|part| map_header(part, fields)),
        Value::Table(table) => {
            let header = table
                .get("header")
                .and_then(Value::as_str)
                .map(|name| format!("header:{name}"));
            match header.and_then(|header| place(&header)) {
                Some(place) => *by = field_name(place).into(),
                None => table
                    .iter_mut()
                    .filter(|(name, _)| *name != "header")
                    .for_each(|(_, value)| {
                        if value.is_array() {
                            map_header(value, fields);
                        }
                    }),
            }
        }
        _ => {}
    }
}

/// The name under which a header's field is registered.
fn field_name(place: usize) -> String {
    format!("field-{place}")
}

/// The places of the fields that are costs.
fn costs(file: &Table, fields: &[String]) -> Vec<usize> {
    let is_cost = |name: &str| {
        SECTIONS
            .iter()
            .flat_map(|section| names::limits(file, section))
            .any(|limit| Names::of_limit(limit).has_cost(name))
    };
    let places = fields.iter().enumerate();
    places
        .filter(|(_, name)| is_cost(name))
        .map(|(place, _)| place)
        .collect()
}

/// What the names of a prepared file mean: those of `--field` what the log has, and the rest
/// nothing.
fn registry(text: &str, fields: &[String], costs: &[usize]) -> Registry {
    let meaningless = Names::of_file(text).without(fields, (0..fields.len()).map(field_name));
    let registry = meaningless.registry();
    fields
        .iter()
        .enumerate()
        .fold(registry, |registry, (place, name)| {
            let value =
                move |parts: &Parts| parts.extensions.get::<Fields>()?.0.get(place)?.clone();
            let key = if name.starts_with("header:") {
                field_name(place)
            } else {
                name.clone()
            };
            let registry = registry.key(&key, from_fn(value));
            match costs.contains(&place) {
                // A line without a cost counts as one unit.
                true => registry.cost(name, move |parts| {
                    value(parts).and_then(|cost| cost.parse().ok()).unwrap_or(1)
                }),
                false => registry,
            }
        })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Arguments, Command};

    fn read(text: &str, options: &[&str]) -> RuleFile {
        let arguments = ["replay", "replay", "rules.toml", "access.log"]
            .iter()
            .chain(options);
        let Command::Replay { log, .. } = Arguments::parse_from(arguments).command else {
            unreachable!()
        };
        from_text("throttle.toml", &format!("version = 1\n{text}"), &log).unwrap()
    }

    fn limit(name: &str, rest: &str) -> String {
        format!("[[limit]]\nname = \"{name}\"\ngcra = {{ rate = \"1/second\" }}\n{rest}\n")
    }

    #[test]
    fn limits_that_a_log_cannot_decide_are_skipped_and_named() {
        for (rest, note) in [
            (
                "by = \"api-key\"",
                "a log does not tell key \"api-key\"; --field can name a field for a key or a cost",
            ),
            (
                "by = \"header:x-a\"",
                "the log has no \"header:x-a\"; --field can name a field for it",
            ),
            (
                "by = \"constant\"\nwhen = \"busy\"",
                "a log does not tell condition \"busy\"",
            ),
            (
                "by = \"constant\"\nclasses = \"importance\"\nreserve = { high = 0 }",
                "a log does not tell classes \"importance\"",
            ),
            (
                "by = \"constant\"\ncost = 0\nsettled-later = true",
                "a log does not tell what is settled later",
            ),
            (
                "by = \"constant\"\nmatch = { hosts = [\"a.example\"] }",
                "this format has no host",
            ),
        ] {
            let file = read(&(limit("a", rest) + &limit("b", "by = \"client-ip\"")), &[]);
            assert_eq!(file.notes.len(), 1, "{:?}", file.notes);
            assert!(
                file.notes[0].starts_with(&format!("limit \"a\" is skipped: {note}")),
                "{:?}",
                file.notes
            );
        }
        let file = read(
            "compose = [\"a\", \"in-flight\"]\n[[concurrency]]\nmost = 5\n[[limit]]\nname \
                = \"a\"\nby = \"constant\"\ngcra = { rate = \"1/second\" }\nwait-up-to = \"1s\"",
            &[],
        );
        assert_eq!(file.notes.len(), 2, "{:?}", file.notes);
    }

    #[test]
    fn field_stands_for_a_key_a_header_or_a_cost() {
        let text = limit("a", "by = \"api-key\"\ncost = \"tokens\"")
            + &limit("b", "by = [\"header:X-A\", { header = \"x-b\" }]");
        let options = [
            "--format=json",
            "--field=api-key=.k",
            "--field=tokens=.t",
            "--field=header:x-a=.a",
            "--field=header:x-b=.b",
        ];
        let file = read(&text, &options);
        assert!(file.notes.is_empty(), "{:?}", file.notes);
        assert_eq!(file.limits[1].by, By::All(vec![By::Field(2), By::Field(3)]));
    }

    #[test]
    fn what_a_replay_takes_otherwise_is_said() {
        let text = "when = \"external\"\n[client-ip]\nsource = \"x-forwarded-for\"\ntrusted = \
            [\"10.0.0.0/28\"]\n";
        let rest = "by = \"client-ip\"\nmatch = { routes = [\"/\"] }";
        let file = read(&(text.to_owned() + &limit("a", rest)), &[]);
        assert_eq!(file.notes.len(), 3, "{:?}", file.notes);
    }
}
