use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::Request;
use http::request::Parts;
use pin_project_lite::pin_project;
use throttle_core::{Backend, BackendError};

use super::permits::Needs;
use super::shared::{Asked, Calls, Judged, Shared};
use super::steps::decide::Answer;
use super::steps::refuse_early::Looked;
use crate::limit::LookedUp;

pin_project! {
    /// A request that waits for its keys, then for its decision. It takes along the service that was found ready.
    ///
    /// Every wait is bounded: the store and the keys have a deadline each, and a held request waits as long as its
    /// limit says.
    pub(super) struct Slow<S, B, ReqBody>
    where
        B: Backend,
    {
        shared: Arc<Shared<B>>,
        calls: Calls,
        keys: Vec<(usize, u64, LookedUp)>,
        needs: Needs,
        // What can be decided before the keys are known.
        looking: Option<Pin<Box<dyn Future<Output = Looked> + Send>>>,
        failed: Option<BackendError>,
        #[pin]
        decision: Decision<B>,
        held: Option<(S, Parts, ReqBody)>,
    }
}

pin_project! {
    /// How far the decision is.
    #[project = DecisionProj]
    enum Decision<B>
    where
        B: Backend,
    {
        Unasked,
        Asked { #[pin] decide: B::Decide },
        /// For limits that wait, or refund what is aborted.
        Held { answer: Pin<Box<dyn Future<Output = Answer> + Send>> },
    }
}

/// What becomes of a request that had to wait, with the service that it was meant for.
pub(super) type Decided<S, ReqBody> = (Judged, S, Request<ReqBody>);

impl<S, B: Backend, ReqBody> Slow<S, B, ReqBody> {
    pub(super) fn new(shared: Arc<Shared<B>>, asked: Asked, held: (S, Parts, ReqBody)) -> Self {
        let looking = shared.look_first(&asked);
        let Asked { calls, waiting, needs } = asked;
        let (decision, held) = (Decision::Unasked, Some(held));
        Self { shared, calls, keys: waiting, needs, looking, failed: None, decision, held }
    }
}

impl<S, B: Backend, ReqBody> Future for Slow<S, B, ReqBody> {
    type Output = Decided<S, ReqBody>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Some(looking) = this.looking {
            let looked = ready!(looking.as_mut().poll(cx));
            *this.looking = None;
            match looked {
                Looked::Refused(answer, calls) => {
                    let (inner, mut parts, body) = this.held.take().expect(POLLED_AGAIN);
                    let judged = this.shared.conclude(answer, &calls, this.needs, &mut parts);
                    return Poll::Ready((judged, inner, Request::from_parts(parts, body)));
                }
                Looked::Failed(error) => *this.failed = Some(error),
                Looked::Open => {}
            }
        }
        // All keys are looked up at the same time.
        let mut next = 0;
        while let Some((index, cost, key)) = this.keys.get_mut(next) {
            let Poll::Ready((key, tier)) = key.as_mut().poll(cx) else {
                next += 1;
                continue;
            };
            let parts = &this.held.as_ref().expect(POLLED_AGAIN).1;
            match this.shared.call(*index, *cost, key, parts) {
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
        let answer = loop {
            match this.decision.as_mut().project() {
                DecisionProj::Unasked if let Some(error) = this.failed.take() => break Answer::Failed(error),
                // Left at once: the store would charge again.
                DecisionProj::Unasked => match start(this.shared, this.calls, this.needs) {
                    Ok(decision) => this.decision.set(decision),
                    Err(answer) => break answer,
                },
                DecisionProj::Asked { decide } => break this.shared.decided(ready!(decide.poll(cx)), this.calls),
                DecisionProj::Held { answer } => break ready!(answer.as_mut().poll(cx)),
            }
        };
        let (inner, mut parts, body) = this.held.take().expect(POLLED_AGAIN);
        let judged = this.shared.conclude(answer, this.calls, this.needs, &mut parts);
        Poll::Ready((judged, inner, Request::from_parts(parts, body)))
    }
}

/// The decision to wait for, or the answer where it needs no waiting.
fn start<B: Backend>(shared: &Arc<Shared<B>>, calls: &Calls, needs: &Needs) -> Result<Decision<B>, Answer> {
    if shared.wanted.waits || shared.wanted.refunds_aborted {
        let answer = Arc::clone(shared).decide_patiently(calls.clone(), needs.clone());
        return Ok(Decision::Held { answer: Box::pin(answer) });
    }
    match shared.answer_at_once(calls, needs) {
        Some(answer) => Err(answer),
        None => Ok(Decision::Asked { decide: shared.backend.decide(&shared.prepared, calls) }),
    }
}

/// The one way to get there breaks the contract of `Future`.
pub(super) const POLLED_AGAIN: &str = "a ResponseFuture was polled after it had answered";
