//! What a layer must answer, computed the slow way: every limit keeps the units that it has
//! charged, each with its instant.

use std::collections::HashMap;

use throttle_tower::OnMissing;

use super::{By, ClientRequest, Cost, Count, Leaf, Node, TestLayer};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    /// A required key is missing.
    Rejected,
    /// Too many requests are in flight.
    NoPermit,
    Admitted {
        /// What each limit that applies has left, by name; none if no limit applies.
        left: Vec<(String, u64)>,
        /// The same of the limits in the headers, after what the response has settled.
        stated: Vec<(String, u64)>,
    },
    Refused {
        left: Vec<(String, u64)>,
        /// Microseconds; `None` if no wait helps.
        wait: Option<u128>,
    },
}

/// The states of all keys of all limits.
#[derive(Default)]
pub(super) struct Naive {
    states: HashMap<(usize, Option<String>), State>,
    /// The keys that hold a permit, each with the number of the request before which it ends.
    permits: Vec<(usize, Option<&'static str>)>,
}

#[derive(Clone, Default)]
struct State {
    /// Of a GCRA: when everything has come back.
    full_at: i64,
    /// Of a window or a log: when units were charged, and how many.
    charged: Vec<(i64, u64)>,
}

/// One limit, as it applies to one request.
struct AppliedLimit<'a> {
    leaf: &'a Leaf,
    key: Option<String>,
    cost: u64,
    /// The reserve of the request's class.
    reserve: u64,
}

/// A limit's or a composition's part of a decision.
enum Verdict {
    DoesNotApply,
    /// The limits to charge.
    Admits(Vec<usize>),
    /// Microseconds until it admits; `None` for never.
    Refuses(Option<i64>),
}

const SECOND: i64 = 1_000_000;

impl Count {
    /// The units that are used at an instant.
    fn admits_after(self, state: &State, units: u64, now: i64) -> Option<i64> {
        if units > self.most() {
            return None;
        }
        let units = i64::try_from(units).unwrap();
        match self {
            Self::Gcra { interval, burst } => {
                let unit = i64::try_from(interval).unwrap() * SECOND;
                let debt = (state.full_at - now).max(0);
                Some((debt + unit * units - unit * i64::try_from(burst).unwrap()).max(0))
            }
            Self::Window { most, .. } | Self::Log { most, .. } => {
                // The instants at which units come back, the first of which suffices.
                let mut ends: Vec<i64> = state.charged.iter().map(|one| self.end(one.0)).collect();
                ends.push(now);
                ends.sort_unstable();
                let fits = |at: i64| self.used(state, at) + units <= i64::try_from(most).unwrap();
                let first = ends.into_iter().find(|at| *at >= now && fits(*at));
                Some(first.expect("in the end everything has come back") - now)
            }
        }
    }

    /// When units that are charged at an instant come back, in a window or a log.
    fn end(self, charged: i64) -> i64 {
        match self {
            Self::Gcra { .. } => unreachable!("its units come back one by one"),
            Self::Window { seconds, .. } => {
                let width = i64::try_from(seconds).unwrap() * SECOND;
                (charged / width + 1) * width
            }
            Self::Log { seconds, .. } => charged + i64::try_from(seconds).unwrap() * SECOND,
        }
    }

    fn used(self, state: &State, now: i64) -> i64 {
        let current = state.charged.iter().filter(|(at, _)| self.end(*at) > now);
        i64::try_from(current.map(|(_, units)| units).sum::<u64>()).unwrap()
    }

    /// The most units that are admitted at an instant.
    fn left(self, state: &State, now: i64) -> u64 {
        let admitted = |units: &u64| self.admits_after(state, *units, now) == Some(0);
        (1..=self.most()).rev().find(admitted).unwrap_or(0)
    }

    /// Charges units, or gives units back that were charged at this instant.
    fn charge(self, state: &mut State, units: i64, now: i64) {
        match self {
            Self::Gcra { interval, .. } => {
                let unit = i64::try_from(interval).unwrap() * SECOND;
                state.full_at = state.full_at.max(now) + unit * units;
            }
            Self::Window { .. } | Self::Log { .. } if units >= 0 => {
                state.charged.push((now, u64::try_from(units).unwrap()));
            }
            Self::Window { .. } | Self::Log { .. } => {
                let mut rest = u64::try_from(-units).unwrap();
                for (_, charged) in state.charged.iter_mut().rev().filter(|one| one.0 == now) {
                    let given_back = rest.min(*charged);
                    *charged -= given_back;
                    rest -= given_back;
                }
                assert_eq!(rest, 0, "no more is given back than was charged");
            }
        }
    }
}

impl Naive {
    /// The bodies end that end before this request.
    pub(super) fn end_bodies(&mut self, number: usize) {
        self.permits.retain(|(until, _)| *until > number);
    }

    pub(super) fn answer(
        &mut self,
        layer: &TestLayer,
        sent: &ClientRequest,
        now: i64,
        number: usize,
    ) -> Answer {
        let node = &layer.node;
        let mut asked = Vec::new();
        if !node.ask(sent, &mut asked) {
            return Answer::Rejected;
        }
        let in_flight = layer.in_flight.as_ref();
        let in_flight = in_flight.filter(|own| own.kind.is_none_or(|kind| kind == sent.kind));
        let permit = in_flight.map(|own| own.by.key(sent));
        if let (Some(own), Some(key)) = (in_flight, permit) {
            let taken = self.permits.iter().filter(|(_, own)| *own == key).count();
            if u64::try_from(taken).unwrap() == own.most {
                return Answer::NoPermit;
            }
        }
        let charged = match self.decide(node, &asked, now) {
            Verdict::Refuses(wait) => {
                let left = self.left(&asked, now);
                self.charge_refused(&asked, now);
                let wait = wait.map(|wait| u128::try_from(wait).unwrap());
                return Answer::Refused { left, wait };
            }
            Verdict::DoesNotApply => Vec::new(),
            Verdict::Admits(charged) => charged,
        };
        let until = number + 1 + sent.held_for;
        self.permits.extend(permit.map(|key| (until, key)));
        let charged: Vec<_> = asked
            .iter()
            .filter(|one| charged.contains(&one.leaf.index))
            .collect();
        for one in &charged {
            self.charge(one, i64::try_from(one.cost).unwrap(), now);
        }
        let left = self.left(&asked, now);
        for one in charged {
            let actual = i64::try_from(one.actual(sent)).unwrap();
            let left = i64::try_from(one.leaf.count.left(self.state(one), now)).unwrap();
            let more = actual - i64::try_from(one.cost).unwrap();
            self.charge(one, more.min(left), now);
        }
        let mut stated = self.left(&asked, now);
        stated.retain(|(name, _)| {
            let is_audited =
                |one: &AppliedLimit<'_>| one.leaf.is_audited && one.leaf.name() == *name;
            !asked.iter().any(is_audited)
        });
        Answer::Admitted { left, stated }
    }

    fn state(&mut self, asked: &AppliedLimit<'_>) -> &mut State {
        let name = (asked.leaf.index, asked.key.clone());
        self.states.entry(name).or_default()
    }

    fn charge(&mut self, asked: &AppliedLimit<'_>, units: i64, now: i64) {
        let count = asked.leaf.count;
        count.charge(self.state(asked), units, now);
    }

    fn left(&mut self, asked: &[AppliedLimit<'_>], now: i64) -> Vec<(String, u64)> {
        let mut left = Vec::new();
        for one in asked {
            let all = one.leaf.count.left(self.state(one), now);
            left.push((one.leaf.name(), all.saturating_sub(one.reserve)));
        }
        left.sort();
        left
    }

    /// A refused request is charged what is left, and its cost at most.
    fn charge_refused(&mut self, asked: &[AppliedLimit<'_>], now: i64) {
        for one in asked.iter().filter(|one| one.leaf.charges_refused) {
            let left = one.leaf.count.left(self.state(one), now);
            let units = one.cost.min(left.saturating_sub(one.reserve));
            self.charge(one, i64::try_from(units).unwrap(), now);
        }
    }

    fn decide(&mut self, node: &Node, asked: &[AppliedLimit<'_>], now: i64) -> Verdict {
        match node {
            Node::Leaf(leaf) => {
                let Some(one) = asked.iter().find(|one| one.leaf.index == leaf.index) else {
                    return Verdict::DoesNotApply;
                };
                match leaf.count.admits_after(self.state(one), one.needed(), now) {
                    Some(0) => Verdict::Admits(vec![leaf.index]),
                    // It refuses nobody, and is charged only what it would have admitted.
                    _ if leaf.is_audited => Verdict::Admits(Vec::new()),
                    wait => Verdict::Refuses(wait),
                }
            }
            Node::All(members) => self.decide_all(members, asked, now),
            Node::Any(members, every) => self.decide_any(members, *every, asked, now),
        }
    }

    /// Every member is charged, or none; the wait is the longest of those that refuse.
    fn decide_all(&mut self, members: &[Node], asked: &[AppliedLimit<'_>], now: i64) -> Verdict {
        let (mut charged, mut waits, mut applies) = (Vec::new(), Vec::new(), false);
        for member in members {
            match self.decide(member, asked, now) {
                Verdict::DoesNotApply => continue,
                Verdict::Admits(of_member) => charged.extend(of_member),
                Verdict::Refuses(wait) => waits.push(wait),
            }
            applies = true;
        }
        match waits.iter().any(Option::is_none) {
            _ if !applies => Verdict::DoesNotApply,
            true => Verdict::Refuses(None),
            false if waits.is_empty() => Verdict::Admits(charged),
            false => Verdict::Refuses(waits.into_iter().flatten().max()),
        }
    }

    /// The first member that admits is charged, or each; the wait is the shortest.
    fn decide_any(
        &mut self,
        members: &[Node],
        every: bool,
        asked: &[AppliedLimit<'_>],
        now: i64,
    ) -> Verdict {
        let (mut charged, mut waits, mut applies) = (None::<Vec<usize>>, Vec::new(), false);
        for member in members {
            match self.decide(member, asked, now) {
                Verdict::DoesNotApply => continue,
                Verdict::Refuses(wait) => waits.push(wait),
                Verdict::Admits(of_member) if every => {
                    charged.get_or_insert_default().extend(of_member);
                }
                Verdict::Admits(of_member) => charged = charged.or(Some(of_member)),
            }
            applies = true;
        }
        match charged {
            _ if !applies => Verdict::DoesNotApply,
            Some(charged) => Verdict::Admits(charged),
            None => Verdict::Refuses(waits.into_iter().flatten().min()),
        }
    }
}

impl Node {
    /// Collects the limits that apply to a request. Returns false if one rejects it.
    fn ask<'a>(&'a self, sent: &ClientRequest, asked: &mut Vec<AppliedLimit<'a>>) -> bool {
        let leaf = match self {
            Self::Leaf(leaf) => leaf,
            Self::All(members) | Self::Any(members, _) => {
                return members.iter().all(|member| member.ask(sent, asked));
            }
        };
        if leaf.kind.is_some_and(|kind| kind != sent.kind) {
            return true;
        }
        let key = leaf.by.key(sent);
        match leaf.on_missing {
            OnMissing::Skip if key.is_none() => return true,
            OnMissing::Reject(_) if key.is_none() => return false,
            _ => {}
        }
        asked.push(AppliedLimit {
            leaf,
            key: key.map(str::to_owned),
            cost: match leaf.cost {
                // An estimate of 0 counts as 1.
                cost if leaf.is_settled => cost.of(sent).max(1),
                cost => cost.of(sent),
            },
            reserve: leaf.reserve.filter(|_| sent.is_low).unwrap_or(0),
        });
        true
    }
}

impl By {
    fn key(self, sent: &ClientRequest) -> Option<&'static str> {
        match self {
            Self::Constant => Some("constant"),
            Self::Header("x-a") => sent.keys[0],
            Self::Header(_) => sent.keys[1],
        }
    }
}

impl Cost {
    fn of(self, sent: &ClientRequest) -> u64 {
        match self {
            Self::Units(units) => units,
            Self::Asked => sent.cost,
        }
    }
}

impl AppliedLimit<'_> {
    /// What must be available.
    fn needed(&self) -> u64 {
        match self.cost {
            0 => 0,
            cost => cost + self.reserve,
        }
    }

    /// What an admitted request is charged in the end.
    fn actual(&self, sent: &ClientRequest) -> u64 {
        match sent.settled {
            Some(settled) if self.leaf.is_settled => settled,
            _ if self.leaf.refunds_not_found && !sent.is_found => 0,
            _ => self.cost,
        }
    }
}
