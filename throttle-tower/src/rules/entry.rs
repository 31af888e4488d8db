//! One limit of a file, of any kind: `[[limit]]`, `[[plans]]` or `[[concurrency]]`.

use std::ops::Range;
use std::sync::Arc;

use throttle_core::PolicyName;

use super::algorithm;
use super::key;
use super::matching::{self, Matcher};
use super::options::{self, Context, Cost, Options};
use super::reader::{Field, Section};
use super::registry::{KeySource, Lookup, unknown};
use super::values;
use crate::limit::{Concurrency, Limit, LimitTree, limit};
use crate::plans::{Plans, plans};

/// A limit, and where it stands.
pub(super) struct Entry {
    /// What messages call it: `limit "per-ip"`.
    pub(super) owner: String,
    pub(super) name: String,
    pub(super) span: Range<usize>,
    /// Whether it is decided by a backend, and says nothing about one that fails.
    pub(super) needs_on_error: bool,
    pub(super) matcher: Arc<Matcher>,
    pub(super) by: String,
    /// `None` after a problem.
    pub(super) tree: Option<LimitTree>,
}

impl Entry {
    /// What is needed of it once the limits are composed.
    pub(super) fn placed(&self) -> Placed {
        let Self { owner, name, span, needs_on_error, matcher, by, .. } = self;
        let (owner, name, span) = (owner.clone(), name.clone(), span.clone());
        let (matcher, by) = (Arc::clone(matcher), by.clone());
        Placed { owner, name, span, needs_on_error: *needs_on_error, matcher, by }
    }
}

/// A limit of a file without its settings, for what is asked later.
#[derive(Clone)]
pub(super) struct Placed {
    pub(super) owner: String,
    pub(super) name: String,
    pub(super) span: Range<usize>,
    pub(super) needs_on_error: bool,
    /// Which requests it applies to.
    pub(super) matcher: Arc<Matcher>,
    /// What its key is made of, as the file says.
    pub(super) by: String,
}

#[derive(Clone, Copy)]
pub(super) enum Kind {
    Limit,
    Plans,
    Concurrency,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Limit, Self::Plans, Self::Concurrency];

    /// The field of the document.
    pub(super) fn field(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Plans => "plans",
            Self::Concurrency => "concurrency",
        }
    }

    /// Reads one element of the field's list; `None` if it is no table or has no name.
    pub(super) fn read(self, element: &Field<'_>, number: usize, context: &Context<'_>) -> Option<Entry> {
        let kind = self.field();
        let rule = format!("it must be a table: [[{kind}]]");
        let section = element.named_section(format!("{kind} {number}"), &rule)?;
        let (name, span) = match section.field("name") {
            Some(field) => (field.expect_text("it must be text, as in \"per-ip\"").map(str::to_owned), field.span),
            None if matches!(self, Self::Concurrency) => (Some("in-flight".to_owned()), section.span()),
            None => {
                section.problem("name is missing: write one, which clients see in headers, as in name = \"per-ip\"");
                (None, section.span())
            }
        };
        // A wrong name is no help in finding the limit, and may be long.
        let (section, owner) = match name.as_deref().map(PolicyName::new) {
            Some(Ok(name)) => {
                let owner = format!("{kind} {:?}", name.as_str());
                (section.called(owner.clone()), owner)
            }
            Some(Err(error)) => {
                options::report(&section, &error);
                (section, format!("{kind} {number}"))
            }
            None => (section, format!("{kind} {number}")),
        };
        let shown = name.clone().unwrap_or_else(|| "unnamed".to_owned());
        let Read { tree, needs_on_error, matcher } = match self {
            Self::Limit => read_limit(&section, &shown, context),
            Self::Plans => read_plans(&section, &shown, context),
            Self::Concurrency => read_concurrency(&section, &shown, context),
        };
        let by = section.field_if_written("by").map_or_else(|| "\"constant\"".to_owned(), |by| by.as_toml());
        section.finish();
        name.map(|name| Entry { owner, name, span, needs_on_error, matcher, by, tree })
    }
}

struct Read {
    tree: Option<LimitTree>,
    needs_on_error: bool,
    matcher: Arc<Matcher>,
}

fn read_limit(section: &Section<'_>, name: &str, context: &Context<'_>) -> Read {
    let algorithm = algorithm::read(section);
    let key = key::required(section, &context.client_ip, context.registry);
    let options = Options::read(section, context);
    options::refuse_idle_missing_rule(section);
    if let Some(KeySource::Extractor(_)) = &key {
        refuse_key_deadline(section);
    }
    let (needs_on_error, matcher) = (options.on_error.is_none(), Arc::clone(&options.matcher));
    let built = algorithm.zip(key).map(|(algorithm, key)| {
        let limit = limit(name, algorithm);
        options.apply(match key {
            KeySource::Extractor(key) => limit.by(key),
            KeySource::Future(key) => limit.by_async(move |parts| key(parts)),
        })
    });
    Read { tree: built.and_then(|limit| checked(section, limit)), needs_on_error, matcher }
}

/// A deadline that nothing has to meet would look as if it protected from something.
fn refuse_key_deadline(section: &Section<'_>) {
    if let Some(field) = section.field_if_written("key-deadline") {
        field.problem("it is for a key that a future returns, and this key is known at once; remove it");
    }
}

/// A problem if a setting is wrong in itself or with another one.
fn checked(section: &Section<'_>, limit: Limit) -> Option<LimitTree> {
    match limit.policy() {
        Ok(_) => Some(limit.into()),
        // The name was checked before, whatever else is wrong.
        Err(error) if error.field() == "policy name" => None,
        Err(error) => {
            options::report(section, &error);
            None
        }
    }
}

fn read_plans(section: &Section<'_>, name: &str, context: &Context<'_>) -> Read {
    let tiers = tiers(section);
    let key = plain_key(section, context, "the identity of plans must be known at once");
    let lookup = lookup(section, context);
    let unknown = section.required("unknown", "name the tier of identities that the lookup does not know");
    let unknown = unknown.and_then(|field| field.expect_text("it must be the name of a tier"));
    let settings = PlansSettings::read(section);
    let options = Options::read(section, context);
    // An unknown identity may count as a missing one.
    if !settings.unknown_as_missing {
        options::refuse_idle_missing_rule(section);
    }
    refuse_key_deadline(section);
    let (needs_on_error, matcher) = (options.on_error.is_none(), Arc::clone(&options.matcher));
    let built = (|| {
        let (tiers, key, lookup, unknown) = (tiers?, key?, lookup?, unknown?);
        let plans = plans(name, tiers).by(key).lookup(move |identity| lookup(identity)).unknown(unknown);
        Some(options.apply(settings.apply(plans).into_limit()))
    })();
    Read { tree: built.and_then(|limit| checked(section, limit)), needs_on_error, matcher }
}

/// The tiers in the file's order, which is that of their numbers.
fn tiers(section: &Section<'_>) -> Option<Vec<(String, throttle_core::Algorithm)>> {
    let rule = "write a table of tiers, as in { free = { gcra = { rate = \"60/minute\" } } }";
    let table = section.required("tiers", rule)?.section(rule)?;
    let tiers: Vec<_> = table
        .all()
        .into_iter()
        .map(|(name, field)| {
            let tier =
                field.section("it must be a table with an algorithm, as in { gcra = { rate = \"60/minute\" } }")?;
            let algorithm = algorithm::read(&tier);
            tier.finish();
            Some((name.to_owned(), algorithm?))
        })
        .collect();
    tiers.into_iter().collect()
}

fn lookup(section: &Section<'_>, context: &Context<'_>) -> Option<Lookup> {
    let remedy = "name a lookup that the program has registered with Registry::lookup";
    let field = section.required("lookup", remedy)?;
    let name = field.expect_text(remedy)?;
    let lookup = context.registry.lookups.get(name).cloned();
    if lookup.is_none() {
        let known: Vec<&str> = context.registry.lookups.keys().map(String::as_str).collect();
        field.problem(unknown("lookup", name, &known, "lookup"));
    }
    lookup
}

/// A key that no future returns.
fn plain_key(section: &Section<'_>, context: &Context<'_>, rule: &str) -> Option<Arc<dyn crate::KeyExtractor>> {
    match key::required(section, &context.client_ip, context.registry)? {
        KeySource::Extractor(key) => Some(key),
        KeySource::Future(_) => {
            section.field("by")?.problem(format_args!("a future returns this key, and {rule}"));
            None
        }
    }
}

/// The settings that only plans have.
#[derive(Debug, PartialEq, Eq)]
struct PlansSettings {
    cache: Option<(usize, std::time::Duration)>,
    lookups: Option<(usize, std::time::Duration)>,
    unknown_as_missing: bool,
}

impl PlansSettings {
    fn read(section: &Section<'_>) -> Self {
        let cache = bounds(section, "cache", ["identities", "keep-for"]);
        let lookups = bounds(section, "lookups", ["at-once", "deadline"]);
        let as_missing = section.field("unknown-as-missing").as_ref().and_then(Field::boolean);
        Self { cache, lookups, unknown_as_missing: as_missing.unwrap_or(false) }
    }

    fn apply(self, plans: Plans) -> Plans {
        let plans = if self.unknown_as_missing { plans.unknown_as_missing() } else { plans };
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
    name: &'static str,
    [number, duration]: [&'static str; 2],
) -> Option<(usize, std::time::Duration)> {
    let rule = format!("it must be a table, as in {{ {number} = 100, {duration} = \"1s\" }}");
    let table = section.field(name)?.section(&rule)?;
    let count = table.required(number, "write a whole number from 1").and_then(|field| field.number(1, u64::MAX));
    let length = table.required(duration, "write a duration, as in \"1s\"").as_ref().and_then(values::duration);
    table.finish();
    Some((usize::try_from(count?).unwrap_or(usize::MAX), length?))
}

fn read_concurrency(section: &Section<'_>, name: &str, context: &Context<'_>) -> Read {
    let most = section.required("most", "write how many requests may be in flight, as in most = 200");
    let most = most.and_then(|field| field.number(1, u64::MAX));
    let rule = "permits are taken at once; register an extractor with Registry::key";
    let key = section.field("by").map(|_| plain_key(section, context, rule));
    let cost = options::cost(section, context.registry);
    check_permits(section, most, cost.as_ref());
    let matcher = Arc::new(matching::read(section, context.registry));
    let on_missing = options::missing_rule(section, context);
    options::refuse_idle_missing_rule(section);
    if let (None, Some(field)) = (section.field_if_written("by"), section.field_if_written("on-missing")) {
        field.problem_as("on-missing has no effect without by, because all requests are counted together; remove it");
    }
    let tree = (|| {
        let mut limit = Concurrency::new(most?).name(name);
        if let Some(key) = key {
            limit = limit.by(key?);
        }
        limit = match cost {
            None => limit,
            Some(Cost::Units(units)) => limit.cost(units),
            Some(Cost::Of(cost)) => limit.cost(move |parts: &http::request::Parts| cost(parts)),
        };
        if !matcher.is_empty() {
            let matcher = Arc::clone(&matcher);
            limit = if matcher.uses_route() { limit.for_some_routes() } else { limit };
            limit = limit.when(move |parts| matcher.matches(parts));
        }
        Some(on_missing.map_or(limit.clone(), |rule| limit.on_missing(rule)).into())
    })();
    Read { tree, needs_on_error: false, matcher }
}

/// A number of permits that no request needs, or that no request is given, is a mistake.
fn check_permits(section: &Section<'_>, most: Option<u64>, cost: Option<&Cost>) {
    let (Some(field), Some(Cost::Units(cost))) = (section.field_if_written("cost"), cost) else { return };
    match most {
        _ if *cost == 0 => field.problem("a request that needs no permit is not limited; write a number from 1"),
        Some(most) if *cost > most => {
            field.problem(format_args!("every request would be refused, because most is {most}; write at most {most}"));
        }
        _ => {}
    }
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
        assert_eq!(read_text(text, PlansSettings::read), (settings, String::new()));
        let usual = PlansSettings { cache: None, lookups: None, unknown_as_missing: false };
        assert_eq!(read_text("", PlansSettings::read), (usual, String::new()));
    }
}
