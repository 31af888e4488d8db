//! From the descriptors of a request to the hits that the store decides.

use std::collections::HashSet;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use tonic::Status;

use super::CurrentLimits;
use super::hit::{Hit, Standing};
use crate::limits::{Hits, Match};

/// More are for clients that want to keep the server busy.
const MOST_DESCRIPTORS: usize = 1_000;

/// What a request asks for.
pub struct Inquiry {
    pub hits: Vec<Hit>,
    /// For each descriptor.
    pub descriptors: Vec<Demand>,
}

/// What a descriptor asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// No limit, or one that another limit replaces.
    Nothing,
    Unlimited,
    /// The hit of this number.
    Hit(usize),
}

impl Inquiry {
    pub fn new(limits: &CurrentLimits, request: &RateLimitRequest) -> Result<Self, Status> {
        if request.domain.is_empty() {
            return Err(Status::invalid_argument("the domain is empty; name one"));
        }
        if request.descriptors.is_empty() {
            return Err(Status::invalid_argument(
                "there is no descriptor; send at least one",
            ));
        }
        if request.descriptors.len() > MOST_DESCRIPTORS {
            let message = format!("a request has at most {MOST_DESCRIPTORS} descriptors");
            return Err(Status::invalid_argument(message));
        }
        let mut found = Vec::with_capacity(request.descriptors.len());
        for descriptor in &request.descriptors {
            found.push(
                limits
                    .config
                    .find(&request.domain, descriptor)
                    .map_err(Status::invalid_argument)?,
            );
        }
        let rules = found
            .iter()
            .flatten()
            .filter_map(|found| found.rule.as_ref());
        let replaced: HashSet<String> = rules.flat_map(|rule| &rule.replaces).cloned().collect();
        let mut asked = Self {
            hits: Vec::new(),
            descriptors: Vec::new(),
        };
        for (found, descriptor) in found.into_iter().zip(&request.descriptors) {
            let asks = match found {
                Some(found) if found.policy.is_none() => Demand::Unlimited,
                Some(found) if !replaced.contains(found.name()) => {
                    asked.add(found, Hits::of(descriptor, request.hits_addend))
                }
                _ => Demand::Nothing,
            };
            asked.descriptors.push(asks);
        }
        Ok(asked)
    }

    /// Descriptors that are one key of one policy are one hit, of the smallest limit that they bring.
    fn add(&mut self, found: Match, hits: Hits) -> Demand {
        let Some(policy) = found.policy else {
            return Demand::Unlimited;
        };
        let known = self
            .hits
            .iter()
            .position(|hit| hit.policy == policy && hit.found.key == found.key);
        Demand::Hit(match known {
            Some(known) => {
                let hit = &mut self.hits[known];
                hit.hits = hit.hits.and(hits);
                if found.shown.requests_per_unit < hit.found.shown.requests_per_unit {
                    hit.found = found;
                }
                known
            }
            None => {
                self.hits.push(Hit {
                    policy,
                    found,
                    hits,
                    standing: Standing::default(),
                });
                self.hits.len() - 1
            }
        })
    }
}
