//! Patterns of paths, for services without axum's routes.

use std::borrow::Cow;

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

impl PathPattern {
    /// # Errors
    ///
    /// What to write instead.
    pub(super) fn parse(pattern: &str) -> Result<Self, String> {
        let Some(path) = pattern.strip_prefix('/') else {
            return Err("it must start with /, as in \"/api/**\"".to_owned());
        };
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

    fn matches<'p>(&self, mut path: impl Iterator<Item = &'p str>) -> bool {
        let starts = self.segments.iter().all(|segment| match (segment, path.next()) {
            (Segment::Any, Some(_)) => true,
            (Segment::Text(text), Some(other)) => **text == *other,
            (_, None) => false,
        });
        starts && (self.is_open || path.next().is_none())
    }
}

impl Segment {
    fn parse(segment: &str) -> Result<Self, String> {
        match segment {
            "*" => Ok(Self::Any),
            "" | "." | ".." => Err("it must be a plain path, without //, . and ..".to_owned()),
            "**" => Err("** stands for all that follows, so it must be the last segment".to_owned()),
            _ if segment.contains('*') => Err("a * stands for a whole segment, as in \"/users/*/posts\"".to_owned()),
            _ if segment.starts_with(['{', ':']) => {
                Err("a path has no parameters; write * for a segment, or use routes".to_owned())
            }
            _ => Ok(Self::Text(segment.into())),
        }
    }
}

/// Whether some pattern matches the path, in any of the ways in which servers and proxies read it: a spelling must not
/// be a way around a limit.
///
/// Empty segments and `.` count as nothing, so `//api/./v1/` is `/api/v1`. Percent signs are decoded once. Two things
/// are read in both ways: `..` as a segment and as a step up, and `%2f` as a letter and as a separator.
pub(super) fn any_matches(patterns: &[PathPattern], path: &str) -> bool {
    let is_plain = !path.contains(['%', '\\']) && !path.contains("/.");
    if is_plain {
        return any_matches_segments(patterns, || path.split('/').filter(|segment| !segment.is_empty()));
    }
    let letters = path.split('/').map(decoded);
    let decoded = decoded(path);
    let separators = decoded.split(['/', '\\']).map(Cow::Borrowed);
    let readings = [letters.collect::<Vec<_>>(), separators.collect()];
    readings.iter().any(|segments| {
        let plain: Vec<&str> = segments.iter().map(|s| &**s).filter(|s| !s.is_empty() && *s != ".").collect();
        let resolved = without_steps_up(&plain);
        any_matches_segments(patterns, || plain.iter().copied())
            || any_matches_segments(patterns, || resolved.iter().copied())
    })
}

fn any_matches_segments<'p, I: Iterator<Item = &'p str>>(patterns: &[PathPattern], path: impl Fn() -> I) -> bool {
    patterns.iter().any(|pattern| pattern.matches(path()))
}

fn without_steps_up<'s>(segments: &[&'s str]) -> Vec<&'s str> {
    let mut resolved = Vec::new();
    for segment in segments {
        if *segment == ".." {
            resolved.pop();
        } else {
            resolved.push(*segment);
        }
    }
    resolved
}

/// Decodes percent signs once. Bytes that are no text become the replacement character, so that they do not keep the
/// rest from being read.
fn decoded(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return text.into();
    }
    let (bytes, mut decoded, mut at) = (text.as_bytes(), Vec::with_capacity(text.len()), 0);
    while let Some(&byte) = bytes.get(at) {
        let digit = |place: usize| bytes.get(place).and_then(|b| char::from(*b).to_digit(16));
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned().into()
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
        ] {
            assert!(matches("/api/v1", path), "{path}");
        }
        // Decoded once, as servers do.
        assert!(!matches("/api/v1", "/%2561pi/v1") && matches("/%x/v1".replace("%x", "*").as_str(), "/%2561pi/v1"));
        assert!(matches("/files/*", "/files/a%2fb"), "a letter of one segment, too");
        assert!(matches("/api/**", "/api%2fv1/%ff"), "what is no text hides nothing");
        assert!(matches("/a", "/a") && !matches("/a", "/%ff") && !matches("/a", "/%"));
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
}
