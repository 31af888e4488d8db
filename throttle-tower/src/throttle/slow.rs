use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::Request;
use http::request::Parts;
use pin_project_lite::pin_project;
use throttle_core::Backend;

use super::rules::{Asked, Calls, Judged, Rules};
use crate::limit::FutureKey;

pin_project! {
    /// A request that waits for its keys, then for its decision. It takes along the service that was found ready.
    pub(super) struct Slow<S, B, ReqBody>
    where
        B: Backend,
    {
        rules: Arc<Rules<B>>,
        calls: Calls,
        keys: Vec<(usize, u64, FutureKey)>,
        #[pin]
        decision: Option<B::Decide>,
        held: Option<(S, Parts, ReqBody)>,
    }
}

/// What becomes of a request that had to wait, with the service that it was meant for.
pub(super) type Decided<S, ReqBody> = (Judged, S, Request<ReqBody>);

impl<S, B: Backend, ReqBody> Slow<S, B, ReqBody> {
    pub(super) fn new(rules: Arc<Rules<B>>, asked: Asked, held: (S, Parts, ReqBody)) -> Self {
        Self { rules, calls: asked.calls, keys: asked.waiting, decision: None, held: Some(held) }
    }
}

impl<S, B: Backend, ReqBody> Future for Slow<S, B, ReqBody> {
    type Output = Decided<S, ReqBody>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        // All keys are looked up at the same time.
        let mut next = 0;
        while let Some((index, cost, key)) = this.keys.get_mut(next) {
            let Poll::Ready((key, tier)) = key.as_mut().poll(cx) else {
                next += 1;
                continue;
            };
            let parts = &this.held.as_ref().expect(POLLED_AGAIN).1;
            match this.rules.call(*index, *cost, key, parts) {
                Ok(call) => this.calls[*index] = call.in_tier(tier),
                Err(refusal) => {
                    let (inner, parts, body) = this.held.take().expect(POLLED_AGAIN);
                    return Poll::Ready((Judged::Refuse(*refusal), inner, Request::from_parts(parts, body)));
                }
            }
            // In order, so that of several missing keys the first one's rule decides.
            drop(this.keys.remove(next));
        }
        if !this.keys.is_empty() {
            return Poll::Pending;
        }
        // Asked only once: the store would charge again.
        let at_once = if this.decision.is_none() { this.rules.decide_at_once(this.calls) } else { None };
        let report = match at_once {
            Some(report) => Ok(report),
            None => {
                if this.decision.is_none() {
                    this.decision.set(Some(this.rules.backend.decide(&this.rules.prepared, this.calls)));
                }
                let decision = ready!(this.decision.as_pin_mut().expect("it is set").poll(cx));
                decision.map(|decision| {
                    let report = this.rules.report(decision);
                    this.rules.note(&report, this.calls);
                    report
                })
            }
        };
        let (inner, mut parts, body) = this.held.take().expect(POLLED_AGAIN);
        let judged = match report {
            Ok(report) => this.rules.judge(report, this.calls, &mut parts),
            Err(error) => this.rules.judge_failure(&error, this.calls, &mut parts),
        };
        Poll::Ready((judged, inner, Request::from_parts(parts, body)))
    }
}

/// The one way to get there breaks the contract of `Future`.
pub(super) const POLLED_AGAIN: &str = "a ResponseFuture was polled after it had answered";
