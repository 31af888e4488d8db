//! Lines that are not counted, and why.

use crate::text::escaped;

/// Why a line is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flaw {
    pub reason: &'static str,
    /// The line is whole, and holds no request that `hyper` accepts. So it is decided: it never
    /// reaches a limit.
    pub is_rejected: bool,
}

impl Flaw {
    /// What is no request, if it was answered with an error. With another status the line may
    /// be in another format.
    pub fn of_request(reason: &'static str, status: &[u8]) -> Self {
        Self {
            reason,
            is_rejected: matches!(status, [b'4' | b'5', _, _]),
        }
    }
}

impl From<&'static str> for Flaw {
    fn from(reason: &'static str) -> Self {
        Self {
            reason,
            is_rejected: false,
        }
    }
}

/// Lines of one kind: how many there are, and the first of them.
#[derive(Debug, Default)]
pub struct Lines {
    pub count: u64,
    first: Vec<String>,
}

impl Lines {
    const SHOWN: usize = 5;

    pub fn add(&mut self, number: u64, reason: &str, text: &[u8]) {
        self.count += 1;
        if self.first.len() < Self::SHOWN {
            let text = escaped(&String::from_utf8_lossy(&text[..text.len().min(120)]));
            self.first
                .push(format!("  line {number}: {reason}: {text}"));
        }
    }

    /// The first lines, each on a line of its own.
    pub fn shown(&self) -> String {
        self.first.join("\n")
    }
}
