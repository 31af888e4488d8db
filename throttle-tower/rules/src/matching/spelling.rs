//! The ways in which servers and proxies read one path.
//!
//! Percent signs are decoded once. The rest is read in each way that some server has:
//!
//! * `.` and an empty segment each as a segment, as axum does, and as nothing; an empty one at the
//!   end is nothing,
//! * an encoded separator as a letter, and as a separator; a backslash likewise,
//! * `;` and what follows it in a segment as part of the segment, and as nothing,
//! * `..` as a segment and as a step up, with empty segments dropped before it, after it or not at
//!   all.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// Every pattern matches a path of more segments: the client would choose how much work it is to
/// read it in each way.
const MAX_SEGMENTS: usize = 1_000;

/// Whether all read the path in the same way: its segments are what stands between slashes, without
/// an empty one at the end.
pub(super) fn has_one_reading(path: &str) -> bool {
    let mut follows_slash = false;
    path.bytes().all(|byte| {
        let is_read_alike = match byte {
            b'%' | b'\\' | b';' => false,
            b'/' | b'.' => !follows_slash,
            _ => true,
        };
        follows_slash = byte == b'/';
        is_read_alike
    })
}

/// Whether `matches` returns true for the segments of the path in some reading.
pub(super) fn any_reading(path: &str, matches: impl Fn(&[&str]) -> bool) -> bool {
    let [has_percent, has_backslash, has_parameters] =
        ['%', '\\', ';'].map(|special| path.contains(special));
    if path.bytes().filter(|b| b"/\\".contains(b)).count() + encoded_separators(path) > MAX_SEGMENTS
    {
        return true;
    }
    let parameters = [
        Parameters::Kept,
        Parameters::CutBeforeDecoding,
        Parameters::CutAfterDecoding,
    ];
    let parameters = if has_parameters {
        &parameters[..]
    } else {
        &parameters[..1]
    };
    either(has_percent || has_backslash)
        .iter()
        .any(|&splits_at_backslash| {
            either(has_percent).iter().any(|&splits_decoded| {
                parameters.iter().any(|&parameters| {
                    let reading = Reading {
                        splits_at_backslash,
                        splits_decoded,
                        parameters,
                    };
                    reading.matches(path, &matches)
                })
            })
        })
}

fn either(is_there: bool) -> &'static [bool] {
    if is_there { &[false, true] } else { &[false] }
}

fn encoded_separators(path: &str) -> usize {
    path.as_bytes()
        .windows(3)
        .filter(|code| {
            [b"%2f", b"%5c"]
                .iter()
                .any(|c| code.eq_ignore_ascii_case(*c))
        })
        .count()
}

struct Reading {
    splits_at_backslash: bool,
    /// Whether encoded separators separate.
    splits_decoded: bool,
    parameters: Parameters,
}

/// What follows a `;` in a segment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parameters {
    Kept,
    /// Up to the next separator that is not encoded.
    CutBeforeDecoding,
    CutAfterDecoding,
}

impl Reading {
    fn matches(&self, path: &str, matches: impl Fn(&[&str]) -> bool) -> bool {
        let separators: &[char] = if self.splits_at_backslash {
            &['/', '\\']
        } else {
            &['/']
        };
        let path = match self.parameters {
            Parameters::CutBeforeDecoding => path
                .split(separators)
                .map(without_parameters)
                .collect::<Vec<_>>()
                .join("/")
                .into(),
            Parameters::Kept | Parameters::CutAfterDecoding => Cow::Borrowed(path),
        };
        let decoded_path = if self.splits_decoded {
            decoded(&path)
        } else {
            Cow::Borrowed(&*path)
        };
        let segments = decoded_path.split(separators);
        let segments: Vec<Cow<'_, str>> = segments
            .map(|segment| {
                if self.splits_decoded {
                    segment.into()
                } else {
                    decoded(segment)
                }
            })
            .collect();
        let is_cut = self.parameters == Parameters::CutAfterDecoding;
        let segments = segments.iter().map(|segment| {
            if is_cut {
                without_parameters(segment)
            } else {
                segment
            }
        });
        let segments: Vec<&str> = segments.collect();
        // What stands before the first separator is no segment.
        match segments.split_first() {
            Some((&"", rest)) => any_form(rest, matches),
            _ => any_form(&segments, matches),
        }
    }
}

/// Whether some reading of segments that are empty or consist of dots matches.
fn any_form(segments: &[&str], matches: impl Fn(&[&str]) -> bool) -> bool {
    let as_written = without_end(segments);
    let [has_dot, has_empty, has_step_up] =
        [".", "", ".."].map(|special| as_written.contains(&special));
    let undotted = without(".", segments);
    let matches_kept = || {
        matches(as_written)
            || (has_dot
                && has_empty
                && (matches(&without("", as_written)) || matches(without_end(&undotted))))
    };
    let matches_with_steps_up = || {
        let stepped_up = without_steps_up(&undotted);
        matches(&without_steps_up(&without("", &undotted)))
            || matches(&without("", &stepped_up))
            || (has_empty && matches(without_end(&stepped_up)))
    };
    matches(&without("", &undotted))
        || ((has_dot || has_empty) && matches_kept())
        || (has_step_up && matches_with_steps_up())
}

fn without_parameters(segment: &str) -> &str {
    segment.split_once(';').map_or(segment, |(name, _)| name)
}

/// Without an empty segment at the end: a slash there is no segment.
fn without_end<'a, 's>(segments: &'a [&'s str]) -> &'a [&'s str] {
    segments.strip_suffix(&[""]).unwrap_or(segments)
}

fn without<'s>(special: &str, segments: &[&'s str]) -> Vec<&'s str> {
    segments
        .iter()
        .copied()
        .filter(|segment| *segment != special)
        .collect()
}

/// Each `..` removes the segment before it, if there is one.
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

/// Decodes percent signs once. Bytes that are no text become the replacement character, so that
/// they do not keep the rest from being read.
fn decoded(text: &str) -> Cow<'_, str> {
    percent_decode_str(text).decode_utf8_lossy()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_of_many_segments_matches_unread() {
        for separator in ["/", "\\", "%2f", "%5C", "/;x", "/.."] {
            let path = |count| "/%61".to_owned() + &separator.repeat(count);
            assert!(
                any_reading(&path(MAX_SEGMENTS), |_| panic!("it is read")),
                "{separator}"
            );
            assert!(
                !any_reading(&path(MAX_SEGMENTS - 1), |_| false),
                "{separator}"
            );
        }
    }

    #[test]
    fn path_is_read_in_few_ways() {
        for (path, most) in [
            ("/a/./b", 2),
            ("/a//b", 2),
            ("/a/.//b", 4),
            ("/a/../b", 3),
            ("/a/..//b", 5),
            ("/a%20b", 4),
            ("/a\\b", 2),
            ("/a;b", 3),
            ("/..;%2f\\", 60),
        ] {
            let count = std::cell::Cell::new(0);
            any_reading(path, |_| {
                count.set(count.get() + 1);
                false
            });
            assert!((1..=most).contains(&count.get()), "{path}: {}", count.get());
        }
    }
}
