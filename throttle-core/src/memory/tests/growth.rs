//! Tables and segments: that they grow with their keys and not beyond, and that no shard is large.

use crate::algorithm::Words;
use crate::memory::key_hash::KeyHash;
use crate::memory::slot::{Content, Label};
use crate::memory::store::Store;
use crate::memory::table::Table;

fn label(n: u64) -> Label {
    let number = u128::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    Label::new(
        KeyHash {
            number,
            digested: false,
        },
        1,
    )
}

fn content(n: u64) -> Content {
    Content::new(
        label(n),
        0,
        Words {
            instant: 0,
            amount: 0,
        },
    )
}

#[test]
fn a_growing_table_finds_every_key_and_stays_well_filled() {
    for usual in [0, 100, 1_000_000] {
        let table = Table::new(usual);
        for len in 1..=5_000 {
            table.change().insert(content(len));
            let (len, width) = (len as usize, table.width());
            assert!(
                width > len && width <= len + len / 2 + 64,
                "{len} keys in {width} slots, usually {usual}"
            );
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
        assert!(
            (0..28).all(|n| table.change().find(label(n)).is_some() == is_kept(n)),
            "{kept} keys are kept"
        );
        (100..112).for_each(|n| table.change().insert(content(n)));
        assert!(
            (100..112).all(|n| table.change().find(label(n)).is_some()),
            "{kept} keys are kept"
        );
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
        assert!(
            (n - 49..=n).all(|kept| table.find(label(kept)).is_some()),
            "after {n}"
        );
    }
}

/// So no shard is large, and an absurd limit costs nothing.
#[test]
fn a_store_of_any_size_has_small_shards_and_not_too_many() {
    for max_keys in [1, 128, 129, 10_000, 1_000_000, 1 << 24, usize::MAX] {
        let shards = Store::new(max_keys).shards.len();
        assert!(
            shards <= 16_384,
            "{shards} shards of a store of {max_keys} keys"
        );
        assert!(
            shards == 16_384 || max_keys / shards <= 1_024,
            "{shards} shards of a store of {max_keys} keys"
        );
    }
}
