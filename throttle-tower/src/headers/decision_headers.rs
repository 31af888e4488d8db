use http::{HeaderMap, HeaderValue};

use super::described_decision::DescribedDecision;
use super::dialect::Dialect;
use super::legacy::Standing;
use super::openai::Standings;
use super::policy_header::PolicyHeader;
use super::policy_status::PolicyStatus;
use super::retry_after::RetryAfter;
use super::{draft11, legacy, retry_after};

/// The headers of one decision, formatted before there is a response to write them on.
#[derive(Debug, Default)]
pub(crate) struct DecisionHeaders {
    limits: Limits,
    retry_after: Option<RetryAfter>,
    now_unix_us: u64,
}

#[derive(Debug, Default)]
enum Limits {
    #[default]
    None,
    /// `RateLimit-Policy` and `RateLimit`.
    Lists { policies: Option<HeaderValue>, standing: Option<HeaderValue> },
    /// Of a dialect that describes one policy.
    Single { dialect: Dialect, policies: Option<HeaderValue>, standing: Standing },
    /// Of the dialect that describes a policy of each unit.
    Units(Standings),
}

impl DecisionHeaders {
    /// Formats the headers in the dialect that `announced` was built for.
    ///
    /// `report` has every policy of the decision: the dialects that can describe only one policy choose it among all.
    #[inline]
    pub(crate) fn new<'a, P>(announced: &PolicyHeader, report: DescribedDecision<P>) -> Self
    where
        P: Iterator<Item = PolicyStatus<'a>> + Clone,
    {
        let retry_after = if report.admitted { None } else { report.retry_after };
        let now_unix_us = report.now_unix_us;
        let policies = || announced.value().cloned();
        let limits = match announced.dialect() {
            Dialect::None => Limits::None,
            Dialect::Draft11 => Limits::Lists { policies: policies(), standing: draft11::standing(report) },
            Dialect::OpenAi => Standings::of(&report).map_or(Limits::None, Limits::Units),
            dialect => match Standing::of(dialect, &report) {
                Some(standing) => Limits::Single { dialect, policies: policies(), standing },
                None => Limits::None,
            },
        };
        Self { limits, retry_after, now_unix_us }
    }

    /// The headers for a response that is the refusal of another layer. They announce the policies, and say nothing of
    /// where the client stands with them.
    pub(crate) fn beside_a_refusal(self) -> Self {
        let limits = match self.limits {
            Limits::Lists { policies, .. } => Limits::Lists { policies, standing: None },
            Limits::Single { .. } | Limits::Units(_) | Limits::None => Limits::None,
        };
        Self { limits, ..self }
    }

    /// Writes them once per response. Writing the headers of several decisions, as stacked layers do, only ever tightens
    /// what the response says.
    #[inline]
    pub(crate) fn write(self, headers: &mut HeaderMap) {
        match self.limits {
            Limits::None => {}
            Limits::Lists { policies, standing } => draft11::write(headers, policies, standing),
            Limits::Units(standings) => standings.write(headers),
            Limits::Single { dialect, policies, standing } => legacy::write(headers, dialect, policies, &standing),
        }
        if let Some(wait) = self.retry_after {
            retry_after::write(headers, wait, self.now_unix_us);
        }
    }
}
