//! Patterns of paths, for services without axum's routes.

use super::spelling;

/// `/api/*` is one segment below `/api`, `/api/**` is `/api` and everything below it.
pub(super) struct PathPattern {
    segments: Vec<Segment>,
    /// Whether more segments may follow.
    is_open: bool,
}

enum Segment {
    Text(Box<str>),
    Any,
}

const PLAIN: &str = "it must be a plain path, without //, . and ..";

impl PathPattern {
    /// # Errors
    ///
    /// What to write instead.
    pub(super) fn parse(pattern: &str) -> Result<Self, String> {
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
            return Err("paths are compared after decoding; write the characters themselves".to_owned());
        }
        let (path, is_open) = match path.strip_suffix("**") {
            Some(path) if path.is_empty() || path.ends_with('/') => (path, true),
            _ => (path, false),
        };
        let path = path.strip_suffix('/').unwrap_or(path);
        let mut segments = Vec::new();
        // The root has no segments.
        for segment in path.split('/').filter(|_| !path.is_empty()) {
            segments.push(Segment::parse(segment)?);
        }
        Ok(Self { segments, is_open })
    }

    fn matches(&self, path: &[&str]) -> bool {
        let is_long_enough =
            if self.is_open { path.len() >= self.segments.len() } else { path.len() == self.segments.len() };
        is_long_enough && self.segments.iter().zip(path).all(|(segment, other)| segment.matches(other))
    }
}

impl Segment {
    fn parse(segment: &str) -> Result<Self, String> {
        match segment {
            "*" => Ok(Self::Any),
            "" | "." | ".." => Err(PLAIN.to_owned()),
            "**" => Err("** stands for all that follows, so it must be the last segment".to_owned()),
            _ if segment.contains('*') => Err("a * stands for a whole segment, as in \"/users/*/posts\"".to_owned()),
            _ if segment.starts_with(['{', ':']) => {
                Err("a path has no parameters; write * for a segment, or use routes".to_owned())
            }
            _ => Ok(Self::Text(segment.into())),
        }
    }

    fn matches(&self, segment: &str) -> bool {
        match self {
            Self::Text(text) => **text == *segment,
            Self::Any => true,
        }
    }
}

/// Whether some pattern matches the path, in any of the ways in which servers and proxies read it: a spelling must not
/// be a way around a limit.
pub(super) fn any_matches(patterns: &[PathPattern], path: &str) -> bool {
    let match_segments = |segments: &[&str]| patterns.iter().any(|pattern| pattern.matches(segments));
    if spelling::has_one_reading(path) {
        // One more than the longest pattern has shows that the path is longer. Empty ones are before the first slash
        // and after the last.
        let most = 1 + patterns.iter().map(|pattern| pattern.segments.len()).max().unwrap_or(0);
        let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).take(most).collect();
        return match_segments(&segments);
    }
    spelling::any_reading(path, match_segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        any_matches(&[PathPattern::parse(pattern).unwrap()], path)
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
            assert_eq!(PathPattern::parse(pattern).err().as_deref(), Some(PLAIN), "{pattern}");
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
        assert!(!matches("/api/v1", "/%2561pi/v1") && matches("/%x/v1".replace("%x", "*").as_str(), "/%2561pi/v1"));
        for path in [
            "/files/a%2fb",
            "/%66iles/a%2fb",
            "/files\\a%2fb",
            "/files;x/a%2fb",
            "/files/a\\b",
            "/files/a;b%2fc",
            "/files/%3b",
        ] {
            assert!(matches("/files/*", path), "a letter of one segment, too: {path}");
        }
        assert!(matches("/files/*/c", "/files/a\\b%2fc"), "a letter beside an encoded separator");
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
            assert!(matches(pattern, path), "what looks like nothing is a segment, too: {pattern} {path}");
        }
        assert!(!matches("/users/*", "/users/") && !matches("/*", "/"), "a slash at the end is none");
        assert!(matches("/a;b", "/a;b") && matches("/a\\b", "/a\\b"), "a letter in a pattern");
        assert!(matches("/api/**", "/api%2fv1/%ff"), "what is no text hides nothing");
        assert!(matches("/a", "/a") && !matches("/a", "/%ff") && !matches("/a", "/%") && !matches("/a", "/b;/a"));
    }

    #[test]
    fn path_is_split_once_for_all_patterns() {
        let patterns: Vec<_> = (0..20_000).map(|n| PathPattern::parse(&format!("/a/{n}")).unwrap()).collect();
        let start = std::time::Instant::now();
        let (long, slashes) = ("/b".repeat(1 << 20), "/".repeat(900));
        assert!(!any_matches(&patterns, &long) && !any_matches(&patterns, &format!("{slashes}a/0/b")));
        assert!(any_matches(&patterns, &format!("{slashes}a/19999")));
        assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
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
            let error = PathPattern::parse(pattern).err().unwrap();
            assert!(error.contains(remedy), "{pattern}: {error}");
        }
    }

    /// The longest pattern decides how much of a path is looked at, wherever it stands.
    #[test]
    fn patterns_of_several_lengths_match_each_for_itself() {
        for patterns in [["/a", "/a/b/c"], ["/a/b/c", "/a"]] {
            let patterns = patterns.map(|pattern| PathPattern::parse(pattern).unwrap());
            for (path, expected) in
                [("/", false), ("/a", true), ("/a/b", false), ("/a/b/c", true), ("/a/b/c/d", false), ("/%61/b/c", true)]
            {
                assert_eq!(any_matches(&patterns, path), expected, "{path}");
            }
        }
        assert!(!any_matches(&[], "/a") && !any_matches(&[], "/%61"));
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
            let error = PathPattern::parse(pattern).err().unwrap();
            assert!(error.contains(remedy), "{pattern}: {error}");
        }
        for pattern in ["/a{b}", "/a:b", "/...", "/a.b", "/~"] {
            assert!(PathPattern::parse(pattern).is_ok(), "{pattern}");
        }
    }
}
