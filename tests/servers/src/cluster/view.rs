//! The masters and their slots, as the nodes see them.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use crate::cluster::{Cluster, slot_of, slots};
use crate::control;

/// A line of `CLUSTER NODES`: one node as another one sees it.
#[derive(Debug)]
struct Seen {
    id: String,
    itself: bool,
    master: bool,
    epoch: u64,
    slots: Vec<RangeInclusive<u16>>,
    of: String,
}

impl Cluster {
    /// The running node that is master of a slot, by the latest claim. If that master does not run,
    /// the node that the others still consider the master.
    ///
    /// # Panics
    ///
    /// If no node knows one.
    #[must_use]
    pub fn master_of(&self, slot: u16) -> usize {
        self.find_master_of(slot)
            .or_else(|| self.former_master_of(slot))
            .expect("a master of each slot")
    }

    /// The master of a key's slot.
    ///
    /// # Panics
    ///
    /// If no node knows one.
    #[must_use]
    pub fn master_of_key(&self, key: impl AsRef<[u8]>) -> usize {
        self.master_of(slot_of(key))
    }

    /// The running nodes that are masters of some slot.
    #[must_use]
    pub fn masters(&self) -> Vec<usize> {
        let mut masters: Vec<usize> = self.claims().map(|(node, _)| node).collect();
        masters.sort_unstable();
        masters.retain(|&node| {
            let slots = self.itself(node).slots;
            slots
                .first()
                .is_some_and(|range| self.find_master_of(*range.start()) == Some(node))
        });
        masters
    }

    /// A running replica of a master, if there is one.
    #[must_use]
    pub fn replica_of(&self, master: usize) -> Option<usize> {
        (0..self.nodes.len())
            .filter(|&node| self.node(node).is_running())
            .find(|&node| {
                let seen = self.itself(node);
                !seen.master && seen.of == self.nodes[master].id
            })
    }

    /// The slots that a node claims as its own.
    #[must_use]
    pub fn slots_of(&self, node: usize) -> Vec<RangeInclusive<u16>> {
        self.itself(node).slots
    }

    pub(super) fn find_master_of(&self, slot: u16) -> Option<usize> {
        let claims = self
            .claims()
            .filter(|(_, seen)| seen.slots.iter().any(|range| range.contains(&slot)));
        claims
            .max_by_key(|(_, seen)| seen.epoch)
            .map(|(node, _)| node)
    }

    fn former_master_of(&self, slot: u16) -> Option<usize> {
        let witness = self.running().next()?;
        let seen = self
            .seen_by(witness)
            .into_iter()
            .find(|seen| seen.slots.iter().any(|range| range.contains(&slot)))?;
        self.nodes.iter().position(|node| node.id == seen.id)
    }

    /// Whether all running nodes report a healthy cluster, agree on the slots, and follow their
    /// masters.
    pub(super) fn is_well(&self) -> bool {
        let mut maps = self.running().map(|node| self.map_seen_by(node));
        let Some(first) = maps.next() else {
            return false;
        };
        let complete = first
            .values()
            .flatten()
            .map(RangeInclusive::len)
            .sum::<usize>()
            == usize::from(slots::SLOTS);
        complete
            && maps.all(|map| map == first)
            && self.running().all(|node| self.node_is_well(node, &first))
    }

    fn node_is_well(&self, node: usize, map: &BTreeMap<String, Vec<RangeInclusive<u16>>>) -> bool {
        let seen = self.itself(node);
        let in_step = seen.master || self.node(node).info("master_link_status") == "up";
        // A former master that has returned has to become a replica first.
        let has_its_place = map.contains_key(if seen.master { &seen.id } else { &seen.of });
        let state: String = self.node(node).query(&["CLUSTER", "INFO"]);
        in_step && has_its_place && control::field(&state, "cluster_state") == Some("ok")
    }

    fn map_seen_by(&self, node: usize) -> BTreeMap<String, Vec<RangeInclusive<u16>>> {
        let owners = self
            .seen_by(node)
            .into_iter()
            .filter(|seen| !seen.slots.is_empty());
        owners.map(|seen| (seen.id, seen.slots)).collect()
    }

    /// The running masters, each as it sees itself.
    fn claims(&self) -> impl Iterator<Item = (usize, Seen)> {
        let masters = self
            .running()
            .map(|node| (node, self.itself(node)))
            .filter(|(_, seen)| seen.master);
        masters.filter(|(_, seen)| !seen.slots.is_empty())
    }

    pub(super) fn running(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|&node| self.node(node).is_running())
    }

    fn itself(&self, node: usize) -> Seen {
        self.seen_by(node)
            .into_iter()
            .find(|seen| seen.itself)
            .expect("each node lists itself")
    }

    fn seen_by(&self, node: usize) -> Vec<Seen> {
        let text: String = self.node(node).query(&["CLUSTER", "NODES"]);
        text.lines()
            .map(|line| {
                Seen::read(line).unwrap_or_else(|| panic!("a line of CLUSTER NODES: {line}"))
            })
            .collect()
    }
}

impl Seen {
    /// `id address flags master ping pong epoch link slot…`
    fn read(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [id, _, flags, of, _, _, epoch, _, slots @ ..] = words.as_slice() else {
            return None;
        };
        let has = |flag| flags.split(',').any(|other| other == flag);
        // A slot that is moving is listed once more, in brackets.
        let slots = slots
            .iter()
            .filter(|word| !word.starts_with('['))
            .map(|word| range(word))
            .collect::<Option<_>>()?;
        Some(Self {
            id: (*id).to_owned(),
            itself: has("myself"),
            master: has("master"),
            epoch: epoch.parse().ok()?,
            slots,
            of: (*of).to_owned(),
        })
    }
}

fn range(word: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

/// The report of each running node, for the message of a wait that timed out.
pub(super) struct Report<'a>(pub(super) &'a Cluster);

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for node in self.0.running() {
            let nodes = self.0.node(node).try_query::<String>(&["CLUSTER", "NODES"]);
            writeln!(
                f,
                "node {node} says:\n{}",
                nodes.unwrap_or_else(|error| error.to_string())
            )?;
        }
        Ok(())
    }
}
