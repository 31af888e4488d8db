//! What all clones of a backend share.

use std::sync::Arc;

use smallvec::SmallVec;
use throttle_core::backend::PolicyRegistry;
use throttle_core::{Decision, PolicySet, Timestamp};
use tokio::time::Instant;

use crate::ask::{Ask, CostText, Part, split};
use crate::decide::states;
use crate::deny_cache::{Asked, DenyCache};
use crate::exchange::Invocation;
use crate::keyspace::Keyspace;
use crate::line::{Line, Trouble};
use crate::linked::Linked;
use crate::script::Script;
use crate::slot;

pub(crate) struct Shared {
    /// Tells backends of a process apart: sets that one has prepared mean nothing to another.
    pub(crate) id: u64,
    pub(crate) line: Arc<Line>,
    pub(crate) keyspace: Keyspace,
    pub(crate) options: Options,
    /// The sets in use.
    pub(crate) policies: PolicyRegistry,
    pub(crate) deny_cache: Option<DenyCache>,
}

pub(crate) struct Options {
    /// Most decisions in one script call.
    pub(crate) merge: usize,
    /// Most decisions that wait for a call.
    pub(crate) queue: usize,
    /// Milliseconds that a key is kept beyond its reset, in decimal.
    pub(crate) slack: String,
    /// Where the time comes from, if not from the server.
    pub(crate) clock: Option<Box<dyn Fn() -> Timestamp + Send + Sync>>,
}

impl Shared {
    /// The time that scripts are told; `None` if they read the server's.
    fn time(&self) -> Option<Timestamp> {
        self.options.clock.as_ref().map(|clock| clock())
    }

    /// What the script is told of the time.
    pub(crate) fn time_word(&self, as_of: Option<Timestamp>) -> String {
        match (self.time(), as_of) {
            (None, None) => String::new(),
            (None, Some(at)) => format!("@{}", at.as_micros()),
            (Some(now), at) => at.unwrap_or(now).min(now).as_micros().to_string(),
        }
    }

    /// The present instant of the clock that decides about keys of a slot, if it is known.
    pub(crate) fn now(&self, slot: u16) -> Option<Timestamp> {
        self.time().or_else(|| self.line.clock(slot).now())
    }

    /// Whether no answer can ever be had without asking the store.
    pub(crate) fn asks_always(&self) -> bool {
        self.deny_cache.is_none()
    }

    /// The answer that can be had without asking the store: a refusal that is still true.
    pub(crate) fn at_once(&self, ask: &Ask) -> Option<Decision> {
        let denied = self.deny_cache.as_ref()?.look(ask, self.time())?;
        self.line.counters.denied();
        Some(denied)
    }

    /// Keeps what was refused, if refusals are kept.
    pub(crate) fn note(&self, ask: &Ask, part: &Part, decision: &Decision, asked: Option<Asked>) {
        let (Some(cache), Some(asked)) = (&self.deny_cache, asked) else { return };
        if decision.is_admitted() {
            // A refusal of a greater cost is still right, but less is left now than it says.
            cache.forget(&ask.names);
        } else if ask.as_of.is_none() && !ask.linked.set.is_tiered()
            // A charge in another tier can make a refused key admit earlier.
            && let Some(states) = states(ask, part)
        {
            cache.keep(ask, decision, states, part.now, &asked);
        }
    }

    /// Forgets what was refused to a key.
    pub(crate) fn unrefuse(&self, name: &[u8]) {
        if let Some(cache) = &self.deny_cache {
            cache.clear(name);
        }
    }

    /// Forgets every refusal.
    pub(crate) fn unrefuse_all(&self) {
        if let Some(cache) = &self.deny_cache {
            cache.clear_all();
        }
    }

    /// A set with the parameters in force, for requests in these tiers.
    pub(crate) fn link(&self, set: &PolicySet, tiers: &[u8]) -> Linked {
        // Read first: what is newer than its epoch is only linked again.
        let epoch = self.policies.epoch();
        Linked::new(epoch, self.policies.in_force(set), tiers)
    }

    pub(crate) fn merges(&self) -> bool {
        self.options.merge > 1
    }

    /// The hash slot of a name; without a cluster all are one.
    #[inline]
    pub(crate) fn slot(&self, name: &[u8]) -> u16 {
        if self.line.is_cluster() { slot::of(name) } else { 0 }
    }

    /// Whether the keys of a request are in several slots.
    pub(crate) fn is_spread(&self, ask: &Ask) -> bool {
        self.line.is_cluster()
            && !self.keyspace.is_together()
            && ask.names.iter().any(|name| slot::of(name) != ask.slot)
    }

    pub(crate) async fn decide_one(self: &Arc<Self>, ask: &Ask, until: Instant) -> Result<Part, Trouble> {
        let _room = self.line.room_by(ask.slot, ask.work(), until).await?;
        self.ask_one(&ask.linked.scripts.decide, ask, until).await
    }

    /// The same for several at once, for which there is room.
    pub(crate) async fn decide_merged(self: &Arc<Self>, asks: &[Ask], until: Instant) -> Result<Vec<Part>, Trouble> {
        let Some(first) = asks.first() else { return Ok(Vec::new()) };
        self.ask_all(&first.linked.scripts.decide, asks, until).await
    }

    /// Decides about keys that other parameters were written for.
    pub(crate) async fn carry_over(self: &Arc<Self>, ask: &Ask, until: Instant) -> Result<Part, Trouble> {
        let _room = self.line.room_by(ask.slot, ask.work(), until).await?;
        self.ask_one(&ask.linked.scripts.carry, ask, until).await
    }

    async fn ask_one(self: &Arc<Self>, script: &Script, ask: &Ask, until: Instant) -> Result<Part, Trouble> {
        let parts = self.ask_all(script, std::slice::from_ref(ask), until).await?;
        parts.into_iter().next().ok_or(Trouble::Nonsense("the script answered nothing"))
    }

    /// Asks for several that are about the same set.
    async fn ask_all(self: &Arc<Self>, script: &Script, asks: &[Ask], until: Instant) -> Result<Vec<Part>, Trouble> {
        let Some(first) = asks.first() else { return Ok(Vec::new()) };
        let keys: SmallVec<[&[u8]; 8]> = asks.iter().flat_map(|ask| ask.names.iter().map(Vec::as_slice)).collect();
        let costs: SmallVec<[CostText; 4]> = asks.iter().flat_map(|ask| ask.costs()).collect();
        let rest: SmallVec<[&[u8]; 8]> = costs.iter().map(|cost| cost.as_slice()).collect();
        let time = self.time_word(first.as_of);
        let reply = self.run(&first.linked, script, &keys, (&time, &rest), first.slot, until).await?;
        let applying = asks.iter().map(|ask| ask.names.len());
        let parts = split(reply, applying).ok_or(Trouble::Nonsense("the script's reply is cut short"))?;
        if time.is_empty()
            && let Some(part) = parts.first()
        {
            self.line.clock(first.slot).set(part.now);
        }
        Ok(parts)
    }

    /// Runs a script of a set, with what the arguments of all of them begin with.
    pub(crate) async fn run(
        self: &Arc<Self>,
        linked: &Linked,
        script: &Script,
        keys: &[&[u8]],
        (time, rest): (&str, &[&[u8]]),
        slot: u16,
        until: Instant,
    ) -> Result<Vec<u8>, Trouble> {
        let mut head: SmallVec<[&[u8]; 8]> = SmallVec::new();
        head.extend([time.as_bytes(), self.options.slack.as_bytes()]);
        head.extend(linked.headers.iter().map(Vec::as_slice));
        Invocation { script, keys, head: &head, rest, slot }.run(&self.line, until).await
    }
}
