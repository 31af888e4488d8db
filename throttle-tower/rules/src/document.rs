//! Reads a whole document.

use std::collections::HashSet;
use std::sync::Arc;

use throttle_core::{ConfigError, PolicySet};
use toml::de::{DeTable, DeValue};

use super::bounds;
use super::client_ip::{self, CLIENT_IP};
use super::compose::{COMPOSE, compose};
use super::context::{Context, Defaults};
use super::entry::{self, ENTRIES, Entry, KINDS};
use super::file_value::FileValue;
use super::form::*;
use super::layer::{self, LAYER};
use super::matching::{self, Matcher, WHEN};
use super::options::DEFAULTS;
use super::problem::{Problems, RulesError};
use super::registry::Registry;
use super::value_text::{Fields, field_name, fields_text, value_text};
use throttle_tower::ThrottleBuilder;
use throttle_tower::client_ip::ClientIp;
use throttle_tower::limit::LimitTree;

/// What a document says.
#[derive(Clone)]
pub(super) struct Document {
    pub(super) tree: LimitTree,
    pub(super) client_ip: ClientIp,
    layer: ThrottleBuilder,
    /// Which requests the layer applies to, if the file says so.
    pub(super) when: Option<Arc<Matcher>>,
    pub(super) limits: Vec<Entry>,
    /// What it says outside of limits.
    pub(super) others: Fields,
}

impl Document {
    /// What the file says of the layer, as the builder of one without limits.
    pub(super) fn builder(&self) -> ThrottleBuilder {
        let builder = self.layer.clone();
        match self.when.clone() {
            Some(when) => builder.when(move |parts| when.matches(parts)),
            None => builder,
        }
    }
}

/// The format that this version reads.
pub(super) const VERSION: u64 = 1;

const VERSION_RULE: &str = "this program reads version 1; write version = 1";

pub(super) const ROOT: ValueForm = Table(
    "",
    "Limits on requests, as a file that throttle-tower reads.",
    &[
        One(
            "version",
            "The version of the format.",
            Required(VERSION_RULE),
            Any(&[Number(VERSION, VERSION)], VERSION_RULE),
        ),
        One("client-ip", "", Optional, CLIENT_IP),
        One("defaults", "", Optional, DEFAULTS),
        One("layer", "", Optional, LAYER),
        One(
            "when",
            "Which requests the layer applies to; the others pass untouched.",
            Optional,
            Defined(&WHEN),
        ),
        ENTRIES,
        One("compose", "", Optional, Defined(&COMPOSE)),
    ],
    "",
);

/// # Errors
///
/// If anything is wrong with it: everything that is.
pub(super) fn read(
    file: &Arc<str>,
    text: &str,
    registry: &Registry,
) -> Result<Document, RulesError> {
    let problems = Problems::default();
    if let Err((span, message)) = bounds::check(text) {
        problems.add(span, message);
    } else {
        let (table, mut errors) = DeTable::parse_recoverable(text);
        // The parser reports what it finds in values after all the rest.
        errors.sort_by_key(|error| error.span().map_or(0, |span| span.start));
        // One error on a line is often the cause of the next.
        let mut line_ends = 0;
        for error in errors {
            let span = error.span().unwrap_or(0..0);
            if span.start >= line_ends {
                let newline = text.get(span.start..).and_then(|rest| rest.find('\n'));
                line_ends = newline.map_or(text.len() + 1, |newline| span.start + newline + 1);
                problems.add(
                    Some(span),
                    format!("the file is not TOML: {}", error.message()),
                );
            }
        }
        if !problems.are_there() {
            registry
                .refused
                .iter()
                .for_each(|message| problems.add(None, message.clone()));
            let table = DeValue::Table(table.into_inner());
            if let Some(document) = read_table(&table, &problems, registry)
                && !problems.are_there()
            {
                return Ok(document);
            }
        }
    }
    Err(problems.into_error(file, text))
}

/// Reads a document that is TOML.
fn read_table(value: &DeValue<'_>, problems: &Problems, registry: &Registry) -> Option<Document> {
    refuse_too_many(value, problems)?;
    let root = FileValue::root(value, problems).walk(&ROOT);
    let context = Context {
        registry,
        client_ip: root
            .get("client-ip")
            .and_then(client_ip::read)
            .unwrap_or_else(ClientIp::peer),
        defaults: root
            .get("defaults")
            .map_or_else(Defaults::default, Defaults::read),
    };
    let mut limits = Vec::new();
    let mut trees = Vec::new();
    for kind in KINDS {
        let Some(list) = root.get(kind) else {
            continue;
        };
        list.value.as_array()?;
        for table in &list.children {
            if let Some((entry, tree)) = entry::read(table, kind, &context) {
                limits.push(entry);
                trees.push(tree);
            }
        }
    }
    if KINDS.iter().all(|kind| root.get(kind).is_none()) {
        root.problem_as(
            "there is no limit: write one under [[limit]], or limit = [] if every request is to be \
             admitted",
        );
    }
    report_duplicates(&limits, problems);
    let when = matching::read_layer(&root, registry);
    let tree = compose(root.get("compose"), &limits, trees, problems)?;
    // What only a whole composition can get wrong.
    if !problems.are_there()
        && let Err(error) = tree.policies()
    {
        root.at("compose").problem_as(refused_composition(&error));
    }
    Some(Document {
        tree,
        client_ip: context.client_ip,
        layer: layer::read(root.get("layer")),
        when,
        limits,
        others: value.as_table().map(others)?,
    })
}

/// What a document says outside of limits.
fn others(document: &DeTable<'_>) -> Fields {
    let mut others = Fields::new();
    for (name, value) in document.iter() {
        let name = field_name(name.get_ref());
        match value.get_ref() {
            _ if KINDS.contains(&&*name) => {}
            DeValue::Table(section) if name != "when" => {
                others.extend(
                    fields_text(section)
                        .into_iter()
                        .map(|(field, value)| (format!("{name}.{field}"), value)),
                );
            }
            value => drop(others.insert(name, value_text(value))),
        }
    }
    others
}

fn refused_composition(error: &ConfigError) -> String {
    match (error.field(), error.policy()) {
        ("any", Some(policy)) => format!(
            "compose has the concurrency {policy:?} in an any with limits on rates: permits are \
                counted in this \
             process and rates by the store, so one decision cannot choose between them; put it \
             beside the any, as in \
             [{policy:?}, {{ any = [\"…\", \"…\"] }}]"
        ),
        _ => format!("compose: {error}"),
    }
}

/// Returns `None` if there are so many limits that their problems do not matter.
fn refuse_too_many(document: &DeValue<'_>, problems: &Problems) -> Option<()> {
    let list = |kind: &&str| document.get(*kind)?.get_ref().as_array();
    let entries: Vec<_> = KINDS.iter().filter_map(list).flatten().collect();
    let most = PolicySet::MAX_POLICIES;
    let Some(entry) = entries.get(most) else {
        return Some(());
    };
    let count = entries.len();
    let message = format!("there are {count} limits: a layer decides at most {most}");
    problems.add(Some(entry.span()), message);
    None
}

fn report_duplicates(entries: &[Entry], problems: &Problems) {
    let mut in_order: Vec<&Entry> = entries.iter().collect();
    in_order.sort_by_key(|entry| entry.span.start);
    let mut names = HashSet::new();
    for entry in in_order {
        if !names.insert(&*entry.name) {
            let rule =
                "the name is taken: each tells a limit and its budgets apart; rename one of them";
            problems.add(Some(entry.span.clone()), format!("{}: {rule}", entry.owner));
        }
    }
}
