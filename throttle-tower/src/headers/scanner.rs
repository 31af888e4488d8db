//! Reads the parts of a structured field (RFC 9651 §4.2), as strictly as the algorithms there. Each
//! client can read a list that passes, so the layer can add its own members to it.

use smallvec::SmallVec;

/// A value that is a non-negative Integer, the kind of number that all rate-limit headers hold.
/// `None` for any other.
pub(super) type Count = Option<u64>;

/// The input that is not read yet.
pub(super) struct Scanner<'a>(&'a [u8]);

impl<'a> Scanner<'a> {
    pub(super) fn new(input: &'a [u8]) -> Self {
        Self(input)
    }

    pub(super) fn is_done(&self) -> bool {
        self.0.is_empty()
    }

    fn next(&mut self) -> Option<u8> {
        self.0.split_off_first().copied()
    }

    fn eat(&mut self, byte: u8) -> Option<()> {
        self.0 = self.0.strip_prefix(&[byte])?;
        Some(())
    }

    /// The longest start of the input that consists of such bytes.
    fn take(&mut self, is_wanted: impl Fn(u8) -> bool) -> &'a [u8] {
        let end = self.0.iter().position(|byte| !is_wanted(*byte));
        let end = end.unwrap_or(self.0.len());
        self.0.split_off(..end).unwrap_or_default()
    }

    pub(super) fn skip_spaces(&mut self) {
        self.take(|byte| byte == b' ');
    }

    /// Steps over the comma to the next member. `Some(false)` at the end of the list, `None` if it
    /// is broken there, which includes a comma with nothing after it.
    pub(super) fn next_member(&mut self) -> Option<bool> {
        let is_white = |byte| matches!(byte, b' ' | b'\t');
        self.take(is_white);
        if self.is_done() {
            return Some(false);
        }
        self.eat(b',')?;
        self.take(is_white);
        (!self.is_done()).then_some(true)
    }

    pub(super) fn string(&mut self) -> Option<()> {
        self.eat(b'"')?;
        loop {
            match self.next()? {
                b'"' => return Some(()),
                b'\\' => {
                    matches!(self.next()?, b'"' | b'\\').then_some(())?;
                }
                0x20..=0x7E => {}
                _ => return None,
            }
        }
    }

    pub(super) fn parameters(&mut self, mut each: impl FnMut(&'a [u8], Count)) -> Option<()> {
        while self.eat(b';').is_some() {
            self.skip_spaces();
            let key = self.key()?;
            each(key, self.assigned()?);
        }
        Some(())
    }

    pub(super) fn key(&mut self) -> Option<&'a [u8]> {
        matches!(self.0.first()?, b'a'..=b'z' | b'*').then_some(())?;
        Some(
            self.take(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*')),
        )
    }

    /// The value after a key. Without one, the value is true.
    pub(super) fn assigned(&mut self) -> Option<Count> {
        match self.eat(b'=') {
            Some(()) => self.bare_item(),
            None => Some(None),
        }
    }

    pub(super) fn bare_item(&mut self) -> Option<Count> {
        match self.0.first()? {
            b'-' | b'0'..=b'9' => {
                let number = self.number()?;
                return Some(number.and_then(|n| u64::try_from(n).ok()));
            }
            b'"' => self.string()?,
            b'a'..=b'z' | b'A'..=b'Z' | b'*' => {
                self.take(is_token_byte);
            }
            b':' => self.byte_sequence()?,
            b'?' => {
                self.eat(b'?')?;
                matches!(self.next()?, b'0' | b'1').then_some(())?;
            }
            b'@' => {
                self.eat(b'@')?;
                self.number()??;
            }
            b'%' => self.display_string()?,
            _ => return None,
        }
        Some(None)
    }

    /// An Integer of at most 15 digits, or a Decimal of at most 12 and 3, whose value is `None`.
    fn number(&mut self) -> Option<Option<i64>> {
        let sign = if self.eat(b'-').is_some() { -1 } else { 1 };
        let digits = self.digits()?;
        if self.eat(b'.').is_some() {
            let is_short = digits.len() <= 12 && self.digits()?.len() <= 3;
            return is_short.then_some(None);
        }
        let value: i64 = digits.parse().ok()?;
        (digits.len() <= 15).then_some(Some(sign * value))
    }

    /// One digit or more.
    fn digits(&mut self) -> Option<&'a str> {
        let digits = self.take(|byte| byte.is_ascii_digit());
        std::str::from_utf8(digits)
            .ok()
            .filter(|digits| !digits.is_empty())
    }

    /// Base64 between colons. Missing padding and non-zero spare bits pass: RFC 9651 asks parsers
    /// to allow both.
    fn byte_sequence(&mut self) -> Option<()> {
        self.eat(b':')?;
        let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
        let data = self.take(is_base64).len();
        let padding = self.take(|byte| byte == b'=').len();
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
