//! One key of one policy, and its state.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::key_hash::KeyHash;
use super::policies::{CallParameters, Policies, UNNUMBERED};
use super::sync::AtomicU64;
use crate::algorithm::{Algorithm, Words};

/// What a slot is found by: a hashed key and a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Label {
    number: u128,
    tag: u64,
}

const DIGESTED: u64 = 1 << 10;
/// Overflow buckets of each policy for parameters without a number.
const UNNUMBERED_BUCKETS: u64 = 64;
/// 2^64 over the golden ratio: its multiples are spread evenly.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Label {
    #[inline]
    pub(super) fn new(key: KeyHash, policy: u16) -> Self {
        let flag = if key.digested { DIGESTED } else { 0 };
        // No policy has the number 0, which marks an empty slot.
        Self {
            number: key.number,
            tag: flag | u64::from(policy),
        }
    }

    /// The overflow bucket, which new keys of the same parameters share when the store is full.
    /// Digests are random, so none is such a small number.
    pub(super) fn overflow(parameters: CallParameters<'_>) -> Self {
        let bucket = match parameters.unnumbered() {
            None => u64::from(parameters.writer),
            // So that memory is bounded, some of these share a bucket.
            Some(unnumbered) => {
                let hash =
                    BuildHasherDefault::<DefaultHasher>::default().hash_one(unnumbered.tag());
                u64::from(UNNUMBERED) + hash % UNNUMBERED_BUCKETS
            }
        };
        Self::new(
            KeyHash {
                number: u128::from(bucket),
                digested: true,
            },
            parameters.policy,
        )
    }

    pub(super) fn is_overflow(self) -> bool {
        self.number < u128::from(u64::from(UNNUMBERED) + UNNUMBERED_BUCKETS) && self.is_digested()
    }

    /// The hashed key.
    pub(super) fn number(self) -> u128 {
        self.number
    }

    pub(super) fn is_digested(self) -> bool {
        self.tag & DIGESTED != 0
    }

    pub(super) fn policy(self) -> u16 {
        (self.tag & (DIGESTED - 1)) as u16
    }

    /// The slot of a table that is looked at first: the order, scaled to the table's width.
    #[inline]
    pub(super) fn home(self, width: usize) -> usize {
        ((u128::from(self.order()) * width as u128) >> 64) as usize
    }

    #[inline]
    fn order(self) -> u64 {
        order(self.number as u64, self.tag)
    }
}

/// The order of labels in a table: of the low half of the number, because the high half has chosen
/// the shard. Policies of one key, which share its number, are far apart.
#[inline]
fn order(low: u64, tag: u64) -> u64 {
    low.wrapping_add(tag.wrapping_mul(SPREAD))
}

/// What a slot holds: 32 bytes, the state beside the key.
///
/// `instant` holds the number of the parameters that wrote the state in its top 8 bits, and the
/// state's instant in the rest. `amount` holds the label's tag in its top 11 bits and the state's
/// amount, which is below 2^53, in the rest. For a state larger than two words, or of parameters
/// without a number, the amount is its index among the large states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Content {
    number: u128,
    instant: u64,
    amount: u64,
}

const INSTANT_BITS: u32 = 56;
const AMOUNT_BITS: u32 = 53;

impl Content {
    pub(super) const EMPTY: Self = Self {
        number: 0,
        instant: 0,
        amount: 0,
    };

    pub(super) fn new(label: Label, writer: u8, words: Words) -> Self {
        let Label { number, tag } = label;
        Self {
            number,
            instant: instant(writer, words),
            amount: amount(tag, words),
        }
    }

    pub(super) fn words(&self) -> Words {
        Words {
            instant: self.instant.cast_signed() << 8 >> 8,
            amount: self.amount << 11 >> 11,
        }
    }

    /// The number of the parameters that wrote the state.
    pub(super) fn writer(&self) -> u8 {
        (self.instant >> INSTANT_BITS) as u8
    }

    /// The parameters that wrote the state, if they have a number.
    #[inline]
    pub(super) fn algorithm<'a>(&self, policies: &'a Policies) -> Option<&'a Arc<Algorithm>> {
        policies.algorithm(self.label().policy(), self.writer())
    }

    pub(super) fn label(&self) -> Label {
        Label {
            number: self.number,
            tag: self.amount >> AMOUNT_BITS,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.amount >> AMOUNT_BITS == 0
    }
}

#[inline]
fn instant(writer: u8, words: Words) -> u64 {
    (words.instant.cast_unsigned() << (u64::BITS - INSTANT_BITS) | u64::from(writer))
        .rotate_left(INSTANT_BITS)
}

#[inline]
fn amount(tag: u64, words: Words) -> u64 {
    tag << AMOUNT_BITS | words.amount
}

/// Room for one key. A thread that writes it has begun a change of its shard's version, and a
/// thread that reads it looks at the version afterwards, so the parts of a slot need no order of
/// their own.
#[derive(Debug, Default)]
#[repr(align(32))]
pub(super) struct Slot {
    number: [AtomicU64; 2],
    instant: AtomicU64,
    amount: AtomicU64,
}

/// What a slot holds, seen from a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occupant {
    Same,
    /// A label that stands before it in the order.
    Before,
    /// One that stands behind it, or none.
    BehindOrNone,
}

impl Slot {
    #[inline]
    pub(super) fn occupant(&self, label: Label) -> Occupant {
        let tag = self.amount.load(Ordering::Relaxed) >> AMOUNT_BITS;
        let [low, high] =
            [&self.number[0], &self.number[1]].map(|half| half.load(Ordering::Relaxed));
        if low == label.number as u64 && high == high_half(label.number) && tag == label.tag {
            Occupant::Same
        } else if tag == 0 || order(low, tag) > label.order() {
            Occupant::BehindOrNone
        } else {
            Occupant::Before
        }
    }

    /// The number of the parameters that wrote the state, and the state.
    #[inline]
    pub(super) fn state(&self) -> (u8, Words) {
        let content = Content {
            number: 0,
            instant: self.instant.load(Ordering::Relaxed),
            amount: self.amount.load(Ordering::Relaxed),
        };
        (content.writer(), content.words())
    }

    /// The state, if the parameters of that number wrote it.
    #[inline]
    pub(super) fn words_of(&self, writer: u8) -> Option<Words> {
        let (of, words) = self.state();
        (of == writer).then_some(words)
    }

    #[inline]
    pub(super) fn content(&self) -> Content {
        let [low, high] = &self.number;
        let number = u128::from(high.load(Ordering::Relaxed)) << 64
            | u128::from(low.load(Ordering::Relaxed));
        let (instant, amount) = (
            self.instant.load(Ordering::Relaxed),
            self.amount.load(Ordering::Relaxed),
        );
        Content {
            number,
            instant,
            amount,
        }
    }

    /// Empties the slot. `None` if it was.
    #[inline]
    pub(super) fn take(&self) -> Option<Content> {
        let content = self.content();
        self.amount.store(0, Ordering::Relaxed);
        Some(content).filter(|content| !content.is_empty())
    }

    #[inline]
    pub(super) fn put(&self, content: Content) {
        let [low, high] = &self.number;
        low.store(content.number as u64, Ordering::Relaxed);
        high.store(high_half(content.number), Ordering::Relaxed);
        self.instant.store(content.instant, Ordering::Relaxed);
        self.amount.store(content.amount, Ordering::Relaxed);
    }

    /// Replaces the state, and the number of the parameters that wrote it.
    #[inline]
    pub(super) fn set(&self, writer: u8, words: Words) {
        let tag = self.amount.load(Ordering::Relaxed) >> AMOUNT_BITS;
        self.instant
            .store(instant(writer, words), Ordering::Relaxed);
        self.amount.store(amount(tag, words), Ordering::Relaxed);
    }
}

#[inline]
fn high_half(number: u128) -> u64 {
    (number >> 64) as u64
}
