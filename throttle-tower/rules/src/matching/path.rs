//! Patterns of paths, for services without axum's routes.

use std::cell::RefCell;
use std::collections::HashMap;

use smallvec::SmallVec;

use super::spelling;

/// Numbers of limits.
pub(super) type Numbers = SmallVec<[u16; 8]>;

/// Patterns by their segments: to match a path takes as long as the path is, however many patterns
/// there are, but for those with a `*` that the path also fits. `/api/*` is one segment below
/// `/api`, `/api/**` is `/api` and everything below it. They may be those of several limits, which
/// have numbers.
#[derive(Default)]
pub(super) struct PathPatterns {
    texts: HashMap<Box<str>, Self>,
    any: Option<Box<Self>>,
    /// The limits of which a pattern ends here.
    ends: Vec<u16>,
    /// Those of which one ends here that more segments may follow.
    opens: Vec<u16>,
}

const PLAIN: &str = "it must be a plain path, without //, . and ..";

/// Each segment is a step of the stack.
const MAX_SEGMENTS: usize = 100;

impl PathPatterns {
    /// # Errors
    ///
    /// What to write instead.
    pub(super) fn add(&mut self, pattern: &str) -> Result<(), String> {
        let Some(path) = pattern.strip_prefix('/') else {
            return Err("it must start with /, as in \"/api/**\"".to_owned());
        };
        if path.starts_with('/') {
            return Err(PLAIN.to_owned());
        }
        if path.contains(['?', '#']) {
            return Err("a path has no query; write the path alone".to_owned());
        }
        if path.contains('%') {
            return Err(
                "paths are compared after decoding; write the characters themselves".to_owned(),
            );
        }
        let (path, is_open) = match path.strip_suffix("**") {
            Some(path) if path.is_empty() || path.ends_with('/') => (path, true),
            _ => (path, false),
        };
        let path = path.strip_suffix('/').unwrap_or(path);
        // The root has no segments.
        let segments: Vec<&str> = path.split('/').filter(|_| !path.is_empty()).collect();
        if segments.len() > MAX_SEGMENTS {
            return Err(format!(
                "it has at most {MAX_SEGMENTS} segments; end it earlier with **"
            ));
        }
        segments
            .iter()
            .try_for_each(|segment| check_segment(segment))?;
        let end = segments
            .into_iter()
            .fold(self, |node, segment| match segment {
                "*" => node.any.get_or_insert_default(),
                text => node.texts.entry(text.into()).or_default(),
            });
        end.opens.extend(is_open.then_some(0));
        end.ends.push(0);
        Ok(())
    }

    /// Adds the patterns of a limit.
    pub(super) fn add_all(&mut self, of: &Self, number: u16) {
        self.ends.extend((!of.ends.is_empty()).then_some(number));
        self.opens.extend((!of.opens.is_empty()).then_some(number));
        for (text, next) in &of.texts {
            self.texts
                .entry(text.clone())
                .or_default()
                .add_all(next, number);
        }
        if let Some(next) = &of.any {
            self.any.get_or_insert_default().add_all(next, number);
        }
    }

    /// Whether some pattern matches the path, in any of the ways in which servers and proxies read
    /// it: a spelling must not be a way around a limit.
    pub(super) fn match_path(&self, path: &str) -> bool {
        self.any_reading(path, |_| true)
    }

    /// Adds the limits of which some pattern matches the path, some more than once; whether all of
    /// them match it.
    pub(super) fn find(&self, path: &str, found: &mut Numbers) -> bool {
        let found = RefCell::new(found);
        self.any_reading(path, |numbers| {
            let mut found = found.borrow_mut();
            // Mostly one, for which a push is faster than a slice.
            numbers.iter().for_each(|number| found.push(*number));
            false
        })
    }

    /// Calls `on` with the limits of each pattern that matches the path, until it returns true.
    fn any_reading(&self, path: &str, on: impl Fn(&[u16]) -> bool) -> bool {
        if spelling::has_one_reading(path) {
            // Empty segments are before the first slash and after the last.
            return self.match_segments(path.split('/').filter(|segment| !segment.is_empty()), &on);
        }
        spelling::any_reading(path, |segments| {
            self.match_segments(segments.iter().copied(), &on)
        })
    }

    fn match_segments<'p>(
        &self,
        mut path: impl Iterator<Item = &'p str> + Clone,
        on: &impl Fn(&[u16]) -> bool,
    ) -> bool {
        // Most nodes are no end.
        let on_some = |numbers: &[u16]| !numbers.is_empty() && on(numbers);
        let Some(segment) = path.next() else {
            return on_some(&self.ends);
        };
        let text = self.texts.get(segment);
        on_some(&self.opens)
            || text
                .into_iter()
                .chain(self.any.as_deref())
                .any(|next| next.match_segments(path.clone(), on))
    }
}

fn check_segment(segment: &str) -> Result<(), &'static str> {
    match segment {
        "" | "." | ".." => Err(PLAIN),
        "**" => Err("** stands for all that follows, so it must be the last segment"),
        "*" => Ok(()),
        _ if segment.contains('*') => {
            Err("a * stands for a whole segment, as in \"/users/*/posts\"")
        }
        _ if segment.starts_with(['{', ':']) => {
            Err("a path has no parameters; write * for a segment, or use routes")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(texts: &[&str]) -> PathPatterns {
        let mut patterns = PathPatterns::default();
        texts.iter().for_each(|text| patterns.add(text).unwrap());
        patterns
    }

    fn refusal(pattern: &str) -> String {
        PathPatterns::default().add(pattern).unwrap_err()
    }

    fn matches(pattern: &str, path: &str) -> bool {
        patterns(&[pattern]).match_path(path)
    }

    #[test]
    fn star_is_one_segment_and_two_are_the_rest() {
        for (pattern, path, expected) in [
            ("/", "/", true),
            ("/", "/a", false),
            ("/**", "/", true),
            ("/**", "/a/b", true),
            ("/api", "/api", true),
            ("/api", "/api/", true),
            ("/api", "/API", false),
            ("/api/", "/api", true),
            ("/api/*", "/api", false),
            ("/api/*", "/api/a", true),
            ("/api/*", "/api/a/b", false),
            ("/api/**", "/api", true),
            ("/api/**", "/api/a/b", true),
            ("/api/**", "/apis", false),
            ("/users/*/posts", "/users/7/posts", true),
            ("/users/*/posts", "/users/7/likes", false),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn empty_segment_is_refused_wherever_it_is() {
        for pattern in ["//", "//**", "//a", "/a//b", "/a//"] {
            assert_eq!(refusal(pattern), PLAIN, "{pattern}");
        }
    }

    #[test]
    fn spelling_is_no_way_around_a_pattern() {
        for path in [
            "//api//v1",
            "/./api/./v1/",
            "/%61pi/v1",
            "/api%2fv1",
            "/api%2Fv1",
            "/api/x/../v1",
            "/x/../api/v1",
            "/x%2f..%2fapi/v1",
            "/%2e%2e/api/v1",
            "/api%5cv1",
            "/api/%2e/v1",
            "/../api/v1",
            // A step up from an empty segment, for servers that keep it and for those that do not.
            "/api//../v1",
            "//../api/v1",
            "/api/x//../v1/../../v1",
            "/x//../api/v1",
            "/api%2f/../v1",
            // A backslash as a separator.
            "\\api\\v1",
            "/x\\..\\api/v1",
            "/api\\\\../v1",
            // Parameters of segments.
            "/api;x/v1",
            "/api;x=1;y/v1;z",
            "/api/v1;x%2fy",
            "/api;x%2fv1",
            "/x/..;/api/v1",
            "/x/..;y/api/.;/v1",
            "/;/api/;x/v1",
            "/api;x\\v1",
            "/api;x\\y/v1",
        ] {
            assert!(matches("/api/v1", path), "{path}");
        }
        // Decoded once, as servers do.
        assert!(
            !matches("/api/v1", "/%2561pi/v1")
                && matches("/%x/v1".replace("%x", "*").as_str(), "/%2561pi/v1")
        );
        for path in [
            "/files/a%2fb",
            "/%66iles/a%2fb",
            "/files\\a%2fb",
            "/files;x/a%2fb",
            "/files/a\\b",
            "/files/a;b%2fc",
            "/files/%3b",
        ] {
            assert!(
                matches("/files/*", path),
                "a letter of one segment, too: {path}"
            );
        }
        assert!(
            matches("/files/*/c", "/files/a\\b%2fc"),
            "a letter beside an encoded separator"
        );
        for (pattern, path) in [
            ("/users/*", "/users/."),
            ("/users/*", "/users/%2e"),
            ("/users/*", "/users/..;x"),
            ("/users/*", "/users//"),
            ("/users/*/", "/users/./"),
            ("/users/*", "//users/."),
            ("/*/report", "/./report"),
            ("/*/report", "//report"),
            ("/*/report", "/%2E/report"),
            ("/*/report", "/.//report"),
            ("/*/report", "/x/..//report"),
            ("/*/*/report", "/.//report"),
            ("/*/report", "/%2e%2f/report"),
        ] {
            assert!(
                matches(pattern, path),
                "what looks like nothing is a segment, too: {pattern} {path}"
            );
        }
        assert!(
            !matches("/users/*", "/users/") && !matches("/*", "/"),
            "a slash at the end is none"
        );
        assert!(
            matches("/a;b", "/a;b") && matches("/a\\b", "/a\\b"),
            "a letter in a pattern"
        );
        assert!(
            matches("/api/**", "/api%2fv1/%ff"),
            "what is no text hides nothing"
        );
        assert!(
            matches("/a", "/a")
                && !matches("/a", "/%ff")
                && !matches("/a", "/%")
                && !matches("/a", "/b;/a")
        );
    }

    /// Each pattern beside the others matches what it matches alone.
    #[test]
    fn patterns_that_begin_alike_are_told_apart() {
        let all = ["/a/b", "/a/*/c", "/a/**", "/*/b/c", "/**", "/a", "/b/*"];
        let paths = [
            "/", "/a", "/a/b", "/a/b/c", "/a/x/c", "/a/x/d", "/x/b/c", "/x/b", "/b", "/b/x",
            "/b/x/y",
        ];
        for (first, second) in all
            .iter()
            .flat_map(|first| all.map(|second| (first, second)))
        {
            for path in paths {
                let expected = matches(first, path) || matches(second, path);
                assert_eq!(
                    patterns(&[first, second]).match_path(path),
                    expected,
                    "{first}, {second}: {path}"
                );
            }
        }
    }

    #[test]
    fn long_paths_and_many_patterns_take_no_time() {
        let mut patterns = PathPatterns::default();
        (0..20_000).for_each(|n| patterns.add(&format!("/a/{n}")).unwrap());
        let start = std::time::Instant::now();
        let (long, slashes) = ("/b".repeat(1 << 20), "/".repeat(900));
        assert!(!patterns.match_path(&long) && !patterns.match_path(&format!("{slashes}a/0/b")));
        assert!(patterns.match_path(&format!("{slashes}a/19999")));
        assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
    }

    #[test]
    fn pattern_has_at_most_a_hundred_segments() {
        assert!(
            matches(&"/*".repeat(100), &"/a".repeat(100))
                && !matches(&"/*".repeat(100), &"/a".repeat(101))
        );
        assert_eq!(
            refusal(&"/*".repeat(101)),
            "it has at most 100 segments; end it earlier with **"
        );
    }

    #[test]
    fn wrong_pattern_is_told_what_to_write() {
        for (pattern, remedy) in [
            ("api", "start with /"),
            ("", "start with /"),
            ("/api/**/x", "last segment"),
            ("/api/a*", "whole segment"),
            ("/api**", "whole segment"),
            ("/api//x", "plain path"),
            ("/api/../x", "plain path"),
            ("/a%2fb", "after decoding"),
            ("/a?b", "no query"),
            ("/users/{id}", "use routes"),
        ] {
            let error = refusal(pattern);
            assert!(error.contains(remedy), "{pattern}: {error}");
        }
    }

    #[test]
    fn patterns_of_several_lengths_match_each_for_itself() {
        for two in [["/a", "/a/b/c"], ["/a/b/c", "/a"]] {
            let patterns = patterns(&two);
            for (path, expected) in [
                ("/", false),
                ("/a", true),
                ("/a/b", false),
                ("/a/b/c", true),
                ("/a/b/c/d", false),
                ("/%61/b/c", true),
            ] {
                assert_eq!(patterns.match_path(path), expected, "{path}");
            }
        }
        assert!(!patterns(&[]).match_path("/a") && !patterns(&[]).match_path("/%61"));
    }

    #[test]
    fn pattern_that_cannot_match_is_told_what_to_write() {
        for (pattern, remedy) in [
            ("/a#b", "no query"),
            ("/users/:id", "use routes"),
            ("/a/./b", "plain path"),
            ("/a//", "plain path"),
            ("/a/**b", "whole segment"),
            ("/**/", "last segment"),
            ("*", "start with /"),
        ] {
            let error = refusal(pattern);
            assert!(error.contains(remedy), "{pattern}: {error}");
        }
        for pattern in ["/a{b}", "/a:b", "/...", "/a.b", "/~"] {
            assert_eq!(PathPatterns::default().add(pattern), Ok(()), "{pattern}");
        }
    }
}
