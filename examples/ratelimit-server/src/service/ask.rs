//! From the descriptors of a request to the hits that the store decides.

use std::collections::BTreeSet;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus;
use tonic::Status;

use super::hit::{Hit, Standing, code, hits_of};
use crate::limits::{Config, Match};

/// More are for clients that want to keep the server busy.
const MOST_DESCRIPTORS: usize = 1_000;

/// What a request asks for.
pub struct Inquiry {
    pub hits: Vec<Hit>,
    /// The answers to the descriptors that are no hits: of these nothing is limited.
    pub statuses: Vec<DescriptorStatus>,
}

impl Inquiry {
    pub fn new(config: &Config, request: &RateLimitRequest) -> Result<Self, Status> {
        let (domain, descriptors) = (&request.domain, &request.descriptors);
        if domain.is_empty() {
            return Err(Status::invalid_argument("the domain is empty; name one"));
        }
        if descriptors.is_empty() || descriptors.len() > MOST_DESCRIPTORS {
            let message = format!("a request has 1 to {MOST_DESCRIPTORS} descriptors");
            return Err(Status::invalid_argument(message));
        }
        let found = descriptors
            .iter()
            .map(|descriptor| config.find(domain, descriptor));
        let found: Result<Vec<_>, _> = found.collect();
        let found = found.map_err(Status::invalid_argument)?;
        let rules = found.iter().flatten().map(|found| &found.rule);
        let rules = rules.filter(|rule| !rule.replaces.is_empty());
        let rules: Vec<_> = rules.cloned().collect();
        let replaced: BTreeSet<&String> = rules.iter().flat_map(|rule| &rule.replaces).collect();
        let mut asked = Self {
            hits: Vec::new(),
            statuses: Vec::new(),
        };
        for (found, descriptor) in found.into_iter().zip(descriptors) {
            let mut status = DescriptorStatus {
                code: code(true),
                ..DescriptorStatus::default()
            };
            if let Some(found) = found {
                match found.rule.policy {
                    None => status.limit_remaining = u32::MAX,
                    Some(_) if replaced.contains(&found.rule.shown.name) => {}
                    Some(policy) => {
                        asked.add(policy, found, hits_of(descriptor, request.hits_addend));
                    }
                }
            }
            asked.statuses.push(status);
        }
        Ok(asked)
    }

    /// Descriptors that are one key of one policy are one hit, of the smallest limit that they
    /// bring.
    fn add(&mut self, policy: usize, found: Match, hits: i128) {
        let descriptor = self.statuses.len();
        let mut known = self.hits.iter_mut();
        match known.find(|hit| hit.policy == policy && hit.found.key == found.key) {
            Some(hit) => {
                hit.hits += hits;
                hit.descriptors.push(descriptor);
                if found.shown.requests_per_unit < hit.found.shown.requests_per_unit {
                    hit.found = found;
                }
            }
            None => self.hits.push(Hit {
                policy,
                found,
                hits,
                descriptors: vec![descriptor],
                standing: Standing::default(),
            }),
        }
    }
}
