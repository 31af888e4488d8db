//! Prints one line for each step of a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use throttle_tower::{Key, Usage};

use crate::limits::{Left, TOKENS};

/// Long enough for the layer to see the end of a response that has just ended.
const SETTLED: Duration = Duration::from_millis(20);

#[derive(Clone)]
pub struct Board {
    left: Left,
    requests: Arc<AtomicU64>,
}

/// One request on the board.
#[derive(Clone)]
pub struct Row {
    board: Board,
    number: u64,
    client: String,
    key: Key,
    estimate: u64,
}

impl Board {
    pub fn new(left: Left) -> Self {
        Self {
            left,
            requests: Arc::default(),
        }
    }

    pub fn title(&self) {
        println!(
            "key   request   estimate  held  used   what happened       tokens left  month left"
        );
    }

    pub fn row(&self, client: &str, key: Key, estimate: u64) -> Row {
        let number = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        // The client chose this text and it goes to a terminal, so keep only harmless characters.
        let client = client
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .take(5)
            .collect();
        Row {
            board: self.clone(),
            number,
            client,
            key,
            estimate,
        }
    }
}

impl Row {
    pub fn print(&self, usage: &Usage, happened: &str) {
        self.write(
            usage.taken(TOKENS),
            usage.used(TOKENS).unwrap_or(0),
            happened,
        );
    }

    /// Prints the line a moment later, when the usage has been settled.
    pub fn print_later(&self, usage: Usage, happened: &'static str) {
        let row = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(SETTLED).await;
            row.print(&usage, happened);
        });
    }

    fn write(&self, held: u64, used: u64, happened: &str) {
        let Self {
            number,
            client,
            estimate,
            ..
        } = self;
        let [minute, month] = self.board.left.of(&self.key).map(grouped);
        let number = format!("#{number}");
        println!(
            "{client:<5} {number:<9} {estimate:>8} {held:>5} {used:>5}   {happened:<17} {minute:>13} {month:>11}"
        );
    }
}

/// 5000 as `5 000`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}
