use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use throttle_core::backend::Call;
use throttle_core::{Cost, Policy, Status};

use crate::limits::Match;

/// One key of one policy in a request.
pub struct Hit {
    pub policy: usize,
    pub found: Match,
    /// The sum of its descriptors' hits: 0 asks whether one more would be admitted, and less than 0
    /// gives units back.
    pub hits: i128,
    /// The indices of the descriptors that have found it.
    pub descriptors: Vec<usize>,
    pub standing: Standing,
}

/// Where a hit stands after the decision.
#[derive(Default)]
pub struct Standing {
    /// Whether its limit would refuse the request.
    pub refuses: bool,
    pub remaining: u64,
    /// Until the same request is admitted, or until something comes back.
    pub reset: Duration,
    pub wait: Option<Duration>,
}

/// A descriptor's hits go before those of the request, where 0 counts as 1.
pub fn hits_of(descriptor: &RateLimitDescriptor, request: u32) -> i128 {
    let own = descriptor.hits_addend.as_ref().map(|own| own.value);
    let hits = i128::from(own.unwrap_or(request.max(1).into()));
    if descriptor.is_negative_hits {
        -hits
    } else {
        hits
    }
}

impl Hit {
    /// Units that are charged, or given back.
    pub fn units(&self) -> u64 {
        u64::try_from(self.hits.unsigned_abs()).unwrap_or(u64::MAX)
    }

    pub fn is_quota(&self) -> bool {
        self.found.rule.is_quota
    }

    pub fn is_shadow(&self) -> bool {
        self.found.rule.is_shadow
    }

    /// What the store is asked. No wait helps where nothing is admitted: the only unit of its policy
    /// is not enough.
    pub fn call(&self) -> Call {
        let (more, key) = (u64::from(self.found.denies()), self.found.key.clone());
        let call = match self.hits {
            ..0 => Call::peek(key),
            0 => Call::new(key, Cost::at_least_one(1 + more)).peeking(),
            1.. => Call::new(key, Cost::at_least_one(self.units().saturating_add(more))),
        };
        match &self.found.own {
            Some(own) => call.under(own.clone()),
            None => call,
        }
    }

    /// Notes and counts what the store has said.
    pub fn decided(&mut self, policy: &Policy, status: &Status) {
        let own = self.found.own.as_ref().map(|own| policy.under(own));
        let policy = own.as_ref().unwrap_or(policy);
        let (refuses, wait) = (status.refuses(), status.retry_after());
        let is_empty = refuses || self.found.denies();
        let remaining = if is_empty { 0 } else { status.remaining() };
        let reset = match wait.filter(|_| refuses) {
            Some(wait) => wait,
            None => status.effective_window(policy),
        };
        if self.hits > 0 {
            let is_near = remaining < policy.algorithm().capacity() / 5;
            let counters = &self.found.counters;
            counters.count(self.units(), refuses, self.is_shadow(), is_near);
        }
        self.standing = Standing {
            refuses,
            remaining,
            reset,
            wait,
        };
    }

    /// A limit that only watches passes all.
    pub fn passes(&self) -> bool {
        !self.standing.refuses || self.is_shadow()
    }

    /// What a client may read.
    pub fn status(&self) -> DescriptorStatus {
        DescriptorStatus {
            code: code(self.passes()),
            current_limit: Some(self.found.shown.clone()),
            limit_remaining: u32::try_from(self.standing.remaining).unwrap_or(u32::MAX),
            duration_until_reset: Some(envoy_types::pb::google::protobuf::Duration {
                seconds: i64::try_from(seconds(self.standing.reset)).unwrap_or(i64::MAX),
                nanos: 0,
            }),
            ..DescriptorStatus::default()
        }
    }
}

pub fn code(passes: bool) -> i32 {
    let code = if passes { Code::Ok } else { Code::OverLimit };
    code.into()
}

/// Whole seconds, after which the wait is over.
pub fn seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}
