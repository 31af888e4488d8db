//! What a file refers to by name, and only a program can say.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, StatusCode};
use throttle_core::Key;

use super::file_value::FileValue;
use super::form::Word;
use super::names::{did_you_mean, listed};
use throttle_tower::client_ip::ClientIp;
use throttle_tower::extract::{Constant, Host, KeyExtractor, Method, Route};
use throttle_tower::limit::{self, Limit, is_preflight};
use throttle_tower::plans::{IntoTier, LookupFailed, Tier};

/// What rules refer to by name: keys, costs, classes, conditions, lookups of plans, and refunds.
///
/// A file says which limits there are. What a key or a cost *is* stays in the program, and is
/// registered here. A name that is registered twice is a problem of every file. Clones share what
/// is registered, so one registry serves many files.
///
/// ```
/// use std::collections::HashSet;
///
/// use http::request::Parts;
/// use throttle_rules::{Registry, Rules};
/// use throttle_tower::{Header, Route};
///
/// let issued = HashSet::from([b"live_ada".to_vec()]); // every key that exists
/// let registry = Registry::new()
///     .key(
///         "api-key",
///         Header::new("x-api-key").accept(move |key| issued.contains(key)),
///     )
///     .cost("size", |parts: &Parts| {
///         if Route::template(parts) == Some("/export") {
///             20
///         } else {
///             1
///         }
///     })
///     .condition("write", |parts: &Parts| !parts.method.is_safe());
/// let text = r#"
/// version = 1
///
/// [[limit]]
/// name = "writes"
/// gcra = { rate = "100/minute" }
/// by = "api-key"
/// cost = "size"
/// when = "write"
/// "#;
/// assert!(Rules::from_str("throttle.toml", text, registry).is_ok());
/// ```
#[derive(Clone, Default)]
pub struct Registry {
    pub(super) keys: BTreeMap<String, KeySource>,
    pub(super) costs: BTreeMap<String, CostOf>,
    pub(super) classes: BTreeMap<String, ClassOf>,
    pub(super) conditions: BTreeMap<String, Condition>,
    pub(super) lookups: BTreeMap<String, Lookup>,
    pub(super) refunds: BTreeMap<String, Refund>,
    /// What is wrong with the names. It is reported with the problems of a file.
    pub(super) refused: Vec<String>,
}

#[derive(Clone)]
pub(super) enum KeySource {
    Extractor(Arc<dyn KeyExtractor>),
    Future(KeyFuture),
}

type KeyFuture =
    Arc<dyn Fn(&Parts) -> Pin<Box<dyn Future<Output = Option<Key>> + Send>> + Send + Sync>;
pub(super) type CostOf = Arc<dyn Fn(&Parts) -> u64 + Send + Sync>;
/// The class of a request, among those of a limit.
pub(super) type ClassOf = Arc<dyn Fn(&Parts, &[Arc<str>]) -> Option<Arc<str>> + Send + Sync>;
pub(super) type Condition = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;
pub(super) type Refund = Arc<dyn Fn(StatusCode, &HeaderMap) -> bool + Send + Sync>;
/// An identity's tier, `None` for an unknown identity, or a failure.
pub(super) type Lookup =
    Arc<dyn Fn(String) -> Pin<Box<dyn Future<Output = FoundTier> + Send>> + Send + Sync>;
type FoundTier = Result<Option<Tier>, LookupFailed>;

/// What stands before the name of a header in a key that is a text.
pub(super) const HEADER: &str = "header:";

type BuiltInKey = fn(&ClientIp) -> Arc<dyn KeyExtractor>;
type BuiltInRefund = fn(Limit) -> Limit;
type BuiltInCondition = fn(&Parts) -> bool;

/// Names that a file gives a meaning to by itself.
pub(super) const KEYS: [Word<BuiltInKey>; 5] = [
    ("client-ip", |client_ip| Arc::new(client_ip.clone())),
    ("constant", |_| Arc::new(Constant)),
    ("host", |_| Arc::new(Host)),
    ("method", |_| Arc::new(Method)),
    ("route", |_| Arc::new(Route)),
];
pub(super) const REFUNDS: [Word<BuiltInRefund>; 4] = [
    ("successful", |own| own.refund_if(limit::successful)),
    ("failed", |own| own.refund_if(limit::failed)),
    ("server-errors", |own| own.refund_if(limit::server_error)),
    ("aborted", Limit::refund_aborted),
];
pub(super) const CONDITIONS: [Word<BuiltInCondition>; 1] = [("preflight", is_preflight)];

impl Registry {
    /// A registry with nothing but what is built in: the keys `client-ip`, `constant`, `host`,
    /// `method`, `route` and `header:…`, the condition `preflight`, and the refunds `successful`,
    /// `failed`, `server-errors` and `aborted`.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a key, for `by`.
    #[must_use]
    pub fn key(self, name: &str, extractor: impl KeyExtractor) -> Self {
        self.key_source(name, KeySource::Extractor(Arc::new(extractor)))
    }

    /// Registers a key that a future returns, for `by`: see
    /// [`Unkeyed::by_async`](throttle_tower::limit::Unkeyed::by_async). A limit uses it alone, not as
    /// a part of another key.
    #[must_use]
    pub fn key_async<F, Fut, K>(self, name: &str, extractor: F) -> Self
    where
        F: Fn(&Parts) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Option<K>> + Send + 'static,
        K: Into<Key>,
    {
        let key: KeyFuture = Arc::new(move |parts| {
            let key = extractor(parts);
            Box::pin(async move { key.await.map(Into::into) })
        });
        self.key_source(name, KeySource::Future(key))
    }

    /// Registers a cost, for `cost`: a function of the request's head that returns units.
    #[must_use]
    pub fn cost(
        mut self,
        name: &str,
        cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static,
    ) -> Self {
        insert(
            &mut self.costs,
            &mut self.refused,
            "cost",
            name,
            Arc::new(cost),
        );
        self
    }

    /// Registers a function that names the class of a request, for `classes`: see
    /// [`Limit::priority`](throttle_tower::Limit::priority). A client must not choose its class.
    #[must_use]
    pub fn classes<C: AsRef<str>>(
        mut self,
        name: &str,
        class_of_request: impl Fn(&Parts) -> C + Send + Sync + 'static,
    ) -> Self {
        let class_of: ClassOf = Arc::new(move |parts, classes| {
            let name = class_of_request(parts);
            let is_named = |class: &&Arc<str>| ***class == *name.as_ref();
            classes.iter().find(is_named).cloned()
        });
        insert(
            &mut self.classes,
            &mut self.refused,
            "classes",
            name,
            class_of,
        );
        self
    }

    /// Registers a condition, for `when`.
    #[must_use]
    pub fn condition(
        mut self,
        name: &str,
        applies: impl Fn(&Parts) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.refuse_built_in("condition", name, has(&CONDITIONS, name));
        insert(
            &mut self.conditions,
            &mut self.refused,
            "condition",
            name,
            Arc::new(applies),
        );
        self
    }

    /// Registers a lookup of tiers, for the `lookup` of plans: see
    /// [`PlansWithoutLookup::lookup`](throttle_tower::plans::PlansWithoutLookup::lookup). It may return
    /// [parameters of the identity's own](throttle_tower::plans::Tier::own) instead of a tier's name.
    #[must_use]
    pub fn lookup<F, Fut>(mut self, name: &str, lookup: F) -> Self
    where
        F: Fn(String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoTier> + Send + 'static,
    {
        let lookup: Lookup = Arc::new(move |identity| {
            let answer = lookup(identity);
            Box::pin(async move { answer.await.into_tier() })
        });
        insert(&mut self.lookups, &mut self.refused, "lookup", name, lookup);
        self
    }

    /// Registers a rule for `refund`: whether a response with this head gives the charge back.
    #[must_use]
    pub fn refund(
        mut self,
        name: &str,
        refund: impl Fn(StatusCode, &HeaderMap) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.refuse_built_in("refund", name, has(&REFUNDS, name));
        insert(
            &mut self.refunds,
            &mut self.refused,
            "refund",
            name,
            Arc::new(refund),
        );
        self
    }

    fn key_source(mut self, name: &str, key: KeySource) -> Self {
        self.refuse_built_in("key", name, name.starts_with(HEADER) || has(&KEYS, name));
        insert(&mut self.keys, &mut self.refused, "key", name, key);
        self
    }

    fn refuse_built_in(&mut self, what: &str, name: &str, is_built_in: bool) {
        if is_built_in {
            let rule = "has the name of one that is built in: register it under another name";
            self.refused
                .push(format!("the registered {what} {name:?} {rule}"));
        }
    }
}

fn insert<T>(
    registered: &mut BTreeMap<String, T>,
    refused: &mut Vec<String>,
    what: &str,
    name: &str,
    value: T,
) {
    if registered.insert(name.to_owned(), value).is_some() {
        refused.push(format!(
            "the {what} {name:?} is registered twice: register one of them under another name"
        ));
    }
}

fn has<T>(words: &[Word<T>], name: &str) -> bool {
    words.iter().any(|(word, _)| *word == name)
}

/// What the program has registered under a name that a field has, or else a problem.
pub(super) fn registered<T: Clone>(
    field: &FileValue<'_>,
    what: &str,
    registered: &BTreeMap<String, T>,
    built_in: &[&'static str],
) -> Option<T> {
    let name = field.text()?;
    let found = registered.get(name).cloned();
    if found.is_none() {
        let known = registered.keys().map(String::as_str);
        let known: Vec<&str> = built_in.iter().copied().chain(known).collect();
        field.problem(unknown(what, name, &known));
    }
    found
}

/// What to write instead of a name that nothing has.
fn unknown(what: &str, name: &str, known: &[&str]) -> String {
    let near = did_you_mean(name, known.iter().copied());
    let known = listed(known.iter().copied());
    let near = if near.is_empty() {
        format!("; there are {known}")
    } else {
        near
    };
    format!("no {what} has this name{near}; register others with Registry::{what}")
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("keys", &self.keys.keys())
            .field("costs", &self.costs.keys())
            .field("classes", &self.classes.keys())
            .field("conditions", &self.conditions.keys())
            .field("lookups", &self.lookups.keys())
            .field("refunds", &self.refunds.keys())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_names_each_kind_by_itself() {
        let registry = Registry::new()
            .key("k", throttle_tower::Constant)
            .key_async("f", |_| async { Some(1) })
            .cost("c", |_| 1)
            .classes("s", |_| "batch")
            .condition("n", |_| true)
            .lookup("l", |_| async { Some("free") })
            .refund("r", |_, _| true);
        let shown = r#"Registry { keys: ["f", "k"], costs: ["c"], classes: ["s"], conditions: ["n"], lookups: ["l"], refunds: ["r"], .. }"#;
        assert_eq!(format!("{registry:?}"), shown);
    }

    #[test]
    fn unknown_name_is_told_what_is_near_or_what_there_is() {
        let others = "register others with Registry::cost";
        let far = format!("no cost has this name; there are size, tokens; {others}");
        assert_eq!(unknown("cost", "x", &["size", "tokens"]), far);
        assert_eq!(
            unknown("cost", "x", &[]),
            format!("no cost has this name; there are (none); {others}")
        );
        let near = format!("no cost has this name; did you mean \"tokens\"?; {others}");
        assert_eq!(unknown("cost", "token", &["size", "tokens"]), near);
    }
}
