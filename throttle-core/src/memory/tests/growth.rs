//! Tables and segments: when a table grows, by how much, and how many shards a store has.

use crate::algorithm::Words;
use crate::memory::key_hash::KeyHash;
use crate::memory::segments::Segments;
use crate::memory::slot::{Content, Label};
use crate::memory::store::Store;
use crate::memory::table::Table;

fn label(n: u64) -> Label {
    let number = u128::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    Label::new(KeyHash { number, digested: false }, 0)
}

fn content(n: u64) -> Content {
    Content::new(label(n), 0, Words { instant: 0, amount: 0 })
}

/// By an eighth of its width, or a sixteenth of a large one, in whole segments and by one at least.
#[test]
fn a_table_grows_by_a_part_of_its_width_when_seven_eighths_of_it_are_used() {
    for usual in [0, 100, 1_000_000] {
        let table = Table::new(usual);
        let mut width = 0;
        for len in 1..=5_000 {
            assert_eq!(table.change().is_full(), len as usize * 8 > width * 7, "{len} keys in {width} slots");
            table.change().insert(content(len));
            let part = if width < 1_024 { width / 8 } else { width / 16 };
            let grown = width + (part / 32).max(1) * 32;
            let expected = if len as usize * 8 > width * 7 { grown } else { width };
            assert_eq!(table.width(), expected, "{len} keys in {width} slots, usually {usual}");
            width = expected;
        }
        assert!((1..=5_000).all(|n| table.change().find(label(n)).is_some()));
    }
}

/// Then more keys come before it is full again than it has looked at.
#[test]
fn a_full_table_of_which_half_is_forgotten_does_not_grow() {
    for (kept, grows) in [(0, false), (15, false), (16, true), (28, true)] {
        let table = Table::new(100);
        (0..28).for_each(|n| table.change().insert(content(n)));
        assert!(table.change().is_full() && table.width() == 32);
        let is_kept = |n: u64| (0..kept).contains(&n);
        let numbers: Vec<_> = (0..28).map(|n| (content(n).label(), is_kept(n))).collect();
        let keep = |content: &Content| numbers.contains(&(content.label(), true));
        table.change().rebuild(keep);
        assert_eq!(table.width() > 32, grows, "{kept} keys are kept");
        assert!((0..28).all(|n| table.change().find(label(n)).is_some() == is_kept(n)), "{kept} keys are kept");
        (100..112).for_each(|n| table.change().insert(content(n)));
        assert!((100..112).all(|n| table.change().find(label(n)).is_some()), "{kept} keys are kept");
    }
}

#[test]
fn a_table_whose_keys_come_and_go_does_not_grow() {
    let table = Table::new(100);
    (0..50).for_each(|n| table.change().insert(content(n)));
    let width = table.width();
    for n in 50..1_000 {
        let mut table = table.change();
        let index = table.find(label(n - 50)).expect("it is there");
        table.remove(index);
        table.insert(content(n));
        assert_eq!(table.width(), width);
        assert!((n - 49..=n).all(|kept| table.find(label(kept)).is_some()), "after {n}");
    }
}

#[test]
fn an_absurd_number_of_slots_costs_no_more_than_those_that_are_used() {
    let segments = Segments::new(usize::MAX);
    segments.extend(1_000, 1_001);
    segments.extend(1_000_000, 1_000_001);
    assert!(segments.get(1_000).is_some() && segments.get(1_000_000).is_some());
    assert!(segments.get(10_000).is_none());
}

/// So a large store has no large shards, and an absurd limit costs nothing.
#[test]
fn a_store_has_a_shard_for_each_128_keys_until_1_024_and_then_one_for_each_1_024_keys() {
    let few = [(1, 1), (128, 1), (129, 2), (300, 4), (10_000, 128), (131_072, 1_024)];
    let many = [(1_000_000, 1_024), (1 << 20, 1_024), (5_000_000, 8_192), (1 << 24, 16_384), (usize::MAX, 16_384)];
    for (max_keys, shards) in few.into_iter().chain(many) {
        assert_eq!(Store::new(max_keys).shards.len(), shards, "of a store of {max_keys} keys");
    }
}
