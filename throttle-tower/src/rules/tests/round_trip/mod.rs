//! Rules that are written to a file and read again are the same, however the file is laid out.

mod built;
mod layout;
mod model;
mod written;

use http::request::Parts;
use http::{HeaderMap, StatusCode};
use proptest::prelude::*;
use throttle_core::{Key, MemoryBackend};

use self::built::{registry, requests};
use self::model::{Model, model};
use crate::limit::{Applied, Compiled, Keying};
use crate::rules::Rules;
use crate::{OnError, OnMissing};

/// What a limit on rates asks of requests and does with their charges.
#[derive(Debug, PartialEq)]
struct Asked {
    on_missing: OnMissing,
    on_error: Option<OnError>,
    wait_up_to: Option<std::time::Duration>,
    key_deadline: std::time::Duration,
    uses: [bool; 3],
    charges: [bool; 3],
    refunds: Vec<bool>,
    /// Of each request whether the limit applies, the key, and the cost.
    requests: Vec<(bool, Option<Key>, Option<u64>)>,
}

impl Asked {
    fn of(limit: &Applied, requests: &[Parts]) -> Self {
        let rules = &limit.charge_rules;
        let statuses = [200, 302, 304, 404, 503].map(|status| StatusCode::from_u16(status).unwrap());
        let asked = |parts: &Parts| {
            let applies = limit.when.as_ref().is_none_or(|applies| applies(parts));
            let key = match &limit.keying {
                Keying::Extracted(key) => key.extract(parts),
                Keying::Future(_) | Keying::Tiered(_) => None,
            };
            (applies, key, limit.cost.as_ref().map(|cost| cost(parts)))
        };
        Self {
            on_missing: limit.on_missing,
            on_error: limit.on_error,
            wait_up_to: limit.wait_up_to,
            key_deadline: limit.key_deadline,
            uses: [limit.by_route, limit.for_some_routes, limit.by_peer],
            charges: [rules.charge_refused, rules.settled_later, rules.refund_aborted],
            refunds: statuses.into_iter().map(|status| rules.refunds(status, &HeaderMap::new())).collect(),
            requests: requests.iter().map(asked).collect(),
        }
    }
}

/// Everything that a layer has of limits, as far as it can be compared.
fn meaning(compiled: &Compiled, requests: &[Parts]) -> impl PartialEq + std::fmt::Debug + use<> {
    let rates: Vec<Asked> = compiled.applied.iter().map(|limit| Asked::of(limit, requests)).collect();
    let in_flight = compiled.concurrency.iter().map(|(name, limit)| {
        let asked: Vec<_> = requests.iter().map(|parts| limit.ask(parts)).collect();
        (name.clone(), limit.most, limit.for_some_routes, asked)
    });
    (compiled.set.clone(), rates, in_flight.collect::<Vec<_>>(), format!("{:?}", compiled.permit_tree))
}

fn read(text: &str) -> Rules {
    Rules::from_str("f.toml", text, registry()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn check(model: &Model, seeds: [u64; 2]) -> Result<(), TestCaseError> {
    let texts = seeds.map(|seed| model.written(seed));
    let expected = meaning(&model.built().compile().unwrap(), &requests());
    for text in &texts {
        let rules = read(text);
        let found = meaning(&rules.tree().compile().unwrap(), &requests());
        prop_assert!(found == expected, "{found:#?}\nis not what the model means:\n{expected:#?}\n{text}");
        prop_assert_eq!(rules.client_ip(), &model.client_ip(), "{}", text);
        prop_assert_eq!(format!("{:?}", rules.document.settings), model.layer.read(), "{}", text);
    }
    let (_throttle, handle) = read(&texts[0]).layer(MemoryBackend::new()).unwrap();
    let change = handle.replace(&texts[1]).unwrap();
    prop_assert!(change.is_empty(), "{}\n{}\n--\n{}", change, texts[0], texts[1]);
    Ok(())
}

#[test]
fn rules_are_the_same_after_they_were_written_and_read() {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let compare = move || proptest!(config, |(model in model(), seeds: [u64; 2])| check(&model, seeds)?);
    // Drawing a model takes more stack than a test has, if the compiler does not optimise it.
    std::thread::Builder::new().stack_size(16 << 20).spawn(compare).unwrap().join().unwrap();
}
