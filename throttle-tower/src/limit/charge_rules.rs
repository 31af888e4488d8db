use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use throttle_core::backend::Ban;

use crate::throttle::{CHARGE_STEPS, ChargeSteps};

/// What a limit says about the charges of requests that have ended. By default nothing: what was
/// taken stays taken.
#[derive(Clone, Default)]
pub(crate) struct ChargeRules {
    /// What the rules need, once one of them is set.
    pub(crate) steps: Option<&'static ChargeSteps>,
    pub(crate) refund_if: Option<ByOutcome>,
    pub(crate) refund_aborted: bool,
    pub(crate) charge_refused: bool,
    pub(crate) settled_later: bool,
    pub(crate) ban: Option<Ban>,
    pub(crate) strike_if: Option<ByOutcome>,
}

type ByOutcome = Arc<dyn Fn(StatusCode, &HeaderMap) -> bool + Send + Sync>;

impl ChargeRules {
    /// These rules, of which some is to be set.
    pub(super) fn used(&mut self) -> &mut Self {
        self.steps = Some(&CHARGE_STEPS);
        self
    }

    /// Whether an admitted request's charge may change, or its response may be a strike.
    pub(crate) fn may_change(&self) -> bool {
        self.refund_if.is_some()
            || self.refund_aborted
            || self.settled_later
            || self.strike_if.is_some()
    }

    pub(crate) fn strikes(&self, status: StatusCode, headers: &HeaderMap) -> bool {
        self.strike_if
            .as_ref()
            .is_some_and(|strikes| strikes(status, headers))
    }

    pub(crate) fn refunds(&self, status: StatusCode, headers: &HeaderMap) -> bool {
        self.refund_if
            .as_ref()
            .is_some_and(|refunds| refunds(status, headers))
    }
}

/// Returns whether a response is a success or a redirection: 2xx and 3xx. To refund such requests
/// makes a limit one on failures, for example of logins.
#[must_use]
pub fn successful(status: StatusCode, _: &HeaderMap) -> bool {
    status.is_success() || status.is_redirection()
}

/// Returns whether a response is an error, of the client or of the server: 4xx and 5xx. To refund
/// such requests makes a limit one on successful responses.
#[must_use]
pub fn failed(status: StatusCode, _: &HeaderMap) -> bool {
    status.is_client_error() || status.is_server_error()
}

/// Returns whether a response is an error of the server: 5xx.
#[must_use]
pub fn server_error(status: StatusCode, _: &HeaderMap) -> bool {
    status.is_server_error()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Constant, FixedWindow, Limit, Rate, limit};

    fn rules(change: impl FnOnce(Limit) -> Limit) -> ChargeRules {
        change(limit("p", FixedWindow::new(Rate::per_hour(5))).by(Constant))
            .applied
            .charge_rules
    }

    #[test]
    fn charge_is_final_unless_a_rule_may_change_it() {
        assert!(!rules(|limit| limit).may_change());
        assert!(
            !rules(Limit::charge_refused).may_change(),
            "of an admitted request"
        );
        let changing: [fn(Limit) -> Limit; 3] = [
            |limit: Limit| limit.refund_if(limit::failed),
            Limit::refund_aborted,
            Limit::settled_later,
        ];
        for change in changing {
            assert!(rules(change).may_change());
        }
    }

    #[test]
    fn each_option_sets_its_own_rule() {
        let set = |rules: ChargeRules| {
            (
                rules.refund_aborted,
                rules.charge_refused,
                rules.settled_later,
            )
        };
        assert_eq!(set(rules(|limit| limit)), (false, false, false));
        assert_eq!(set(rules(Limit::refund_aborted)), (true, false, false));
        assert_eq!(set(rules(Limit::charge_refused)), (false, true, false));
        assert_eq!(set(rules(Limit::settled_later)), (false, false, true));
    }

    #[test]
    fn statuses_are_refunded_by_their_class() {
        let refunded = |change: fn(Limit) -> Limit| {
            let statuses = [100, 199, 200, 299, 300, 399, 400, 499, 500, 599, 600];
            let refunds = |status: &u16| {
                rules(change).refunds(
                    StatusCode::from_u16(*status).expect("a status"),
                    &HeaderMap::new(),
                )
            };
            statuses.into_iter().filter(refunds).collect::<Vec<_>>()
        };
        assert_eq!(refunded(|limit| limit), [0; 0]);
        assert_eq!(
            refunded(|limit| limit.refund_if(limit::successful)),
            [200, 299, 300, 399]
        );
        assert_eq!(
            refunded(|limit| limit.refund_if(limit::failed)),
            [400, 499, 500, 599]
        );
        assert_eq!(
            refunded(|limit| limit.refund_if(limit::server_error)),
            [500, 599]
        );
        assert_eq!(
            refunded(|limit| limit
                .refund_if(limit::successful)
                .refund_if(limit::server_error)),
            [200, 299, 300, 399, 500, 599]
        );
        let one = |status: u16| move |asked: StatusCode, _: &HeaderMap| asked == status;
        let three = rules(|limit| {
            limit
                .refund_if(one(201))
                .refund_if(one(202))
                .refund_if(one(203))
        });
        let refunds =
            |status| three.refunds(StatusCode::from_u16(status).unwrap(), &HeaderMap::new());
        assert_eq!(
            [200, 201, 202, 203, 204].map(refunds),
            [false, true, true, true, false]
        );
    }
}
