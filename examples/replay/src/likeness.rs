//! Names the format that a line is in, if it is not the one that was asked for.

use clap::ValueEnum;

use crate::args::{Format, LogArguments};
use crate::line_reader::LineReader;

/// The first bytes of compressed files other than those of gzip, and the program that expands each.
const COMPRESSED: [(&[u8], &str, &str); 3] = [
    (b"\x28\xb5\x2f\xfd", "zstd", "zstdcat"),
    (b"\xfd7zXZ\0", "xz", "xzcat"),
    (b"BZh", "bzip2", "bzcat"),
];

/// Returns what a file is and what to do, by its first bytes, if it is no text in UTF-8.
pub fn of_file(start: &[u8]) -> Option<String> {
    if start.starts_with(b"\xff\xfe") || start.starts_with(b"\xfe\xff") {
        return Some("UTF-16; `iconv -f utf-16 -t utf-8` converts it".to_owned());
    }
    let (_, name, program) = COMPRESSED
        .iter()
        .find(|(magic, ..)| start.starts_with(magic))?;
    Some(format!("a file of {name}; pipe `{program}` of it into `-`"))
}

/// Returns what a line is, and what to do.
pub fn of_line(line: &[u8], arguments: &LogArguments) -> Option<String> {
    let reads = |format: &&Format| {
        **format != arguments.format && LineReader::of(**format, arguments).read(line).is_ok()
    };
    if let Some(format) = Format::value_variants().iter().find(reads) {
        let name = format.to_possible_value()?;
        return Some(format!("--format {}", name.get_name()));
    }
    let text = String::from_utf8_lossy(&line[..line.len().min(400)]);
    let name = foreign(&text)?;
    Some(format!(
        "{name}, which is not read; README.md, \"Other formats\", says how to convert it"
    ))
}

/// Returns the name of a format that is recognized only.
fn foreign(text: &str) -> Option<&'static str> {
    let (first, second) = text.split_once(' ').unwrap_or((text, ""));
    let is_date = |text: &str| {
        let mut parts = text.get(..10).unwrap_or("").split('-');
        parts.clone().count() == 3
            && parts.all(|part| part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    match first {
        "http" | "https" | "h2" | "grpcs" | "ws" | "wss" if is_date(second) => {
            Some("a log of an AWS Application Load Balancer")
        }
        _ if ["#Version:", "#Fields:", "#Software:"].contains(&first) => {
            Some("a W3C extended log, as of CloudFront")
        }
        _ if is_date(text) && text.contains('\t') => Some("a W3C extended log, as of CloudFront"),
        _ if text.starts_with('[') && is_date(&text[1..]) && text.contains("] \"") => {
            Some("Envoy's default text format")
        }
        _ if text.contains("\thttp.log.access") => Some("Caddy's console format"),
        _ => None,
    }
}
