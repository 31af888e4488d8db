//! What an answer, a late one or none says about its server.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::call_error::CallError;
use super::connection::FaultKind;
use super::live_connection::LiveConnection;
use super::sent_command::{EARLY, SentCommand, Verdict};
use super::{Link, Suspect};
use crate::breaker::Failure;
use crate::stats::Count;

pub(super) const NO_ANSWER: &str = "no answer within the deadline";

impl Link {
    /// Learns from the answer to a command about a key. A missing answer is counted by
    /// [`send`](Self::send), because the caller's deadline may end before the store's.
    #[inline]
    pub(crate) fn learn(
        self: &Arc<Self>,
        slot: u16,
        name: &[u8],
        live: Option<&LiveConnection>,
        outcome: Result<(), &CallError>,
    ) {
        let fault = match outcome {
            Ok(()) => {
                if self.breakers[self.range(slot)].succeed() {
                    self.counters.observed.breaker_changed();
                    tracing::info!("the rate-limit store answers again");
                }
                return;
            }
            Err(CallError::Fault(fault)) => fault,
            // These errors say nothing about the server.
            Err(_) => return,
        };
        let failure = if fault.is_a_refusal() {
            Failure::Refusal
        } else {
            Failure::Fault
        };
        self.fail(slot, name, failure, fault);
        let broken = match fault.kind() {
            FaultKind::ReadOnly => true,
            // A cluster connection reopens its own connections. It is replaced only if that does
            // not help.
            FaultKind::Lost | FaultKind::NotSent => !self.is_cluster(),
            _ => false,
        };
        if broken && let Some(live) = live {
            self.drop_connection(live);
        }
    }

    /// Counts a failure of the store.
    pub(super) fn fail(
        self: &Arc<Self>,
        slot: u16,
        name: &[u8],
        failure: Failure,
        why: impl fmt::Display,
    ) {
        *self.suspects[self.range(slot)].lock() = Suspect {
            slot,
            name: name.to_owned(),
        };
        let breaker = &self.breakers[self.range(slot)];
        let was_closed = breaker.is_closed();
        if breaker.fail(failure) {
            self.counters.count(Count::BreakerOpened);
            self.counters.observed.breaker_changed();
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
        (slot, name): (u16, &[u8]),
    ) {
        let (range, sent) = (self.range(slot), underway.sent());
        self.note_silence(live, range, sent);
        if underway.is_overdue() && !self.has_answered_since(range, sent) {
            return self.note_late((slot, name), live, sent);
        }
        let (link, live, name) = (Arc::clone(self), Arc::clone(live), name.to_owned());
        tokio::spawn(async move {
            match underway
                .verdict(|| link.has_answered_since(range, sent))
                .await
            {
                Verdict::Answered(Err(fault)) if !fault.is_a_sign_of_life() => {
                    link.learn(slot, &name, Some(&live), Err(&CallError::Fault(fault)));
                }
                Verdict::Answered(_) => link.learn(slot, &name, Some(&live), Ok(())),
                Verdict::Late => {
                    link.note_silence(&live, range, sent);
                    link.note_late((slot, &name), &live, sent);
                }
                Verdict::Undecided => {}
            }
        });
    }

    /// Counts a late answer. If a server of a cluster has answered nothing else either, it is asked
    /// for a sign of life first: the connection to it may have ended without a word, and is opened
    /// again for that.
    fn note_late(
        self: &Arc<Self>,
        (slot, name): (u16, &[u8]),
        live: &Arc<LiveConnection>,
        sent: Instant,
    ) {
        let range = self.range(slot);
        if !self.is_cluster() && !self.is_current(live.generation) {
            // It says nothing about the connection that has replaced its own.
            return;
        }
        if !self.is_cluster() || self.has_answered_since(range, sent) {
            return self.fail(slot, name, Failure::Late, NO_ANSWER);
        }
        *self.suspects[range].lock() = Suspect {
            slot,
            name: name.to_owned(),
        };
        if !self.doubts[range].add(2 * self.deadlines.decision) {
            return;
        }
        let (link, live, name) = (Arc::clone(self), Arc::clone(live), name.to_owned());
        tokio::spawn(async move {
            let is_alive = link.sign_of_life(&live, range).await.is_ok();
            let late = link.doubts[range].end();
            let failures = if is_alive { 0 } else { late };
            for _ in 0..failures {
                link.fail(slot, &name, Failure::Late, NO_ANSWER);
            }
        });
    }

    /// If nothing has arrived within a deadline since a command was sent, the connection may have
    /// ended without a word: another one is opened, and replaces it. Whether the store is at fault
    /// is decided later.
    fn note_silence(self: &Arc<Self>, live: &LiveConnection, range: usize, sent: Instant) {
        let is_over = sent.elapsed() + EARLY >= self.deadlines.decision;
        // If nothing has arrived since a silent connection was replaced, the connection was not at
        // fault.
        let renewed = self.renewed.load(Ordering::Relaxed);
        let may_help = renewed == 0 || self.answered[0].load(Ordering::Relaxed) > renewed;
        if is_over
            && may_help
            && !self.is_cluster()
            && self.is_current(live.generation)
            && !self.has_answered_since(range, sent)
        {
            self.silent_since
                .store(self.micros().max(1), Ordering::Release);
            self.reconnect();
        }
    }

    /// Whether the server has answered a command that was still waited for at `instant` or later.
    fn has_answered_since(&self, range: usize, instant: Instant) -> bool {
        let answered = Duration::from_micros(self.answered[range].load(Ordering::Relaxed));
        self.began + answered > instant
    }
}
