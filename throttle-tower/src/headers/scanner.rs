//! Reads the parts of a structured field (RFC 9651 §4.2), as strictly as the algorithms there: a
//! list that passes is readable for every client, so that our members can be put beside its own.

use smallvec::SmallVec;

/// A value, of which only Integers are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bare {
    Integer(i64),
    Other,
}

impl Bare {
    /// The kind of number that all rate-limit headers hold.
    pub(super) fn count(self) -> Option<u64> {
        match self {
            Self::Integer(n) => u64::try_from(n).ok(),
            Self::Other => None,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Scanner<'a> {
    input: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(input: &'a [u8]) -> Self {
        Self { input, at: 0 }
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// The input between two positions, empty if there is none.
    pub(super) fn between(&self, from: usize, to: usize) -> &'a [u8] {
        self.input.get(from..to).unwrap_or_default()
    }

    pub(super) fn is_done(&self) -> bool {
        self.at >= self.input.len()
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.input.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    pub(super) fn eat(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    fn skip(&mut self, wanted: impl Fn(u8) -> bool) {
        while self.peek().is_some_and(&wanted) {
            self.at += 1;
        }
    }

    pub(super) fn skip_spaces(&mut self) {
        self.skip(|b| b == b' ');
    }

    /// Steps over the comma to the next member. `Some(false)` at the end of the list, `None` if it
    /// is broken there, which includes a comma with nothing after it.
    pub(super) fn next_member(&mut self) -> Option<bool> {
        let white = |b| matches!(b, b' ' | b'\t');
        self.skip(white);
        if self.is_done() {
            return Some(false);
        }
        self.eat(b',')?;
        self.skip(white);
        (!self.is_done()).then_some(true)
    }

    /// The inside of a String, still escaped. Only `"` and `\` can be escaped and both must be, so
    /// two Strings are equal exactly if their insides are.
    pub(super) fn string(&mut self) -> Option<&'a [u8]> {
        self.eat(b'"')?;
        let start = self.at;
        loop {
            match self.next()? {
                b'"' => return Some(self.between(start, self.at - 1)),
                b'\\' => {
                    matches!(self.next()?, b'"' | b'\\').then_some(())?;
                }
                0x20..=0x7E => {}
                _ => return None,
            }
        }
    }

    pub(super) fn parameters(&mut self, mut each: impl FnMut(&'a [u8], Bare)) -> Option<()> {
        while self.peek() == Some(b';') {
            self.at += 1;
            self.skip_spaces();
            let key = self.key()?;
            each(key, self.assigned()?);
        }
        Some(())
    }

    pub(super) fn key(&mut self) -> Option<&'a [u8]> {
        let start = self.at;
        matches!(self.peek()?, b'a'..=b'z' | b'*').then_some(())?;
        self.skip(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*'));
        Some(self.between(start, self.at))
    }

    /// What follows a key: a value, or nothing, which stands for true.
    pub(super) fn assigned(&mut self) -> Option<Bare> {
        if self.peek() == Some(b'=') {
            self.at += 1;
            self.bare_item()
        } else {
            Some(Bare::Other)
        }
    }

    pub(super) fn bare_item(&mut self) -> Option<Bare> {
        match self.peek()? {
            b'-' | b'0'..=b'9' => return self.number(),
            b'"' => self.string().map(drop)?,
            b'a'..=b'z' | b'A'..=b'Z' | b'*' => self.skip(is_token_byte),
            b':' => self.byte_sequence()?,
            b'?' => {
                self.at += 1;
                matches!(self.next()?, b'0' | b'1').then_some(())?;
            }
            b'@' => {
                self.at += 1;
                matches!(self.number()?, Bare::Integer(_)).then_some(())?;
            }
            b'%' => self.display_string()?,
            _ => return None,
        }
        Some(Bare::Other)
    }

    /// An Integer of at most 15 digits, or a Decimal of at most 12 and 3.
    fn number(&mut self) -> Option<Bare> {
        let negative = self.peek() == Some(b'-');
        self.at += usize::from(negative);
        let (whole, digits) = self.digits()?;
        if self.peek() != Some(b'.') {
            return (digits <= 15).then_some(Bare::Integer(if negative { -whole } else { whole }));
        }
        self.at += 1;
        let (_, decimals) = self.digits()?;
        (digits <= 12 && decimals <= 3).then_some(Bare::Other)
    }

    /// One digit or more: their value, saturated (no caller uses a value of that many digits), and
    /// their number.
    fn digits(&mut self) -> Option<(i64, usize)> {
        let start = self.at;
        let mut value: i64 = 0;
        while let Some(digit @ b'0'..=b'9') = self.peek() {
            value = value
                .saturating_mul(10)
                .saturating_add(i64::from(digit - b'0'));
            self.at += 1;
        }
        (self.at > start).then_some((value, self.at - start))
    }

    /// Base64 between colons. Missing padding and non-zero spare bits pass: RFC 9651 asks parsers
    /// to allow both.
    fn byte_sequence(&mut self) -> Option<()> {
        self.eat(b':')?;
        let start = self.at;
        self.skip(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/'));
        let data = self.at - start;
        self.skip(|b| b == b'=');
        let padding = self.at - start - data;
        self.eat(b':')?;
        let wanted = data.next_multiple_of(4) - data;
        (wanted <= 2 && padding <= wanted).then_some(())
    }

    /// Percent-encoded UTF-8 between `%"` and `"`.
    fn display_string(&mut self) -> Option<()> {
        self.eat(b'%')?;
        self.eat(b'"')?;
        let mut decoded: SmallVec<[u8; 64]> = SmallVec::new();
        loop {
            match self.next()? {
                b'"' => return std::str::from_utf8(&decoded).is_ok().then_some(()),
                b'%' => decoded.push(hex_digit(self.next()?)? << 4 | hex_digit(self.next()?)?),
                byte @ 0x20..=0x7E => decoded.push(byte),
                _ => return None,
            }
        }
    }
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte)
}

/// Lower case only: RFC 9651 forbids the other.
fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}
