//! The Common and the Combined Log Format of Apache and nginx.

use std::borrow::Cow;

use crate::entry::{Draft, Entry};
use crate::flaw::Flaw;
use crate::time;

/// Reads a line: `host ident user [time] "request" status bytes "referer" "user agent"`. The last
/// two may be missing, and what follows them is left out.
pub fn read(line: &[u8]) -> Result<Entry, Flaw> {
    let mut rest = Scanner(line);
    let address = rest.word().ok_or("the line is empty")?;
    rest.word()
        .zip(rest.user())
        .ok_or("there is no time in [brackets]")?;
    let time = rest
        .between(b'[', b']')
        .ok_or("there is no time in [brackets]")?;
    let request = rest.quoted().ok_or("there is no request in \"quotes\"")?;
    let status = rest.word().ok_or("there is no status")?;
    rest.word();
    let (referer, agent) = (rest.quoted(), rest.quoted());
    let mut words = request
        .split(|byte| *byte == b' ')
        .filter(|word| !word.is_empty());
    let (Some(method), Some(target)) = (words.next(), words.next()) else {
        return Err(Flaw::of_request("the request is none", status));
    };
    if words.nth(1).is_some() {
        return Err(Flaw::of_request("the request has a space too many", status));
    }
    // A dash stands for a header that was not there.
    let header = |value: &'_ Option<Cow<'_, [u8]>>| {
        value
            .as_deref()
            .filter(|value| *value != b"-")
            .map(<[u8]>::to_vec)
    };
    let (referer, agent) = (header(&referer), header(&agent));
    Entry::new(Draft {
        at: time::common(time).ok_or("the time is not like 10/Oct/2000:13:55:36 -0700")?,
        address: std::str::from_utf8(address).unwrap_or(""),
        method,
        target,
        status,
        referer: referer.as_deref(),
        agent: agent.as_deref(),
        ..Draft::default()
    })
}

/// What is left of a line.
struct Scanner<'l>(&'l [u8]);

impl<'l> Scanner<'l> {
    /// What stands before the next space.
    fn word(&mut self) -> Option<&'l [u8]> {
        self.skip_spaces();
        let end = self
            .0
            .iter()
            .position(|byte| *byte == b' ')
            .unwrap_or(self.0.len());
        self.take(end, 0).filter(|word| !word.is_empty())
    }

    /// The user's name, which the client has chosen: it may have spaces.
    fn user(&mut self) -> Option<&'l [u8]> {
        self.skip_spaces();
        let end = self.0.windows(2).position(|pair| pair == b" [")?;
        self.take(end, 0)
    }

    fn between(&mut self, open: u8, close: u8) -> Option<&'l [u8]> {
        self.skip_spaces();
        self.0 = self.0.strip_prefix(&[open])?;
        let end = self.0.iter().position(|byte| *byte == close)?;
        self.take(end, 1)
    }

    /// What stands in quotes, in which a backslash protects a quote and writes bytes as `\x22`.
    fn quoted(&mut self) -> Option<Cow<'l, [u8]>> {
        self.skip_spaces();
        let text = self.0.strip_prefix(b"\"")?;
        let mut end = 0;
        while *text.get(end)? != b'"' {
            end += if text[end] == b'\\' { 2 } else { 1 };
        }
        self.0 = text;
        self.take(end, 1).map(unescaped)
    }

    fn skip_spaces(&mut self) {
        self.0 = self.0.trim_ascii_start();
    }

    /// Takes so many bytes, and leaves out so many after them.
    fn take(&mut self, bytes: usize, skip: usize) -> Option<&'l [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest.get(skip..)?;
        Some(taken)
    }
}

fn unescaped(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.contains(&b'\\') {
        return text.into();
    }
    let (mut plain, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some((first, after)) = rest.split_first() {
        let hexadecimal =
            |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        let (byte, len) = match (first, after) {
            (b'\\', [b'x', digits @ ..]) => match digits.get(..2).and_then(hexadecimal) {
                Some(byte) => (byte, 4),
                None => (b'\\', 1),
            },
            (b'\\', [b't', ..]) => (b'\t', 2),
            (b'\\', [b'n', ..]) => (b'\n', 2),
            (b'\\', [other, ..]) => (*other, 2),
            _ => (*first, 1),
        };
        plain.push(byte);
        rest = &rest[len..];
    }
    plain.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str =
        r#"203.0.113.9 - frank [10/Oct/2000:13:55:36 -0700] "GET /a?b=1 HTTP/1.1" 200 2326"#;

    #[test]
    fn common_and_combined_lines_are_read() {
        let entry = read(LINE.as_bytes()).unwrap();
        assert_eq!(
            (entry.start, entry.is_precise),
            (971_211_336_000_000, false)
        );
        assert_eq!(entry.address.unwrap().to_string(), "203.0.113.9");
        assert_eq!(
            (entry.method.as_str(), entry.uri.to_string().as_str()),
            ("GET", "/a?b=1")
        );
        assert_eq!((entry.status.as_u16(), entry.agent), (200, None));

        let entry =
            read(format!(r#"{LINE} "-" "a \"quoted\" \x41gent" 17 "more""#).as_bytes()).unwrap();
        assert_eq!(
            (entry.referer, entry.agent.unwrap().to_str().unwrap()),
            (None, r#"a "quoted" Agent"#)
        );
        let name = read(
            LINE.replace("203.0.113.9", "host.example")
                .replace("frank", "a [b c")
                .as_bytes(),
        );
        assert!(name.is_err(), "what the client has chosen is no time");
        let user = read(
            LINE.replace("203.0.113.9", "2001:db8::1")
                .replace("frank", "Ada L")
                .as_bytes(),
        )
        .unwrap();
        assert_eq!(user.address.unwrap().to_string(), "2001:db8::1");
    }

    #[test]
    fn hostile_lines_are_refused_with_a_reason() {
        for (line, reason) in [
            ("", "the line is empty"),
            ("   ", "the line is empty"),
            ("203.0.113.9", "there is no time in [brackets]"),
            (
                "a - - [now] \"GET / HTTP/1.1\" 200 1",
                "the time is not like 10/Oct/2000:13:55:36 -0700",
            ),
            (
                "a - - [10/Oct/2000:13:55:36 -0700",
                "there is no time in [brackets]",
            ),
            (
                "a - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.1 200 1",
                "there is no request in \"quotes\"",
            ),
            (
                "a - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.1\\",
                "there is no request in \"quotes\"",
            ),
            (
                "a - - [10/Oct/2000:13:55:36 -0700] \"-\" 408 0",
                "the request is none",
            ),
            (
                "a - - [10/Oct/2000:13:55:36 -0700] \"\\x16\\x03\\x01\" 400 0",
                "the request is none",
            ),
            (
                "a - - [10/Oct/2000:13:55:36 -0700] \"\\x16 / HTTP/1.1\" 400 0",
                "the method is none",
            ),
            (
                "a - - [10/Oct/2000:13:55:36 -0700] \"GET /\\x00 HTTP/1.1\" 400 0",
                "the target of the request is no URI",
            ),
            (
                "a - - [10/Oct/2000:13:55:36 -0700] \"GET / a b\" 400 0",
                "the request has a space too many",
            ),
            (
                "a - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.1\"",
                "there is no status",
            ),
            (
                "a - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.1\" 20 0",
                "the status is none",
            ),
        ] {
            assert_eq!(read(line.as_bytes()).unwrap_err().reason, reason, "{line}");
        }
        let long = [
            b"a - - [10/Oct/2000:13:55:36 -0700] \"GET /".as_slice(),
            &vec![b'\\'; 100_000],
        ]
        .concat();
        assert!(read(&long).is_err() && read(&[0xff; 100]).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_line_ends_the_program(start in 0..LINE.len(), cut in 0..LINE.len(), byte: u8) {
            let mut line = LINE.as_bytes().to_vec();
            line[start] = byte;
            let _ = read(&line);
            let _ = read(&line[..cut]);
        }
    }
}
