//! Numbers over time, in a bounded number of steps.

use crate::entry::SECOND;

/// Most steps; when there would be more, each becomes twice as long.
const MOST: usize = 240;

/// Counts of several kinds for each step of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline<const N: usize> {
    start: i64,
    /// In microseconds.
    step: i64,
    counts: Vec<[u64; N]>,
}

impl<const N: usize> Default for Timeline<N> {
    fn default() -> Self {
        Self {
            start: 0,
            step: SECOND,
            counts: Vec::new(),
        }
    }
}

impl<const N: usize> Timeline<N> {
    /// Adds counts at an instant that is not before those of former calls.
    pub fn add(&mut self, at: i64, add: [u64; N]) {
        if self.counts.is_empty() {
            self.start = at.div_euclid(SECOND) * SECOND;
        }
        let place = loop {
            let place = usize::try_from((at - self.start).max(0) / self.step).unwrap_or(usize::MAX);
            if place < MOST {
                break place;
            }
            self.step *= 2;
            self.counts = self
                .counts
                .chunks(2)
                .map(|two| std::array::from_fn(|kind| sum(two, kind)))
                .collect();
        };
        self.counts.resize(self.counts.len().max(place + 1), [0; N]);
        self.counts[place]
            .iter_mut()
            .zip(add)
            .for_each(|(count, add)| *count += add);
    }

    /// In microseconds since 1970.
    pub const fn start(&self) -> i64 {
        self.start
    }

    pub const fn step(&self) -> i64 {
        self.step
    }

    pub fn counts(&self) -> &[[u64; N]] {
        &self.counts
    }

    /// A line of blocks for a terminal, at most 60 wide: the highest is the greatest count.
    pub fn blocks(&self, kind: usize) -> String {
        const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let columns = self.counts.chunks(self.counts.len().div_ceil(60).max(1));
        let counts: Vec<u64> = columns.map(|column| sum(column, kind)).collect();
        let most = counts.iter().copied().max().unwrap_or(0).max(1);
        // What is not nothing is seen.
        counts
            .iter()
            .map(|count| BLOCKS[usize::try_from((count * 8).div_ceil(most)).unwrap_or(8)])
            .collect()
    }
}

fn sum<const N: usize>(counts: &[[u64; N]], kind: usize) -> u64 {
    counts.iter().map(|counts| counts[kind]).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_become_longer_and_no_count_is_lost() {
        let mut timeline = Timeline::default();
        for second in 0..100_000 {
            timeline.add(second * SECOND, [1, u64::from(second == 99_999)]);
        }
        assert_eq!(timeline.step(), 512 * SECOND);
        assert_eq!(timeline.counts().len(), 196);
        assert_eq!(
            (sum(timeline.counts(), 0), sum(timeline.counts(), 1)),
            (100_000, 1)
        );
        let blocks = timeline.blocks(1);
        assert_eq!((blocks.trim(), blocks.chars().count()), ("█", 49));
        timeline.add(i64::MAX, [1, 0]);
        assert_eq!(sum(timeline.counts(), 0), 100_001);
    }
}
