//! Restores a memory store from records that a fuzzer wrote, behind a header and before a digest
//! that fit: they are refused, or there is a store that is as full as it may be, in which no key is
//! admitted more than its capacity, and whose own snapshot can be restored.

#![no_main]

use std::hash::Hasher;

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use siphasher::sip128::{Hasher128, SipHasher13};
use throttle_core::backend::{Call, KeyStep};
use throttle_core::{
    Algorithm, Backend, Gcra, Key, ManualClock, MemoryBackend, Policy, PolicySet, Rate,
};
use throttle_fuzz::at_once;
use throttle_fuzz::limits::{START, algorithm, exception, micros};

const MAGIC: &[u8; 20] = b"throttle memory 1\n\0\0";
const MAX_KEYS: usize = 8;
const SECRET: [u8; 56] = [7; 56];
/// Before the first record: the magic, an instant, the secret, and the number of shards.
const HEADER: usize = 20 + 8 + 56 + 8;

fn header(saved_at: i64, shards: u64) -> Vec<u8> {
    [
        &MAGIC[..],
        &saved_at.to_le_bytes(),
        &SECRET,
        &shards.to_le_bytes(),
    ]
    .concat()
}

fn end(mut bytes: Vec<u8>, horizon: i64, keys: u64) -> Vec<u8> {
    bytes.push(b'e');
    bytes.extend(horizon.to_le_bytes());
    bytes.extend(keys.to_le_bytes());
    let mut digest = SipHasher13::new();
    digest.write(&bytes);
    bytes.extend(digest.finish128().as_u128().to_le_bytes());
    bytes
}

fn restore(bytes: &[u8]) -> Option<MemoryBackend<ManualClock>> {
    let builder = MemoryBackend::builder()
        .clock(ManualClock::new(START))
        .max_keys(MAX_KEYS);
    builder.restore(&mut &*bytes).ok()
}

fn set(algorithm: Algorithm) -> PolicySet {
    PolicySet::new(Policy::new("p", algorithm).expect("a name")).expect("a set")
}

/// The number of a short key under the secret.
fn number(key: u64) -> u128 {
    let store = restore(&end(header(START.as_micros(), 1), 0, 0)).expect("an empty snapshot");
    let prepared = store
        .prepare(set(Gcra::new(Rate::per_day(9)).build().expect("a limit")))
        .expect("room");
    assert!(
        store
            .decide_now(&prepared, &[Call::from(Key::from(key))])
            .is_admitted()
    );
    let mut bytes = Vec::new();
    store.snapshot(&mut bytes).expect("a vector");
    // Behind the record of the parameters: the kind, the number of the parameters, and the key.
    let records = &bytes[HEADER..];
    let tag = 2 + usize::from(records[1]);
    let key = tag + 2 + usize::from(u16::from_le_bytes([records[tag], records[tag + 1]]));
    u128::from_le_bytes(*records[key + 5..].first_chunk().expect("16 bytes"))
}

/// A record of any kind, mostly with contents of the right form.
fn record(
    of: &mut Unstructured<'_>,
    parameters: &mut Vec<Algorithm>,
    keys: &[u128],
) -> Result<Vec<u8>> {
    Ok(match of.int_in_range(0..=7_u8)? {
        0 | 1 => {
            let name = *of.choose(&["p", "", "other", "\u{e4}"])?;
            let own = algorithm(of)?;
            parameters.push(own);
            let mut tag = own.tag();
            spoil(of, &mut tag)?;
            let kind = *of.choose(b"ppq")?;
            [
                &[kind, name.len() as u8],
                name.as_bytes(),
                &(tag.len() as u16).to_le_bytes(),
                &tag,
            ]
            .concat()
        }
        2..=5 => {
            let place = if of.ratio(1, 16)? {
                of.arbitrary()?
            } else {
                of.choose_index(parameters.len().max(1))? as u32
            };
            let number = if of.ratio(1, 4)? {
                of.arbitrary()?
            } else {
                *of.choose(keys)?
            };
            let by = parameters.get(place as usize).copied();
            let numbers = by.map_or(2, |by| {
                (by.fresh().to_wire(&by).map_or(0, |state| state.len()) - by.tag().len()) / 8
            });
            let mut state = Vec::new();
            for _ in 0..numbers {
                let number = match of.int_in_range(0..=3_u8)? {
                    0 => START.as_micros() + micros(of)? as i64,
                    1 => START.as_micros() - micros(of)? as i64,
                    2 => of.int_in_range(0..=12)?,
                    _ => of.arbitrary::<i64>()? >> of.int_in_range(0..=63_u32)?,
                };
                state.extend((number as f64).to_le_bytes());
            }
            spoil(of, &mut state)?;
            let kind = *of.choose(b"kkkdo")?;
            [
                &[kind],
                &place.to_le_bytes()[..],
                &number.to_le_bytes(),
                &(state.len() as u32).to_le_bytes(),
                &state,
            ]
            .concat()
        }
        6 => {
            let policy = Policy::new("p", algorithm(of)?).expect("a name");
            let mut bytes = exception(of, &policy, START)?
                .map(|exception| exception.to_wire())
                .unwrap_or_default();
            spoil(of, &mut bytes)?;
            [b"x", &(bytes.len() as u16).to_le_bytes()[..], &bytes].concat()
        }
        _ => of.arbitrary()?,
    })
}

/// Changes, cuts or prolongs some bytes, but seldom.
fn spoil(of: &mut Unstructured<'_>, bytes: &mut Vec<u8>) -> Result<()> {
    match of.int_in_range(0..=31_u8)? {
        0 if !bytes.is_empty() => {
            let at = of.choose_index(bytes.len())?;
            bytes[at] = of.arbitrary()?;
        }
        1 => bytes.truncate(of.int_in_range(0..=bytes.len())?),
        2 => bytes.extend(of.arbitrary::<[u8; 8]>()?),
        _ => {}
    }
    Ok(())
}

fn snapshot(of: &mut Unstructured<'_>, keys: &[u128]) -> Result<Vec<u8>> {
    let saved_at = START.as_micros()
        + if of.ratio(1, 4)? {
            of.arbitrary::<i64>()? >> 12
        } else {
            0
        };
    let mut bytes = header(saved_at, *of.choose(&[1, 1, 2, 0, u64::MAX])?);
    let (mut parameters, mut records) = (Vec::new(), 0);
    for _ in 0..of.int_in_range(0..=12_u8)? {
        let record = record(of, &mut parameters, keys)?;
        records += u64::from(record.first().is_some_and(|kind| b"kdo".contains(kind)));
        bytes.extend(record);
    }
    let horizon = if of.ratio(1, 2)? {
        i64::MIN
    } else {
        of.arbitrary()?
    };
    Ok(end(bytes, horizon, records))
}

fn check(of: &mut Unstructured<'_>, keys: &[u128]) -> Result<()> {
    let bytes = snapshot(of, keys)?;
    let Some(store) = restore(&bytes) else {
        return Ok(());
    };
    assert!(store.keys() <= MAX_KEYS, "{} keys", store.keys());
    let by = algorithm(of)?;
    let prepare = |store: &MemoryBackend<ManualClock>| {
        std::sync::Arc::new(store.prepare(set(by)).expect("room"))
    };
    let prepared = prepare(&store);
    // What it saves again is the same store.
    let mut again = Vec::new();
    store.snapshot(&mut again).expect("a vector");
    let again = restore(&again).expect("the store's own snapshot");
    let same = prepare(&again);
    let excepted: Vec<String> = {
        let answer = store.run(&prepared, 0, KeyStep::Exceptions { most: MAX_KEYS });
        at_once(answer)
            .expect("memory does not fail")
            .into_iter()
            .map(|found| found.key)
            .collect()
    };
    for (key, number) in keys.iter().enumerate() {
        let calls = [Call::from(Key::from(key as u64))];
        let mut admitted = 0;
        for _ in 0..=by.capacity() {
            let decision = store.decide_now(&prepared, &calls);
            assert_eq!(decision, again.decide_now(&same, &calls), "key {key}");
            admitted += u64::from(decision.is_admitted());
        }
        // An exempt key is admitted without an end.
        let is_excepted = excepted.contains(&format!("{number:032x}"));
        assert!(
            is_excepted || admitted <= by.capacity(),
            "key {key}: {admitted} of {by:?}"
        );
    }
    Ok(())
}

thread_local! {
    static NUMBERS: [u128; 3] = [0, 1, 2].map(number);
}

fuzz_target!(|bytes: &[u8]| {
    // Bytes alone are hardly ever a snapshot, but must not fail.
    assert!(restore(bytes).is_none_or(|store| store.keys() <= MAX_KEYS));
    let _ = NUMBERS.with(|keys| check(&mut Unstructured::new(bytes), keys));
});
