//! Reads a log, line by line, in the order in which the requests started.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::LogArguments;
use crate::combined;
use crate::entry::Entry;
use crate::json::{Json, Preset};
use crate::order::Order;
use crate::text::escaped;

/// Longer lines are bad.
const LONGEST: u64 = 1 << 20;

/// How many bad lines are kept to be shown.
const SHOWN: usize = 5;

/// What was read, and what could not be.
#[derive(Debug, Default)]
pub struct Reading {
    /// All lines.
    pub lines: u64,
    /// Those that are requests.
    pub requests: u64,
    /// The first bad lines: their number, what is wrong, and their text.
    pub bad: Vec<(u64, &'static str, String)>,
    pub bad_lines: u64,
    /// Requests that were logged after one that started later.
    pub moved: u64,
    /// Those of them that were so late that they are counted at the time of the one before them.
    pub late: u64,
    /// Requests of which the log knows only the second.
    pub whole_seconds: u64,
    pub without_address: u64,
    /// Requests that a limit has refused then.
    pub answered_429: u64,
    /// The start of the first and the last request.
    pub span: Option<(i64, i64)>,
}

/// Calls `take` with each request in the order of their starts. Those of which only the second is
/// known come together.
///
/// # Errors
///
/// If the log cannot be read, or has no request.
pub fn read(arguments: &LogArguments, mut take: impl FnMut(&[Entry])) -> anyhow::Result<Reading> {
    let name = arguments.log.display().to_string();
    let (input, bytes): (Box<dyn Read>, _) = if name == "-" {
        (Box::new(io::stdin()), None)
    } else {
        let file = File::open(&arguments.log).with_context(|| format!("{name} cannot be read"))?;
        let bytes = file
            .metadata()
            .ok()
            .filter(|metadata| metadata.is_file())
            .map(|metadata| metadata.len());
        (Box::new(file), bytes)
    };
    let progress = progress(bytes);
    let parse = parser(arguments)?;
    let (mut read, mut order, mut line) =
        (Reading::default(), Order::new(arguments.window), Vec::new());
    let mut input = BufReader::with_capacity(1 << 16, input);
    while next_line(&mut input, &mut line).with_context(|| format!("{name} cannot be read"))? {
        read.lines += 1;
        if read.lines.is_multiple_of(4_096) {
            progress.set_message(format!("{} lines", read.lines));
        }
        progress.inc(line.len() as u64);
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        let entry = if line.len() as u64 > LONGEST {
            Err("the line is longer than 1 MiB")
        } else {
            parse(text)
        };
        match entry {
            Ok(entry) => {
                read.count(&entry);
                order.push(entry, &mut take);
            }
            Err(reason) => {
                read.bad_lines += 1;
                if read.bad.len() < SHOWN {
                    let excerpt = escaped(&String::from_utf8_lossy(&text[..text.len().min(120)]));
                    read.bad.push((read.lines, reason, excerpt));
                }
            }
        }
    }
    order.finish(&mut take);
    progress.finish_and_clear();
    (read.moved, read.late) = (order.moved, order.late);
    if read.lines == 0 {
        bail!("{name} is empty: there is nothing to tell of it");
    }
    if read.requests == 0 {
        bail!(
            "{name} has no request that could be read, in {} lines; see --format\n{}",
            read.lines,
            read.bad_shown()
        );
    }
    Ok(read)
}

type Parse = Box<dyn Fn(&[u8]) -> Result<Entry, &'static str>>;

fn parser(arguments: &LogArguments) -> anyhow::Result<Parse> {
    let Some(preset) = Preset::of(arguments.format) else {
        let LogArguments {
            at,
            duration,
            ip,
            method,
            path,
            host,
            status,
            route,
            ..
        } = arguments;
        let is_given = [at, duration, ip, method, path, host, status, route]
            .iter()
            .any(|field| field.is_some());
        if is_given || !arguments.fields.is_empty() {
            bail!("this format has no fields to name; see --format for those of JSON lines");
        }
        return Ok(Box::new(combined::read));
    };
    let json = Json::new(&preset, arguments);
    Ok(Box::new(move |line| json.read(line)))
}

/// Reads a line with its end. What exceeds the longest line by more than a byte is left out.
/// `false` at the end.
fn next_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    input.take(LONGEST + 1).read_until(b'\n', line)?;
    if line.len() as u64 > LONGEST && line.last() != Some(&b'\n') {
        input.skip_until(b'\n')?;
    }
    Ok(!line.is_empty())
}

fn progress(bytes: Option<u64>) -> ProgressBar {
    let bar = bytes.map_or_else(ProgressBar::no_length, ProgressBar::new);
    let template = match bytes {
        Some(_) => "{bar:40} {bytes} of {total_bytes}, {msg}, {eta} left",
        None => "{spinner} {bytes}, {msg}",
    };
    bar.with_style(ProgressStyle::with_template(template).expect("the template is right"))
        .with_message("0 lines")
}

impl Reading {
    fn count(&mut self, entry: &Entry) {
        self.requests += 1;
        self.whole_seconds += u64::from(!entry.is_precise);
        self.without_address += u64::from(entry.address.is_none());
        self.answered_429 += u64::from(entry.status.as_u16() == 429);
        let (first, last) = self.span.unwrap_or((entry.start, entry.start));
        self.span = Some((first.min(entry.start), last.max(entry.start)));
    }

    pub fn bad_shown(&self) -> String {
        let shown: Vec<_> = self
            .bad
            .iter()
            .map(|(number, reason, text)| format!("  line {number}: {reason}: {text}\n"))
            .collect();
        shown.concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_that_never_ends_is_cut_and_the_next_is_whole() {
        let long = vec![b'x'; 3 << 20];
        let mut input = io::Cursor::new([&long, b"\nnext\nlast".as_slice()].concat());
        let mut line = Vec::new();
        let mut lens = Vec::new();
        while next_line(&mut input, &mut line).unwrap() {
            lens.push(line.len());
        }
        assert_eq!(lens, [(1 << 20) + 1, 5, 4]);
    }
}
