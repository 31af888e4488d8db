//! Law 11, keys are injective: different keys never share a bucket, and equal keys always do.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use throttle_core::backend::Call;
use throttle_core::{
    Backend, Gcra, Key, KeyPart, ManualClock, MemoryBackend, Policy, PolicySet, PolicyTree, Rate,
};

use crate::support::strategies::run;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Part {
    Text(String),
    Bytes(Vec<u8>),
    Number(u64),
    Missing,
}

fn part() -> impl Strategy<Value = Part> {
    prop_oneof![
        // Few letters, so that concatenations often look alike.
        4 => "[a:\\x00]{0,4}".prop_map(Part::Text),
        1 => ".{0,40}".prop_map(Part::Text),
        2 => prop::collection::vec(prop::sample::select(vec![0_u8, 1, 2, b'a', b':']), 0..12).prop_map(Part::Bytes),
        2 => prop::sample::select(vec![0_u64, 1, 97, 256, u64::MAX]).prop_map(Part::Number),
        1 => Just(Part::Missing),
    ]
}

fn key(parts: &[Part]) -> Key {
    let add = |builder: throttle_core::KeyBuilder, part: &Part| match part {
        Part::Text(text) => builder.text(text),
        Part::Bytes(bytes) => builder.bytes(bytes),
        Part::Number(number) => builder.number(*number),
        Part::Missing => builder.missing(),
    };
    parts.iter().fold(Key::builder(), add).finish()
}

fn backend() -> MemoryBackend<ManualClock> {
    MemoryBackend::builder()
        .clock(ManualClock::default())
        .build()
}

fn policy(name: &str, burst: u64) -> Policy {
    Policy::new(name, Gcra::new(Rate::per_hour(1)).burst(burst)).expect("valid")
}

/// Every key has one unit: it is admitted the first time its parts occur, and never again.
#[test]
fn law_11_different_parts_never_share_a_bucket_in_memory() {
    let keys = prop::collection::vec(prop::collection::vec(part(), 0..4), 1..60);
    run("keys", &keys, |keys| {
        let backend = backend();
        let set = backend
            .prepare(PolicySet::new(policy("p", 3)).unwrap())
            .unwrap();
        let mut seen = HashMap::new();
        for parts in keys {
            let times = seen.entry(parts.clone()).or_insert(0);
            *times += 1;
            let decision = backend.decide_now(&set, &[Call::from(key(parts))]);
            prop_assert_eq!(
                decision.is_admitted(),
                *times <= 3,
                "{:?} for the {}th time",
                parts,
                times
            );
            prop_assert_eq!(decision.remaining(), 3_u64.saturating_sub(*times));
        }
        Ok(())
    });
}

#[test]
fn trap_v32_joined_parts_stay_apart() {
    let backend = backend();
    let set = backend
        .prepare(PolicySet::new(policy("p", 1)).unwrap())
        .unwrap();
    let pair = |a: &str, b: &str| Call::from(Key::builder().text(a).text(b).finish());
    assert!(backend.decide_now(&set, &[pair("a:b", "c")]).is_admitted());
    assert!(backend.decide_now(&set, &[pair("a", "b:c")]).is_admitted());
    assert!(!backend.decide_now(&set, &[pair("a:b", "c")]).is_admitted());
    assert!(!backend.decide_now(&set, &[pair("a", "b:c")]).is_admitted());
}

/// The first bits of addresses, for every number of bits: two addresses share a key exactly if they
/// share these bits.
#[test]
fn law_11_networks_are_the_first_bits_of_addresses_and_how_many() {
    let v4 = [0x0102_0304_u32, 0x0102_0305, 0x8102_0304, u32::MAX, 0].map(Ipv4Addr::from);
    let v6 = [
        0x2001_0db8_0001_0002_0003_0004_0005_0006_u128,
        0x2001_0db8_0001_0002_0003_0004_0005_0007,
        u128::MAX,
        1 << 127,
    ];
    let network = |address: IpAddr, bits: u8| Key::builder().network(address, bits).finish();
    let mut keys = HashSet::new();
    for bits in 0..=255_u8 {
        for address in v4 {
            let kept = bits.min(32);
            let mask = if kept == 0 {
                0
            } else {
                u32::MAX << (32 - kept)
            };
            let first = IpAddr::from(Ipv4Addr::from(u32::from(address) & mask));
            let key = network(address.into(), bits);
            assert!(
                key.expose_parts().eq([KeyPart::Network(first, kept)]),
                "{address}/{bits}"
            );
            assert_eq!(
                key,
                network(address.to_ipv6_mapped().into(), bits),
                "the same bits of a mapped address"
            );
            assert_eq!(key, network(first, kept));
            keys.insert((key, first, kept));
        }
        for address in v6.map(Ipv6Addr::from) {
            let kept = bits.min(128);
            let mask = if kept == 0 {
                0
            } else {
                u128::MAX << (128 - kept)
            };
            let first = IpAddr::from(Ipv6Addr::from(u128::from(address) & mask));
            let key = network(address.into(), bits);
            assert!(
                key.expose_parts().eq([KeyPart::Network(first, kept)]),
                "{address}/{bits}"
            );
            assert_eq!(key.expose_bytes().len(), 2 + usize::from(kept.div_ceil(8)));
            let behind = Key::builder()
                .network(address.into(), bits)
                .number(7)
                .finish();
            assert!(
                behind
                    .expose_parts()
                    .eq([KeyPart::Network(first, kept), KeyPart::Number(7)])
            );
            keys.insert((key, first, kept));
        }
    }
    let distinct: HashSet<&Key> = keys.iter().map(|(key, ..)| key).collect();
    assert_eq!(
        distinct.len(),
        keys.len(),
        "each network has a key of its own"
    );
    assert_eq!(
        network(v6[0].to_be_bytes().into(), 128),
        Key::from(IpAddr::from(v6[0].to_be_bytes()))
    );
    assert_eq!(network(v4[0].into(), 32), Key::from(IpAddr::from(v4[0])));
}

/// A request hashes a key once for calls that follow each other; keys of 16 bytes and more are no
/// numbers by which they could be compared.
#[test]
fn law_11_long_keys_of_one_request_never_share_a_bucket_in_memory() {
    let backend = backend();
    let members = ["p", "q", "r"].map(|name| policy(name, 3).into());
    let all = PolicySet::new(PolicyTree::All(members.to_vec())).unwrap();
    let set = backend.prepare(all).unwrap();
    let call = |key: &str| Call::from(Key::from(key));
    let [one, other] = ["the first of two long keys", "the second of two long keys"];
    let remaining = |calls: &[Call]| {
        let decision = backend.decide_now(&set, calls);
        [0, 1, 2].map(|policy| decision.statuses()[policy].remaining())
    };
    let charged = [call(one), call(other), call(one)];
    // New keys, and keys that are known.
    assert_eq!(remaining(&charged), [2, 2, 2]);
    assert_eq!(remaining(&charged), [1, 1, 1]);
    let peeks = |key| [0, 1, 2].map(|_| call(key).costing(0));
    assert_eq!(remaining(&peeks(one)), [1, 3, 1]);
    assert_eq!(remaining(&peeks(other)), [3, 1, 3]);
}
