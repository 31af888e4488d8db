//! Reads a whole document.

use std::collections::HashSet;
use std::sync::Arc;

use throttle_core::{Backend, ConfigError, PolicySet};
use toml::de::{DeTable, DeValue};

use super::bounds;
use super::candidate::Named;
use super::client_ip;
use super::compose::compose;
use super::context::{Context, Defaults};
use super::entry::{Entry, KINDS};
use super::layer_settings::{LAYER, LayerSettings};
use super::matching::{self, Matcher};
use super::outline::Outline;
use super::problem::{Problems, RulesError};
use super::reader::Section;
use super::registry::Registry;
use super::value_text::{Fields, field_name, fields_text, value_text};
use crate::ThrottleLayer;
use crate::client_ip::ClientIp;
use crate::limit::{Condition, LimitTree};
use crate::throttle::{Options, ResponseOptions};

/// What a document says.
#[derive(Clone)]
pub(super) struct Document {
    pub(super) tree: LimitTree,
    pub(super) client_ip: ClientIp,
    pub(super) settings: LayerSettings,
    /// Which requests the layer applies to, if the file says so.
    pub(super) when: Option<Arc<Matcher>>,
    pub(super) limits: Vec<Entry>,
    pub(super) candidate: Option<Named>,
    /// What it says outside of limits.
    pub(super) others: Fields,
}

impl Document {
    /// Sets what the file says about the layer as a whole.
    pub(super) fn apply<B: Backend>(&self, layer: ThrottleLayer<B>) -> ThrottleLayer<B> {
        layer.adjusted(|options, responses| {
            self.settings
                .replace(&LayerSettings::default(), options, responses);
            options.when = self.layer_condition();
        })
    }

    /// Changes what the `former` file has said about the layer to what this one says. What the
    /// program has set since stays.
    pub(super) fn replace(
        &self,
        former: &Self,
        options: &mut Options,
        responses: &mut ResponseOptions,
    ) {
        self.settings.replace(&former.settings, options, responses);
        if options.when.as_ref().is_none_or(|when| when.is_from_file()) {
            options.when = self.layer_condition();
        }
    }

    fn layer_condition(&self) -> Option<Arc<dyn Condition>> {
        self.when.clone().map(|when| when as _)
    }
}

/// The format that this version reads.
pub(super) const VERSION: u64 = 1;

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
            if let Some(document) = read_table(table.get_ref(), &problems, registry, None)
                && !problems.are_there()
            {
                return Ok(document);
            }
        }
    }
    Err(problems.into_error(file, text))
}

/// Reads a table of a document, or all that one can say.
pub(super) fn read_table<'a>(
    table: &'a DeTable<'a>,
    problems: &'a Problems,
    registry: &Registry,
    outline: Option<&'a Outline<'a>>,
) -> Option<Document> {
    let root = Section::root(table, problems, outline);
    read_version(&root);
    let context = Context {
        registry,
        client_ip: client_ip::read(&root),
        defaults: Defaults::read(&root),
    };
    let settings = root
        .field("layer", "")
        .and_then(|layer| layer.checked(&LAYER));
    let settings = settings.as_ref().map(LayerSettings::read);
    let settings = settings.unwrap_or_default();
    let when = matching::read_layer(&root, registry);
    let candidate = Named::read(&root);
    let entries = read_entries(&root, &context);
    let compose_field = root.field("compose", "");
    let compose_span = compose_field
        .as_ref()
        .map_or(0..0, |field| field.span.clone());
    root.finish();
    let (limits, trees): (Vec<_>, _) = entries?.into_iter().unzip();
    report_duplicates(&limits, problems);
    let tree = compose(compose_field, &limits, trees, problems)?;
    // What only a whole composition can get wrong.
    if !problems.are_there()
        && let Err(error) = tree.clone().compile()
    {
        problems.add(Some(compose_span), refused_composition(&error));
    }
    Some(Document {
        tree,
        client_ip: context.client_ip,
        settings,
        when,
        limits,
        candidate,
        others: others(table),
    })
}

/// What a document says outside of limits.
fn others(document: &DeTable<'_>) -> Fields {
    let mut others = Fields::new();
    for (name, value) in document.iter() {
        let name = field_name(name.get_ref());
        match value.get_ref() {
            _ if KINDS.iter().any(|kind| kind.field == name) => {}
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

fn read_version(root: &Section<'_>) {
    let rule = format!("this program reads version {VERSION}; write version = {VERSION}");
    if let Some(field) = root.required("version", "The version of the format.", &rule)
        && field.as_number() != Some(VERSION)
    {
        field.problem(rule);
    }
}

fn read_entries(
    root: &Section<'_>,
    context: &Context<'_>,
) -> Option<Vec<(Entry, Option<LimitTree>)>> {
    let mut fields = Vec::new();
    let mut is_said = false;
    for kind in &KINDS {
        let name = kind.field;
        let Some(field) = root.field(name, kind.all) else {
            continue;
        };
        is_said = true;
        let list = field.list(&format!(
            "write each as a table of its own, under [[{name}]]"
        ))?;
        fields.extend(
            list.into_iter()
                .enumerate()
                .map(|(place, field)| (kind, place + 1, field)),
        );
    }
    if !is_said {
        root.problem(
            "there is no limit: write one under [[limit]], or limit = [] if every \
            request is to be admitted",
        );
    }
    let most = PolicySet::MAX_POLICIES;
    if let Some((_, _, field)) = fields.get(most) {
        field.problem_as(format_args!(
            "there are {} limits: a layer decides at most {most}",
            fields.len()
        ));
        return None;
    }
    Some(
        fields
            .iter()
            .filter_map(|(kind, number, field)| kind.read(field, *number, context))
            .collect(),
    )
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
