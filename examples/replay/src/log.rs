//! Reads a log, line by line, in the order in which the requests started.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};

use anyhow::{Context, anyhow, bail};
use flate2::bufread::MultiGzDecoder;
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::LogArguments;
use crate::entry::Entry;
use crate::flaw::Lines;
use crate::likeness;
use crate::line_reader::LineReader;
use crate::order::Order;
use crate::text::number;

/// Longer lines are bad.
const LONGEST: u64 = 1 << 20;

/// Of so many lines, one may be undecided. One may be in any log.
const FEW: u64 = 1_000;

/// What was read, and what could not be.
#[derive(Debug, Default)]
pub struct Reading {
    name: String,
    window: usize,
    /// All lines.
    pub lines: u64,
    /// Those that are requests which can be decided.
    pub requests: u64,
    /// Those that hold what no server takes for a request.
    pub rejected: Lines,
    /// Those that cannot be read, and those without what a limit needs.
    pub undecided: Lines,
    /// What the first of them is, as far as that is known.
    likeness: Option<String>,
    /// Requests that were logged after one that started later.
    pub moved: u64,
    /// Those of them that were so late that they are undecided.
    pub late: u64,
    /// Requests of which the log knows only the second.
    pub whole_seconds: u64,
    pub without_address: u64,
    /// Requests that a limit has refused then.
    pub answered_429: u64,
    /// The start of the first and the last request.
    pub span: Option<(i64, i64)>,
}

/// Calls `check` with each request in the order of the log: it returns why a request cannot be
/// decided. Calls `take` with the others in the order of their starts. Those of which only the
/// second is known come together.
///
/// # Errors
///
/// If the log cannot be read, or has no request, or no field that an option names.
pub fn read(
    arguments: &LogArguments,
    mut check: impl FnMut(&Entry) -> Option<&'static str>,
    mut take: impl FnMut(&[Entry]),
) -> anyhow::Result<Reading> {
    let name = match arguments.log.display().to_string() {
        name if name == "-" => "the standard input".to_owned(),
        name => name,
    };
    let reader = LineReader::new(arguments)?;
    let (mut input, progress) = open(arguments, &name)?;
    let mut read = Reading {
        name: name.clone(),
        window: arguments.window,
        ..Reading::default()
    };
    let (mut order, mut line) = (Order::new(arguments.window), Vec::new());
    while next_line(&mut input, &mut line).with_context(|| format!("{name} cannot be read"))? {
        read.lines += 1;
        if read.lines.is_multiple_of(4_096) {
            progress.set_message(format!("{} lines", read.lines));
        }
        progress.inc(line.len() as u64);
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        let entry = if line.len() as u64 > LONGEST {
            Err("the line is longer than 1 MiB".into())
        } else {
            reader.read(text)
        };
        match entry {
            Ok(entry) => match check(&entry) {
                None => {
                    read.count(&entry);
                    order.push(entry, &mut take);
                }
                Some(reason) => read.undecided.add(read.lines, reason, text),
            },
            Err(flaw) if flaw.is_rejected => read.rejected.add(read.lines, flaw.reason, text),
            Err(flaw) => {
                if read.undecided.count == 0 {
                    read.likeness = likeness::of_line(text, arguments);
                }
                read.undecided.add(read.lines, flaw.reason, text);
            }
        }
    }
    order.finish(&mut take);
    progress.finish_and_clear();
    (read.moved, read.late) = (order.moved, order.late);
    if read.lines == 0 {
        bail!("{name} is empty: there is nothing to tell of it");
    }
    if let Some(field) = reader.missing() {
        bail!("no line of {name} has the field {field:?}, which an option names");
    }
    if read.requests == 0 {
        return Err(read.no_result());
    }
    Ok(read)
}

/// A log, expanded if it is compressed by gzip.
fn open(arguments: &LogArguments, name: &str) -> anyhow::Result<(Box<dyn BufRead>, ProgressBar)> {
    let unread = || format!("{name} cannot be read");
    let (input, bytes): (Box<dyn Read>, _) = if arguments.log.as_os_str() == "-" {
        (Box::new(io::stdin()), None)
    } else {
        let file = File::open(&arguments.log).with_context(unread)?;
        let metadata = file.metadata().ok();
        let bytes = metadata.filter(std::fs::Metadata::is_file);
        (Box::new(file), bytes.map(|metadata| metadata.len()))
    };
    let mut input = BufReader::with_capacity(1 << 16, input);
    let start = input.fill_buf().with_context(unread)?;
    if let Some(likeness) = likeness::of_file(start) {
        bail!("{name} looks like {likeness}.");
    }
    Ok(if start.starts_with(b"\x1f\x8b") {
        let expanded = BufReader::with_capacity(1 << 16, MultiGzDecoder::new(input));
        (Box::new(expanded), progress(None))
    } else {
        (Box::new(input), progress(bytes))
    })
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

    /// Requests that were decided.
    pub const fn decided(&self) -> u64 {
        self.requests - self.late
    }

    /// # Errors
    ///
    /// If more than a few lines are undecided.
    pub fn require_decided(&self) -> anyhow::Result<()> {
        let undecided = self.undecided.count + self.late;
        if undecided > (self.lines / FEW).max(1) {
            return Err(self.no_result());
        }
        Ok(())
    }

    /// Why there is no result, and what to do.
    fn no_result(&self) -> anyhow::Error {
        let Self { name, window, .. } = self;
        let undecided = self.undecided.count + self.late;
        if undecided == 0 {
            return anyhow!(
                "{name} gives no result: it has no request\n{}",
                self.rejected.shown()
            );
        }
        let mut text = format!(
            "{name} gives no result: {} of {} lines are undecided; one may be, or one in {}",
            number(undecided),
            number(self.lines),
            number(FEW)
        );
        if let Some(likeness) = &self.likeness {
            text += &format!("\nThe first that cannot be read looks like {likeness}.");
        }
        if self.late > 0 {
            text += &format!(
                "\nThey start before a request that was decided {window} lines earlier: {}. Give \
                 the oldest lines first, as in `zcat -f $(ls -tr access.log*)`, or raise --window.",
                number(self.late)
            );
        }
        if self.undecided.count > 0 {
            text += &format!(
                "\nThey cannot be read, or lack what a limit needs: {}. See --format, or leave \
                 such lines out, as with grep.\n{}",
                number(self.undecided.count),
                self.undecided.shown()
            );
        }
        anyhow!(text)
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
