//! What is different between two files.

use std::collections::BTreeMap;
use std::fmt;

use super::document::Document;
use super::value_text::Fields;

/// What a reload has changed.
///
/// Its `Display` says so for a log, a line for each change.
///
/// ```
/// use throttle_tower::MemoryBackend;
/// use throttle_rules::{Registry, Rules};
///
/// let file = |count| {
///     format!(
///         "version = 1\n[[limit]]\nname = \"all\"\nby = \"constant\"\nfixed-window = {{ rate = \"{count}/minute\" }}"
///     )
/// };
/// let (_throttle, handle) =
///     Rules::from_str("throttle.toml", &file(60), Registry::new())?.layer(MemoryBackend::new())?;
/// let change = handle.replace(&file(90))?;
/// assert_eq!(
///     (change.revision, change.changed[0].field.as_str()),
///     (2, "fixed-window")
/// );
/// assert_eq!(
///     change.to_string(),
///     "revision 2\nlimit \"all\": fixed-window was { rate = \"60/minute\" }, is { rate = \"90/minute\" }"
/// );
/// # Ok::<(), throttle_rules::RulesError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// The revision that is in force now: 1 for the first, one more with each change.
    pub revision: u64,
    /// The names of new limits.
    pub added: Vec<String>,
    /// The names of limits that there are no more.
    pub removed: Vec<String>,
    /// What is different in limits that stay, and outside of limits.
    pub changed: Vec<ChangedField>,
}

/// A field that a reload has changed.
///
/// ```
/// use throttle_tower::MemoryBackend;
/// use throttle_rules::{ChangedField, Registry, Rules};
///
/// let rules = Rules::from_str("throttle.toml", "version = 1\nlimit = []", Registry::new())?;
/// let (_throttle, handle) = rules.layer(MemoryBackend::new())?;
/// let change = handle.replace("version = 1\nlimit = []\n[layer]\nheaders = \"none\"")?;
/// let field: &ChangedField = &change.changed[0];
/// assert_eq!(
///     (&field.limit, field.field.as_str(), field.new.as_deref()),
///     (&None, "layer.headers", Some("\"none\""))
/// );
/// # Ok::<(), throttle_rules::RulesError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChangedField {
    /// The name of the limit; `None` for a field outside of limits.
    pub limit: Option<String>,
    /// The field, such as `gcra` or `layer.headers`.
    pub field: String,
    /// Its former value, as TOML; `None` if it was not there.
    pub old: Option<String>,
    /// Its value, as TOML; `None` if it is not there any more.
    pub new: Option<String>,
}

impl Change {
    /// Whether nothing has changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }

    /// The names of limits under which what was used under the former file does not count: because
    /// they are new, have another name or key, or count requests in flight instead of a rate.
    /// Use counts by the name of a limit and the content of a key, so a name that comes back within
    /// its window finds what it had left.
    pub fn unused(&self) -> impl Iterator<Item = &str> {
        let rekeyed = self
            .changed
            .iter()
            .filter(|changed| ["by", "kind"].contains(&changed.field.as_str()));
        self.added
            .iter()
            .chain(rekeyed.filter_map(|changed| changed.limit.as_ref()))
            .map(String::as_str)
    }

    /// No change of what is in force.
    pub(super) fn none(revision: u64) -> Self {
        Self {
            revision,
            added: Vec::new(),
            removed: Vec::new(),
            changed: Vec::new(),
        }
    }

    /// The difference of two files.
    pub(super) fn between(former: &Document, now: &Document, revision: u64) -> Self {
        let limits = |document: &Document| -> BTreeMap<String, Fields> {
            document
                .limits
                .iter()
                .map(|limit| (limit.name.clone(), limit.fields.clone()))
                .collect()
        };
        let (mut removed, mut added) = (limits(former), limits(now));
        let mut changed = differences(None, &former.others, &now.others);
        removed.retain(|name, fields| match added.remove(name) {
            Some(now) => {
                changed.extend(differences(Some(name), fields, &now));
                false
            }
            None => true,
        });
        Self {
            revision,
            added: added.into_keys().collect(),
            removed: removed.into_keys().collect(),
            changed,
        }
    }
}

fn differences(limit: Option<&String>, old: &Fields, new: &Fields) -> Vec<ChangedField> {
    let names = old
        .keys()
        .chain(new.keys().filter(|name| !old.contains_key(*name)));
    let changed = names.filter(|name| old.get(*name) != new.get(*name));
    let field = |name: &String| ChangedField {
        limit: limit.cloned(),
        field: name.clone(),
        old: old.get(name).cloned(),
        new: new.get(name).cloned(),
    };
    changed.map(field).collect()
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "revision {}", self.revision)?;
        if self.is_empty() {
            return f.write_str(": nothing has changed");
        }
        let each = |f: &mut fmt::Formatter<'_>, names: &[String], what: &str| {
            names
                .iter()
                .try_for_each(|name| write!(f, "\nlimit {name:?}: {what}"))
        };
        each(f, &self.added, "new")?;
        each(f, &self.removed, "removed")?;
        self.changed
            .iter()
            .try_for_each(|changed| write!(f, "\n{changed}"))
    }
}

impl fmt::Display for ChangedField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            limit,
            field,
            old,
            new,
        } = self;
        if let Some(name) = limit {
            write!(f, "limit {name:?}: ")?;
        }
        match (old, new) {
            (Some(old), Some(new)) => write!(f, "{field} was {old}, is {new}")?,
            (None, Some(new)) => write!(f, "{field} is {new}, and was not there")?,
            (Some(old), None) => write!(f, "{field} was {old}, and is not there any more")?,
            (None, None) => {}
        }
        match limit {
            Some(_) if field == "by" => f.write_str(", so that nothing counts as used"),
            _ => Ok(()),
        }
    }
}
