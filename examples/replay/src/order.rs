//! Brings requests into the order in which they started: logs have them in the order in which they
//! ended.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::entry::Entry;

/// Most requests that are taken together, so that a log of a single second needs no more memory
/// than others.
const MOST_AT_ONCE: usize = 1 << 16;

/// Holds back so many requests, and passes on the one that started first. It needs the same memory
/// for a log of any length. A request that started before one that was passed on is left out.
pub struct Order {
    window: usize,
    heap: BinaryHeap<Reverse<Held>>,
    pushed: u64,
    /// The latest start of those that were pushed, and of those that were passed on.
    latest: i64,
    passed: i64,
    /// Those of one second, to be passed on together.
    together: Vec<Entry>,
    pub moved: u64,
    pub late: u64,
}

impl Order {
    pub fn new(window: usize) -> Self {
        let (latest, passed) = (i64::MIN, i64::MIN);
        Self {
            window,
            heap: BinaryHeap::new(),
            pushed: 0,
            latest,
            passed,
            together: Vec::new(),
            moved: 0,
            late: 0,
        }
    }

    pub fn push(&mut self, entry: Entry, take: &mut impl FnMut(&[Entry])) {
        self.moved += u64::from(entry.start < self.latest);
        self.latest = self.latest.max(entry.start);
        self.heap.push(Reverse(Held {
            start: entry.start,
            number: self.pushed,
            entry: Box::new(entry),
        }));
        self.pushed += 1;
        if self.heap.len() > self.window {
            self.pass_one(take);
        }
    }

    pub fn finish(&mut self, take: &mut impl FnMut(&[Entry])) {
        while !self.heap.is_empty() {
            self.pass_one(take);
        }
        self.pass_together(take);
    }

    fn pass_one(&mut self, take: &mut impl FnMut(&[Entry])) {
        let Some(Reverse(Held { entry, .. })) = self.heap.pop() else {
            return;
        };
        if entry.start < self.passed {
            self.late += 1;
            return;
        }
        self.passed = entry.start;
        let is_alike =
            |first: &Entry| first.start == entry.start && !first.is_precise && !entry.is_precise;
        if !self.together.first().is_some_and(is_alike) || self.together.len() == MOST_AT_ONCE {
            self.pass_together(take);
        }
        self.together.push(*entry);
    }

    fn pass_together(&mut self, take: &mut impl FnMut(&[Entry])) {
        if !self.together.is_empty() {
            take(&self.together);
            self.together.clear();
        }
    }
}

/// A request by its start; of several, in the order of the log.
struct Held {
    start: i64,
    number: u64,
    /// Apart, because a heap moves what it holds.
    entry: Box<Entry>,
}

impl Held {
    const fn place(&self) -> (i64, u64) {
        (self.start, self.number)
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.place().cmp(&other.place())
    }
}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl Eq for Held {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::SECOND;

    /// What is passed on of requests that started at these seconds, and how many were moved, and
    /// were left out because they were too late.
    fn passed(window: usize, starts: &[i64], is_precise: bool) -> (Vec<Vec<i64>>, u64, u64) {
        let line = br#"a - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1" 200 1"#;
        let (mut order, mut passed) = (Order::new(window), Vec::new());
        let mut take = |together: &[Entry]| {
            passed.push(together.iter().map(|entry| entry.start / SECOND).collect());
        };
        for start in starts {
            let entry = crate::combined::read(line).unwrap();
            order.push(
                Entry {
                    start: start * SECOND,
                    is_precise,
                    ..entry
                },
                &mut take,
            );
        }
        order.finish(&mut take);
        (passed, order.moved, order.late)
    }

    #[test]
    fn requests_are_passed_on_by_their_start_within_the_window() {
        let starts = [5, 3, 9, 3, 1];
        assert_eq!(
            passed(9, &starts, true),
            (vec![vec![1], vec![3], vec![3], vec![5], vec![9]], 3, 0)
        );
        assert_eq!(
            passed(9, &starts, false).0,
            [vec![1], vec![3, 3], vec![5], vec![9]]
        );
        assert_eq!(
            passed(1, &starts, true),
            (vec![vec![3], vec![5], vec![9]], 3, 2)
        );
    }
}
