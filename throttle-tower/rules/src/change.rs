//! What is different between two files.

use std::collections::BTreeMap;
use std::fmt;

use throttle_core::Policy;

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
    /// The former and the new name of limits that differ in nothing else. What was used does not
    /// count under the new name.
    pub renamed: Vec<(String, String)>,
    /// What is different in limits that stay, and outside of limits.
    pub changed: Vec<ChangedField>,
    /// The names of limits that hold no more than before and whose window is shorter, in some tier.
    /// A key that used as much as the new limit holds, or more, is refused until enough units have
    /// recovered at the former pace: at most the former window. To end that earlier,
    /// [reset](super::Handle::reset) the key.
    pub tightened: Vec<String>,
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
        let is_empty = self.added.is_empty() && self.removed.is_empty() && self.renamed.is_empty();
        is_empty && self.changed.is_empty()
    }

    /// The names of limits under which what was used under the former file does not count: because
    /// they are new, were renamed, have another key, or count requests in flight instead of a rate.
    /// Use counts by the name of a limit and the content of a key, so a name that comes back within
    /// its window finds what it had left.
    pub fn unused(&self) -> impl Iterator<Item = &str> {
        let rekeyed = self
            .changed
            .iter()
            .filter(|changed| ["by", "kind"].contains(&changed.field.as_str()));
        let renamed = self.renamed.iter().map(|(_, name)| name);
        self.added
            .iter()
            .chain(renamed)
            .chain(rekeyed.filter_map(|changed| changed.limit.as_ref()))
            .map(String::as_str)
    }

    /// No change of what is in force.
    pub(super) fn none(revision: u64) -> Self {
        let (added, removed, renamed, changed, tightened) = Default::default();
        Self {
            revision,
            added,
            removed,
            renamed,
            changed,
            tightened,
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
        let mut renamed = Vec::new();
        removed.retain(|name, fields| {
            let Some(new) = added
                .iter()
                .find(|(_, other)| *other == fields)
                .map(|(new, _)| new.clone())
            else {
                return true;
            };
            added.remove(&new);
            renamed.push((name.clone(), new));
            false
        });
        let (added, removed) = (added.into_keys().collect(), removed.into_keys().collect());
        Self {
            added,
            removed,
            renamed,
            changed,
            ..Self::none(revision)
        }
    }
}

/// The names of limits that hold no more than before and whose window is shorter, in some tier.
pub(super) fn tightened(former: &[Policy], now: &[Policy]) -> Vec<String> {
    // Units, and µs until they have recovered from full use.
    let full = |policy: &Policy| {
        let (units, rate) = (policy.algorithm().capacity(), policy.algorithm().rate());
        (
            units,
            u128::from(units) * u128::from(rate.period_micros()) / u128::from(rate.count().max(1)),
        )
    };
    let is_tighter = |former: &Policy, now: &Policy| {
        let (former, now) = (full(former), full(now));
        now.0 <= former.0 && now.1 < former.1
    };
    let is_tightened = |now: &&Policy| {
        former
            .iter()
            .filter(|former| former.policy_name() == now.policy_name())
            .any(|former| {
                if !(former.is_tiered() && now.is_tiered()) {
                    return is_tighter(former, now);
                }
                let tier_was = |name| Some(former.tier(former.tier_named(name)?));
                now.tiers()
                    .any(|(name, now)| tier_was(name).is_some_and(|former| is_tighter(former, now)))
            })
    };
    now.iter()
        .filter(is_tightened)
        .map(|policy| policy.name().to_owned())
        .collect()
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
        for (old, new) in &self.renamed {
            write!(
                f,
                "\nlimit {old:?}: renamed to {new:?}, so that nothing counts as used"
            )?;
        }
        self.changed
            .iter()
            .try_for_each(|changed| write!(f, "\n{changed}"))?;
        let note = "keys that have used it up can be refused for as long as the former window; \
            reset them to end that";
        each(f, &self.tightened, note)
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

#[cfg(test)]
mod tests {
    use throttle_core::{FixedWindow, Rate};

    use super::*;

    fn plain(rate: &str) -> Policy {
        Policy::new("p", FixedWindow::new(rate.parse::<Rate>().unwrap())).unwrap()
    }

    fn tiered<const N: usize>(tiers: [(&str, &str); N]) -> Policy {
        let tiers =
            tiers.map(|(name, rate)| (name, FixedWindow::new(rate.parse::<Rate>().unwrap())));
        Policy::tiered("p", tiers).unwrap()
    }

    #[test]
    fn limit_that_holds_no_more_with_a_shorter_window_is_tightened() {
        let day = plain("100/day");
        for (now, is_tightened) in [
            ("100/hour", true),
            ("50/hour", true),
            ("101/hour", false),
            ("50/day", false),
        ] {
            assert_eq!(
                tightened(std::slice::from_ref(&day), &[plain(now)]),
                vec!["p"; usize::from(is_tightened)],
                "{now}"
            );
        }
    }

    #[test]
    fn tiers_are_compared_by_name_and_the_first_one_with_a_plain_limit() {
        let former = tiered([("pro", "100/day"), ("free", "10/hour")]);
        for (now, is_tightened) in [
            (tiered([("free", "10/hour"), ("pro", "100/day")]), false),
            (tiered([("free", "10/hour"), ("pro", "100/hour")]), true),
            (tiered([("basic", "10/hour")]), false),
            (plain("10/hour"), true),
        ] {
            let expected = vec!["p"; usize::from(is_tightened)];
            assert_eq!(
                tightened(std::slice::from_ref(&former), std::slice::from_ref(&now)),
                expected,
                "{now:?}"
            );
        }
        assert_eq!(tightened(&[plain("100/day")], &[former]), [""; 0]);
    }
}
