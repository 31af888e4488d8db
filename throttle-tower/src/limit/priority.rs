use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use http::request::Parts;
use throttle_core::ConfigError;

/// The classes of a limit, and which of them a request is in: see
/// [`Limit::priority`](crate::Limit::priority).
pub(crate) struct Priority {
    /// The highest first.
    classes: Vec<Class>,
    of: ClassOf,
    /// Whether a request was in none of the classes, and whether the layer has warned of it.
    unknown: AtomicU8,
}

/// A name, and the units that a request of the class leaves free.
pub(crate) type Class = (String, u64);

/// The index of a request's class.
pub(crate) type ClassOf = Arc<dyn Fn(&Parts, &[Class]) -> Option<usize> + Send + Sync>;

/// Finds the class whose name `name_of` returns.
pub(crate) fn class_of<C: AsRef<str>>(
    name_of: impl Fn(&Parts) -> C + Send + Sync + 'static,
) -> ClassOf {
    Arc::new(move |parts, classes| {
        let name = name_of(parts);
        classes.iter().position(|(class, _)| class == name.as_ref())
    })
}

const SEEN: u8 = 1;
const WARNED: u8 = 2;

impl Priority {
    pub(crate) fn new<N: Into<String>>(
        classes: impl IntoIterator<Item = (N, u64)>,
        of: ClassOf,
    ) -> Arc<Self> {
        let classes = classes
            .into_iter()
            .map(|(name, reserve)| (name.into(), reserve))
            .collect();
        Arc::new(Self {
            classes,
            of,
            unknown: AtomicU8::new(0),
        })
    }

    /// The units that a request leaves free: those of the lowest class, if it is in none.
    pub(crate) fn reserve(&self, parts: &Parts) -> u64 {
        let class = (self.of)(parts, &self.classes).and_then(|index| self.classes.get(index));
        let class = class.or_else(|| {
            // Until then it is zero.
            let _ = self
                .unknown
                .compare_exchange(0, SEEN, Ordering::Relaxed, Ordering::Relaxed);
            self.classes.last()
        });
        class.map_or(0, |(_, reserve)| *reserve)
    }

    pub(crate) fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// The name of the class that leaves so many units free. No two leave the same.
    #[cfg(test)]
    pub(crate) fn name(&self, reserve: u64) -> Option<&str> {
        self.classes
            .iter()
            .find(|(_, own)| *own == reserve)
            .map(|(name, _)| &**name)
    }

    /// The lowest class, if requests without a class were put into it and that was not warned of.
    pub(crate) fn unwarned(&self) -> Option<&str> {
        if self.unknown.load(Ordering::Relaxed) != SEEN {
            return None;
        }
        let warns = self
            .unknown
            .compare_exchange(SEEN, WARNED, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
        self.classes
            .last()
            .filter(|_| warns)
            .map(|(name, _)| &**name)
    }

    /// # Errors
    ///
    /// If classes cannot be told apart, or one of them would never be admitted by a limit that has
    /// `most` units, of which each request takes `cost` or more.
    pub(super) fn check(&self, most: u64, cost: u64) -> Result<(), ConfigError> {
        check_classes(&self.classes, ("the limit", most), cost)
    }
}

/// # Errors
///
/// As [`Priority::check`], of what holds so many units.
pub(crate) fn check_classes(
    classes: &[Class],
    (holder, most): (&str, u64),
    cost: u64,
) -> Result<(), ConfigError> {
    if classes.is_empty() {
        let rule = "name the classes with their reserves: 0 for the highest, and more for each \
            class below it";
        return Err(ConfigError::new("reserve", "without a class", rule));
    }
    for (index, (name, reserve)) in classes.iter().enumerate() {
        let above = &classes[..index];
        if name.is_empty() {
            let rule =
                "a class needs a name, which the function that is given with the classes returns";
            return Err(ConfigError::new("class", "\"\"", rule));
        }
        if above.iter().any(|(other, _)| other == name) {
            let rule = "the name tells the classes apart; rename one of them";
            return Err(ConfigError::new(
                "class",
                format_args!("{name:?} twice"),
                rule,
            ));
        }
        if let Some((higher, least)) = above.last().filter(|(_, above)| reserve <= above) {
            let rule = format!(
                "it stands below {higher:?}, which leaves {least} units free, and must leave \
                    more; write the highest \
                 class first, and a larger number for each class below"
            );
            return Err(ConfigError::new(
                "reserve",
                format_args!("{reserve} of {name:?}"),
                rule,
            ));
        }
        if reserve.saturating_add(cost) > most {
            let rule = format!(
                "{holder} has at most {most} units and a request takes {cost}, so that no request \
                    of the class would \
                 be admitted; write at most {}",
                most.saturating_sub(cost)
            );
            return Err(ConfigError::new(
                "reserve",
                format_args!("{reserve} of {name:?}"),
                rule,
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn of(classes: &[(&str, u64)]) -> Arc<Priority> {
        Priority::new(
            classes.iter().copied(),
            class_of(|parts: &Parts| parts.uri.path()[1..].to_owned()),
        )
    }

    fn reserve(priority: &Priority, class: &str) -> u64 {
        priority.reserve(
            &Request::get(format!("/{class}"))
                .body(())
                .unwrap()
                .into_parts()
                .0,
        )
    }

    #[test]
    fn request_in_no_class_is_in_the_lowest_and_warned_of_once() {
        let priority = of(&[("critical", 0), ("normal", 40), ("batch", 120)]);
        assert_eq!(
            ["critical", "normal", "batch"].map(|class| reserve(&priority, class)),
            [0, 40, 120]
        );
        assert_eq!(priority.unwarned(), None);
        for warns in [true, false] {
            assert_eq!(
                ["", "Critical", "criticality"].map(|class| reserve(&priority, class)),
                [120; 3]
            );
            assert_eq!(priority.unwarned(), warns.then_some("batch"));
            assert_eq!(priority.unwarned(), None);
        }
        assert_eq!(
            [0, 40, 120, 41].map(|reserve| priority.name(reserve)),
            [Some("critical"), Some("normal"), Some("batch"), None]
        );
    }

    #[test]
    fn classes_that_help_nobody_are_an_error_with_what_to_write() {
        let check = |classes: &[(&str, u64)], cost| of(classes).check(200, cost);
        for (classes, cost) in [
            (&[("all", 0)][..], 1),
            (&[("batch", 199)], 1),
            (&[("critical", 0), ("batch", 150)], 50),
            (&[("critical", 1), ("batch", 2)], 1),
        ] {
            assert_eq!(check(classes, cost), Ok(()), "{classes:?}");
        }
        for (classes, cost, start) in [
            (
                &[][..],
                1,
                "reserve is without a class: name the classes with their reserves",
            ),
            (&[("", 0)], 1, "class is \"\": a class needs a name"),
            (&[("a", 0), ("b", 1), ("a", 2)], 1, "class is \"a\" twice: "),
            (
                &[("a", 0), ("b", 0)],
                1,
                "reserve is 0 of \"b\": it stands below \"a\", which leaves 0 units free",
            ),
            (
                &[("a", 7), ("b", 6)],
                1,
                "reserve is 6 of \"b\": it stands below \"a\", which leaves 7 units free",
            ),
            (
                &[("a", 0), ("b", 200)],
                1,
                "reserve is 200 of \"b\": the limit has at most 200 units and",
            ),
            (
                &[("a", 0), ("b", u64::MAX)],
                1,
                "reserve is 18446744073709551615 of \"b\": ",
            ),
            (
                &[("a", 0), ("b", 151)],
                50,
                "reserve is 151 of \"b\": the limit has at most 200 units and",
            ),
        ] {
            let error = check(classes, cost).unwrap_err().to_string();
            assert!(error.starts_with(start), "{error}");
        }
        assert!(
            check(&[("a", 151)], 50)
                .unwrap_err()
                .to_string()
                .ends_with("write at most 150")
        );
    }
}
