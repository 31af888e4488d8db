//! One limit of a file, of any kind: `[[limit]]`, `[[plans]]` or `[[concurrency]]`.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use throttle_core::PolicyName;

use super::algorithm;
use super::context::Context;
use super::key;
use super::matching::Matcher;
use super::options::{self, Cost, Options};
use super::outline::{About, Form, by_default};
use super::reader::{Field, Section};
use super::registry::{KeySource, Lookup, registered};
use super::value_text::Fields;
use super::values;
use crate::extract::Constant;
use crate::limit::{InFlight, Limit, LimitTree, limit};
use crate::plans::{Plans, plans};

/// A limit of a file without its settings: where it stands, and what is asked of it once the limits
/// are composed.
#[derive(Clone)]
pub(super) struct Entry {
    /// What messages call it: `limit "per-ip"`.
    pub(super) owner: String,
    pub(super) name: String,
    pub(super) span: Range<usize>,
    /// Whether it is decided by a backend, and says nothing about one that fails.
    pub(super) needs_on_error: bool,
    /// Which requests it applies to.
    pub(super) matcher: Arc<Matcher>,
    /// What the file says of it, but for its name.
    pub(super) fields: Fields,
}

impl Entry {
    /// What its key is made of, as the file says.
    pub(super) fn by(&self) -> &str {
        self.fields.get("by").map_or("\"constant\"", String::as_str)
    }
}

/// A kind of limits.
pub(super) struct Kind {
    /// The field of the document, what it has, and what one of them is.
    pub(super) field: &'static str,
    pub(super) all: &'static str,
    one: &'static str,
    /// What it is called without a name, if it can do without.
    unnamed: Option<&'static str>,
    read: fn(&Section<'_>, &str, &Context<'_>) -> Read,
}

pub(super) const KINDS: [Kind; 3] = [
    Kind {
        field: "limit",
        all: "Limits on rates. An empty list says that every request is to be admitted.",
        one: "A limit on the rate of requests.",
        unnamed: None,
        read: read_limit,
    },
    Kind {
        field: "plans",
        all: "Limits that depend on the client's plan.",
        one: "A limit that depends on the client's plan.",
        unnamed: None,
        read: read_plans,
    },
    Kind {
        field: "concurrency",
        all: "Limits on requests in flight.",
        one: "A limit on requests in flight.",
        unnamed: Some("in-flight"),
        read: read_concurrency,
    },
];

impl Kind {
    /// Reads one element of the field's list: the limit, and what decides by it, which is `None`
    /// after a problem. Returns `None` if the element is no table or has no name.
    pub(super) fn read(
        &self,
        element: &Field<'_>,
        number: usize,
        context: &Context<'_>,
    ) -> Option<(Entry, Option<LimitTree>)> {
        let kind = self.field;
        let section =
            element.section((kind, self.one), &format!("it must be a table: [[{kind}]]"))?;
        let mut owner = format!("{kind} {number}");
        let mut section = section.called(owner.clone());
        let about = "The name of the limit, and of its budgets. Clients read it in headers.";
        let field = match self.unnamed {
            Some(name) => section.field("name", by_default(name, about)),
            None => section.required(
                "name",
                about,
                "write one, which clients see in headers, as in name = \"per-ip\"",
            ),
        };
        let span = field
            .as_ref()
            .map_or_else(|| section.span(), |field| field.span.clone());
        let name = match field {
            Some(field) => field.expect_text("name", "it must be text, as in \"per-ip\""),
            None => self.unnamed,
        };
        // A wrong name is no help in finding the limit, and may be long.
        match name.map(PolicyName::new) {
            Some(Ok(name)) => {
                owner = format!("{kind} {:?}", name.as_str());
                section = section.called(owner.clone());
            }
            Some(Err(error)) => options::report(&section, &error),
            None => {}
        }
        let Read {
            tree,
            needs_on_error,
            matcher,
        } = (self.read)(&section, name.unwrap_or("unnamed"), context);
        let mut fields = section.fields();
        fields.remove("name");
        // A limit that becomes one of another kind is changed, too.
        if kind != "limit" {
            fields.insert("kind".to_owned(), kind.to_owned());
        }
        section.finish();
        name.map(|name| {
            (
                Entry {
                    owner,
                    name: name.to_owned(),
                    span,
                    needs_on_error,
                    matcher,
                    fields,
                },
                tree,
            )
        })
    }
}

struct Read {
    tree: Option<LimitTree>,
    needs_on_error: bool,
    matcher: Arc<Matcher>,
}

fn read_limit(section: &Section<'_>, name: &str, context: &Context<'_>) -> Read {
    let algorithm = algorithm::read(section);
    let key = key::required(section).and_then(|by| key::read(&by, context));
    let options = Options::read(section, context);
    options::refuse_idle_missing_rule(section);
    if let Some(KeySource::Extractor(_)) = &key {
        refuse_key_deadline(section);
    }
    let limit = algorithm.zip(key).map(|(algorithm, key)| match key {
        KeySource::Extractor(key) => limit(name, algorithm).by(key),
        KeySource::Future(key) => limit(name, algorithm).by_async(move |parts| key(parts)),
    });
    with_options(section, limit, options)
}

fn with_options<F: 'static>(
    section: &Section<'_>,
    limit: Option<Limit<F>>,
    options: Options<F>,
) -> Read {
    let (needs_on_error, matcher) = (!options.has_on_error, Arc::clone(&options.matcher));
    Read {
        tree: limit.and_then(|limit| options.apply(section, limit)),
        needs_on_error,
        matcher,
    }
}

/// A deadline that nothing has to meet would look as if it protected from something.
fn refuse_key_deadline(section: &Section<'_>) {
    if let Some(field) = section.field_if_written("key-deadline") {
        field.problem(
            "it is for a key that a future returns, and this key is known at once; remove it",
        );
    }
}

fn read_plans(section: &Section<'_>, name: &str, context: &Context<'_>) -> Read {
    let tiers = tiers(section);
    let rule = "the identity of plans must be known at once";
    let key = key::required(section).and_then(|by| key::read_at_once(&by, context, rule));
    let remedy = "name a lookup that the program has registered with Registry::lookup";
    let lookup = section.required(
        "lookup",
        "A registered lookup of the tier of an identity.",
        remedy,
    );
    let lookup: Option<Lookup> = lookup.and_then(|field| {
        let name = field.expect_text("registered-lookup", remedy)?;
        registered(
            &field,
            name,
            ("registered-lookup", &context.registry.lookups),
            &[],
        )
    });
    let about = "The tier of identities that the lookup does not know.";
    let unknown = section.required(
        "unknown",
        about,
        "name the tier of identities that the lookup does not know",
    );
    let unknown =
        unknown.and_then(|field| field.expect_text("name", "it must be the name of a tier"));
    let settings = PlansSettings::read(section);
    let options = Options::read(section, context);
    // An unknown identity may count as a missing one.
    if !settings.unknown_as_missing {
        options::refuse_idle_missing_rule(section);
    }
    refuse_key_deadline(section);
    let plans = (|| {
        let (tiers, key, lookup, unknown) = (tiers?, key?, lookup?, unknown?);
        let plans = plans(name, tiers)
            .by(key)
            .lookup(move |identity| lookup(identity));
        Some(settings.apply(plans).unknown(unknown))
    })();
    with_options(section, plans, options)
}

/// The tiers in the file's order, which is that of their numbers.
fn tiers(section: &Section<'_>) -> Option<Vec<(String, throttle_core::Algorithm)>> {
    let rule = "write a table of tiers, as in { free = { gcra = { rate = \"60/minute\" } } }";
    let table = section
        .required("tiers", "", rule)?
        .section(("tiers", ""), rule)?;
    let tiers: Vec<_> = table
        .all()
        .into_iter()
        .map(|(name, field)| {
            let rule =
                "it must be a table with an algorithm, as in { gcra = { rate = \"60/minute\" } }";
            let tier = field.section(("tier", "The limit of one plan."), rule)?;
            let algorithm = algorithm::read(&tier);
            tier.finish();
            Some((name.to_owned(), algorithm?))
        })
        .collect();
    tiers.into_iter().collect()
}

/// The settings that only plans have.
#[derive(Debug, PartialEq, Eq)]
struct PlansSettings {
    cache: Option<(usize, Duration)>,
    lookups: Option<(usize, Duration)>,
    unknown_as_missing: bool,
}

impl PlansSettings {
    fn read(section: &Section<'_>) -> Self {
        let identities = (
            "identities",
            by_default(10_000, "How many identities are remembered."),
            1 << 24,
        );
        let keep_for = (
            "keep-for",
            by_default("1m", "How long the tier of an identity is remembered."),
        );
        let cache = bounds(
            section,
            ("cache", "What is remembered of lookups."),
            identities,
            keep_for,
        );
        let at_once = (
            "at-once",
            by_default(256, "How many there may be at once."),
            u64::MAX,
        );
        let deadline = ("deadline", by_default("1s", "How long a lookup may take."));
        let lookups = bounds(
            section,
            ("lookups", "Bounds of lookups."),
            at_once,
            deadline,
        );
        let about = "Whether unknown identities are requests without a key.";
        let as_missing = section
            .field("unknown-as-missing", about)
            .as_ref()
            .and_then(Field::boolean);
        Self {
            cache,
            lookups,
            unknown_as_missing: as_missing.unwrap_or(false),
        }
    }

    fn apply(self, plans: Plans) -> Plans {
        let plans = if self.unknown_as_missing {
            plans.unknown_as_missing()
        } else {
            plans
        };
        let plans = match self.cache {
            Some((identities, keep_for)) => plans.cache(identities, keep_for),
            None => plans,
        };
        match self.lookups {
            Some((at_once, deadline)) => plans.lookups(at_once, deadline),
            None => plans,
        }
    }
}

/// A table of a number and a duration.
fn bounds(
    section: &Section<'_>,
    definition: (&'static str, &'static str),
    (number, count, most): (&'static str, About, u64),
    (duration, length): (&'static str, About),
) -> Option<(usize, Duration)> {
    let rule = format!("it must be a table, as in {{ {number} = 100, {duration} = \"1s\" }}");
    let table = section
        .field(definition.0, "")?
        .section(definition, &rule)?;
    let count = table
        .required(number, count, "write a whole number from 1")
        .and_then(|field| {
            field.note(Form::Number(1, most));
            field.number(1, u64::MAX)
        });
    let length = table
        .required(duration, length, "write a duration, as in \"1s\"")
        .as_ref()
        .and_then(values::duration);
    table.finish();
    Some((usize::try_from(count?).unwrap_or(usize::MAX), length?))
}

fn read_concurrency(section: &Section<'_>, name: &str, context: &Context<'_>) -> Read {
    let about = "How many requests may be in flight.";
    let most = section.required(
        "most",
        about,
        "write how many requests may be in flight, as in most = 200",
    );
    let most = most.and_then(|field| field.number(1, u64::MAX));
    let rule = "permits are taken at once; register an extractor with Registry::key";
    let by = section.field("by", by_default("constant", key::BY));
    let cost = options::cost(
        section,
        "How many permits a request needs, or a registered cost.",
        1,
        context.registry,
    );
    if let (Some(field), Some(Cost::Units(0))) = (section.field_if_written("cost"), &cost) {
        field.problem("a request that needs no permit is not limited; write a number from 1");
    }
    let mut options = Options::of_each_family(section, cost, context);
    options.has_on_error = true;
    options::refuse_idle_missing_rule(section);
    if let (None, Some(field)) = (
        section.field_if_written("by"),
        section.field_if_written("on-missing"),
    ) {
        field.problem_as(
            "on-missing has no effect without by, because all requests are counted \
            together; remove it",
        );
    }
    let key = match by {
        Some(by) => key::read_at_once(&by, context, rule),
        None => Some(Arc::new(Constant) as key::Extractor),
    };
    let limit = most
        .zip(key)
        .map(|(most, key)| limit(name, InFlight::new(most)).by(key));
    with_options(section, limit, options)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::rules::reader::read_text;

    #[test]
    fn settings_of_plans_are_read_as_they_are_written() {
        let text = "cache = { identities = 500, keep-for = \"10s\" }\n\
                    lookups = { at-once = 20, deadline = \"200ms\" }\nunknown-as-missing = true";
        let settings = PlansSettings {
            cache: Some((500, Duration::from_secs(10))),
            lookups: Some((20, Duration::from_millis(200))),
            unknown_as_missing: true,
        };
        assert_eq!(
            read_text(text, PlansSettings::read),
            (settings, String::new())
        );
        let usual = PlansSettings {
            cache: None,
            lookups: None,
            unknown_as_missing: false,
        };
        assert_eq!(read_text("", PlansSettings::read), (usual, String::new()));
    }
}
