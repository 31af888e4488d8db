//! What an answer, a late one or none says about its server.

use std::fmt;
use std::sync::Arc;

use tokio::time::Instant;

use super::call_error::CallError;
use super::connection::{Fault, FaultKind};
use super::live_connection::LiveConnection;
use super::sent_command::{EARLY, SentCommand, Verdict};
use super::{Link, LinkKind};
use crate::breaker::Failure;

pub(super) const NO_ANSWER: &str = "no answer within the deadline";

impl Link {
    /// Learns from the answer to a command about a key. A missing answer is counted by
    /// [`send`](Self::send), because the caller's deadline may end before the store's.
    #[inline]
    pub(crate) fn learn(
        self: &Arc<Self>,
        name: &[u8],
        live: Option<&LiveConnection>,
        outcome: Result<(), &CallError>,
    ) {
        let fault = match outcome {
            Ok(()) => return self.succeed(),
            Err(CallError::Fault(fault)) if self.is_answered_by(fault) => return self.succeed(),
            Err(CallError::Fault(fault)) => fault,
            // These errors say nothing about the server.
            Err(_) => return,
        };
        let failure = if fault.is_a_refusal() {
            Failure::Refusal
        } else {
            Failure::Fault
        };
        self.fail(name, failure, fault);
        let broken = matches!(
            fault.kind(),
            FaultKind::ReadOnly | FaultKind::Lost | FaultKind::NotSent
        );
        if broken && let Some(live) = live {
            self.drop_connection(live);
        }
    }

    pub(super) fn succeed(&self) {
        if self.breaker.succeed() {
            tracing::info!("the rate-limit store answers again");
        }
    }

    /// Whether a server of a cluster has answered about a slot that it does not have, or not alone.
    pub(super) fn is_answered_by(&self, fault: &Fault) -> bool {
        fault.is_about_a_slot() && self.kind != LinkKind::Single
    }

    /// Counts a failure of the server.
    pub(super) fn fail(self: &Arc<Self>, name: &[u8], failure: Failure, why: impl fmt::Display) {
        name.clone_into(&mut self.suspect.lock());
        let was_closed = self.breaker.is_closed();
        if self.breaker.fail(failure) {
            // A trial that fails is no news.
            if was_closed {
                tracing::warn!(%why, "the rate-limit store fails; it is not asked until it gives \
                    a sign of life");
            }
            self.reconnect();
        }
    }

    /// Learns the outcome of a command whose caller no longer waits.
    pub(super) fn watch(
        self: &Arc<Self>,
        underway: SentCommand,
        live: &Arc<LiveConnection>,
        name: &[u8],
    ) {
        let sent = underway.sent();
        self.note_silence(live, sent);
        if underway.is_overdue() && !self.has_answered_since(sent) {
            return self.note_late(name, live);
        }
        let (link, live, name) = (Arc::clone(self), Arc::clone(live), name.to_owned());
        tokio::spawn(async move {
            match underway.verdict(|| link.has_answered_since(sent)).await {
                Verdict::Answered(Err(fault)) if !fault.is_a_sign_of_life() => {
                    link.learn(&name, Some(&live), Err(&CallError::Fault(fault)));
                }
                Verdict::Answered(_) => link.learn(&name, Some(&live), Ok(())),
                Verdict::Late => {
                    link.note_silence(&live, sent);
                    link.note_late(&name, &live);
                }
                Verdict::Undecided => {}
            }
        });
    }

    /// Counts a late answer. It says nothing about a connection that has replaced its own.
    fn note_late(self: &Arc<Self>, name: &[u8], live: &LiveConnection) {
        if self.is_current(live.generation) {
            self.fail(name, Failure::Late, NO_ANSWER);
        }
    }

    /// If nothing has arrived within a deadline since a command was sent, the connection may have
    /// ended without a word: another one is opened, and replaces it. Whether the server is at fault
    /// is decided later.
    fn note_silence(self: &Arc<Self>, live: &LiveConnection, sent: Instant) {
        let is_over = sent.elapsed() + EARLY >= self.deadlines.decision;
        // If nothing has arrived since a silent connection was replaced, the connection was not at
        // fault.
        let renewed = self.renewed.get();
        let may_help = renewed.is_none() || self.answered.get() > renewed;
        if is_over && may_help && self.is_current(live.generation) && !self.has_answered_since(sent)
        {
            self.silent_since.note();
            self.reconnect();
        }
    }

    /// Whether the server has answered a command that was still waited for at `instant` or later.
    fn has_answered_since(&self, instant: Instant) -> bool {
        self.answered.get() > Some(instant)
    }
}
