//! The ways in which servers and proxies read one path.
//!
//! Percent signs are decoded once, and `.` counts as nothing. The rest is read in each way that some server has:
//!
//! * an encoded separator as a letter, and as a separator; a backslash likewise,
//! * `;` and what follows it in a segment as part of the segment, and as nothing,
//! * `..` as a segment and as a step up, with empty segments dropped before and after it.

use std::borrow::Cow;

/// Every pattern matches a path of more segments: the client would choose how much work it is to read it in each way.
const MAX_SEGMENTS: usize = 1_000;

/// Whether all read the path in the same way: its segments are what stands between slashes, without empty ones.
pub(super) fn has_one_reading(path: &str) -> bool {
    !path.contains(['%', '\\', ';']) && !path.contains("/.")
}

/// Whether `matches` returns true for the segments of the path in some reading.
pub(super) fn any_reading(path: &str, matches: impl Fn(&[&str]) -> bool) -> bool {
    let [has_percent, has_backslash, has_parameters] = ['%', '\\', ';'].map(|special| path.contains(special));
    if path.bytes().filter(|b| b"/\\".contains(b)).count() + encoded_separators(path) > MAX_SEGMENTS {
        return true;
    }
    let parameters = [Parameters::Kept, Parameters::CutBeforeDecoding, Parameters::CutAfterDecoding];
    let parameters = if has_parameters { &parameters[..] } else { &parameters[..1] };
    either(has_percent || has_backslash).iter().any(|&splits_at_backslash| {
        either(has_percent).iter().any(|&splits_decoded| {
            parameters.iter().any(|&parameters| {
                let reading = Reading { splits_at_backslash, splits_decoded, parameters };
                reading.matches(path, &matches)
            })
        })
    })
}

fn either(is_there: bool) -> &'static [bool] {
    if is_there { &[false, true] } else { &[false] }
}

fn encoded_separators(path: &str) -> usize {
    path.as_bytes().windows(3).filter(|code| [b"%2f", b"%5c"].iter().any(|c| code.eq_ignore_ascii_case(*c))).count()
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
        let separators: &[char] = if self.splits_at_backslash { &['/', '\\'] } else { &['/'] };
        let path = match self.parameters {
            Parameters::CutBeforeDecoding => {
                path.split(separators).map(without_parameters).collect::<Vec<_>>().join("/").into()
            }
            Parameters::Kept | Parameters::CutAfterDecoding => Cow::Borrowed(path),
        };
        let decoded_path = if self.splits_decoded { decoded(&path) } else { Cow::Borrowed(&*path) };
        let segments = decoded_path.split(separators);
        let segments: Vec<Cow<'_, str>> =
            segments.map(|segment| if self.splits_decoded { segment.into() } else { decoded(segment) }).collect();
        let is_cut = self.parameters == Parameters::CutAfterDecoding;
        let segments = segments.iter().map(|segment| if is_cut { without_parameters(segment) } else { segment });
        let segments: Vec<&str> = segments.filter(|segment| *segment != ".").collect();
        let filled = without_empty(&segments);
        let matches_with_steps_up =
            || matches(&without_steps_up(&filled)) || matches(&without_empty(&without_steps_up(&segments)));
        matches(&filled) || (filled.contains(&"..") && matches_with_steps_up())
    }
}

fn without_parameters(segment: &str) -> &str {
    segment.split_once(';').map_or(segment, |(name, _)| name)
}

fn without_empty<'s>(segments: &[&'s str]) -> Vec<&'s str> {
    segments.iter().copied().filter(|segment| !segment.is_empty()).collect()
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

    #[test]
    fn path_of_many_segments_matches_unread() {
        for separator in ["/", "\\", "%2f", "%5C", "/;x", "/.."] {
            let path = |count| "/%61".to_owned() + &separator.repeat(count);
            assert!(any_reading(&path(MAX_SEGMENTS), |_| panic!("it is read")), "{separator}");
            assert!(!any_reading(&path(MAX_SEGMENTS - 1), |_| false), "{separator}");
        }
    }

    #[test]
    fn path_is_read_in_few_ways() {
        for (path, most) in [("/a/./b", 1), ("/a/../b", 3), ("/a%20b", 4), ("/a\\b", 2), ("/a;b", 3), ("/..;%2f\\", 36)]
        {
            let count = std::cell::Cell::new(0);
            any_reading(path, |_| {
                count.set(count.get() + 1);
                false
            });
            assert!((1..=most).contains(&count.get()), "{path}: {}", count.get());
        }
    }
}
