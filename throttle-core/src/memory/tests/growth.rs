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

/// By an eighth until it has the width that as many keys as usual need, and by a sixteenth from there.
#[test]
fn a_table_grows_by_a_part_of_its_width_when_seven_eighths_of_it_are_used() {
    for (usual, usual_width) in [(0, 0), (100, 112), (1_000, 1_136), (1_000_000, 1_142_856)] {
        let table = Table::new(usual);
        let mut width = table.width();
        for len in 1..=2_000 {
            table.change().insert(content(len));
            let part = if width < usual_width { (width / 8).min(usual_width - width) } else { width / 16 };
            let expected = if len as usize * 8 > width * 7 { width + part.max(8) } else { width };
            assert_eq!(table.width(), expected, "{len} keys in {width} slots, usually {usual}");
            width = expected;
        }
        assert!((1..=2_000).all(|n| table.change().find(label(n)).is_some()));
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

#[test]
fn a_store_has_about_one_shard_for_each_128_keys_and_1_024_at_most() {
    let shards = [(1, 1), (128, 1), (129, 2), (300, 4), (10_000, 128), (131_072, 1_024), (usize::MAX, 1_024)];
    for (max_keys, shards) in shards {
        assert_eq!(Store::new(max_keys).shards.len(), shards, "of a store of {max_keys} keys");
    }
}
