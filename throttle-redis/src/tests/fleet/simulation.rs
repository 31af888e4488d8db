//! The events of a fleet, one after the other.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use throttle_core::{BackendErrorKind, LocalShare, ManualClock, MemoryBackend};
use tokio::time::Instant;

use super::links::{SimulatedLink, nanos};
use super::outcome::{By, Outcome};
use super::random::Random;
use super::servers::{Keys, Server, timestamp};
use super::settings::{
    CLUSTER, CONNECT_TIMEOUT, CONNECTION, DEADLINE, DECISION, Nanos, OnError, PATIENCE, ROUND_TRIP,
    Return, SLOTS_ANSWER, Settings, THRESHOLD,
};
use crate::breaker::{Breaker, Failure, Permission};
use crate::counters::Counters;
use crate::link::reconnect_pauses::Pauses;
use crate::links::servers::slot_pauses;

/// A server has two addresses: its own, and that of its replica.
const ADDRESSES: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A request comes. The next one is planned then.
    Request,
    /// A call arrives at its server.
    Arrival {
        request: u64,
    },
    Answer {
        request: u64,
        is_admitted: bool,
    },
    /// The deadline of a request, or the time when it counts as late at the latest.
    Deadline {
        request: u64,
    },
    /// An attempt to reconnect.
    Attempt {
        link: usize,
        number: u32,
    },
    ConnectionOpens {
        link: usize,
    },
    ConnectingFails {
        link: usize,
    },
    /// A sign of life has come, or has not.
    Probed {
        link: usize,
        is_alive: bool,
    },
    SlotQuestion {
        process: usize,
        server: usize,
    },
    Slots {
        process: usize,
        moved: bool,
    },
    /// The first server is lost; its processes notice; it is back.
    Lost,
    ConnectionsEnd,
    Back,
    Stop {
        server: usize,
    },
}

struct Request<'a> {
    number: u64,
    process: usize,
    key: usize,
    link: usize,
    asked: Nanos,
    /// When and over which connection it was sent, if it was.
    sent: Option<(Nanos, u32)>,
    /// Whether its caller has its decision: what is left is to learn from the answer.
    is_decided: bool,
    permission: Option<Permission<'a>>,
}

struct Process {
    share: Option<LocalShare>,
    /// The address of the first server that the process knows.
    address: usize,
    slot_pauses: Pauses,
}

struct Fleet<'a> {
    settings: &'a Settings,
    now: Nanos,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    planned: u64,
    /// Draws when a request comes, at which process, and with which key.
    load: Random,
    /// What pauses depend on.
    chance: Random,
    /// The instant at the beginning: pauses are measured in the type of a clock that is not read.
    start: Instant,
    clock: ManualClock,
    keys: Keys,
    /// At both addresses.
    servers: Vec<Server>,
    processes: Vec<Process>,
    links: Vec<SimulatedLink>,
    breakers: &'a [Breaker],
    requests: Vec<Option<Request<'a>>>,
    unused: Vec<usize>,
    under_way: u64,
    outcome: Outcome,
}

/// Simulates a fleet to the end of its last decision.
pub(super) fn simulate(settings: &Settings) -> Outcome {
    let links = settings.processes * settings.servers * ADDRESSES;
    let counters = Counters::new(None);
    let breaker = || Breaker::new(THRESHOLD, counters.clone());
    let breakers: Vec<Breaker> = std::iter::repeat_with(breaker).take(links).collect();
    let mut fleet = Fleet::new(settings, &breakers);
    fleet.run();
    fleet.close()
}

impl<'a> Fleet<'a> {
    fn new(settings: &'a Settings, breakers: &'a [Breaker]) -> Self {
        let keys = Keys::new(settings);
        let clock = ManualClock::default();
        let process = || Process {
            share: settings.on_error.processes().map(|processes| {
                let memory = MemoryBackend::builder().max_keys(settings.keys);
                let memory = memory.clock(clock.clone()).build();
                LocalShare::new(&memory, &keys.set, processes).expect("a share")
            }),
            address: 0,
            slot_pauses: slot_pauses(),
        };
        let processes = std::iter::repeat_with(process).take(settings.processes);
        let processes = processes.collect();
        let link = |number: usize| match number % ADDRESSES {
            0 => SimulatedLink::connected(),
            _ => SimulatedLink::default(),
        };
        let server = |number: usize| Server::new(number.is_multiple_of(ADDRESSES));
        let outcome = Outcome {
            settings: settings.clone(),
            asked: 0,
            by: [0; 4],
            others_lost: 0,
            during: (0, 0),
            admitted: vec![0; settings.keys],
            admitted_outside: vec![0; settings.keys],
            latencies: Vec::new(),
            under_way: 0,
            openings: 0,
            slot_questions: vec![0; settings.processes],
            last_failure: 0,
            open_breakers: 0,
            servers: Vec::new(),
            replica: Server::new(false),
            end: 0,
        };
        let mut random = Random::new(settings.seed);
        Self {
            settings,
            now: 0,
            events: BinaryHeap::new(),
            planned: 0,
            load: Random::new(random.next()),
            chance: Random::new(random.next()),
            start: Instant::now(),
            clock,
            keys,
            servers: (0..settings.servers * ADDRESSES).map(server).collect(),
            processes,
            links: (0..breakers.len()).map(link).collect(),
            breakers,
            requests: Vec::new(),
            unused: Vec::new(),
            under_way: 0,
            outcome,
        }
    }

    fn run(&mut self) {
        if let Some(loss) = self.settings.loss {
            self.plan(loss.from, Event::Lost);
            self.plan(loss.until, Event::Back);
        }
        if let Some((from, length)) = self.settings.stop {
            for server in 0..self.settings.servers {
                let at = from + server as Nanos * 2 * length;
                self.plan(at, Event::Stop { server });
            }
        }
        self.plan(0, Event::Request);
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            let passed = u128::from(at - self.now) * u128::from(self.under_way);
            self.outcome.under_way += passed;
            self.now = at;
            self.happen(event);
            let is_over = at > self.settings.length && self.under_way == 0;
            if is_over && self.requests.iter().all(Option::is_none) {
                return;
            }
        }
    }

    fn close(mut self) -> Outcome {
        let mut outcome = self.outcome;
        outcome.latencies.sort_unstable();
        outcome.end = self.now;
        outcome.replica = self.servers.remove(1);
        outcome.servers.push(self.servers.remove(0));
        outcome
            .servers
            .extend(self.servers.into_iter().step_by(ADDRESSES));
        let in_use = (0..self.links.len()).filter(|link| !self.links[*link].is_dropped);
        outcome.open_breakers = in_use
            .filter(|link| !self.breakers[*link].is_closed())
            .count();
        outcome
    }

    fn plan(&mut self, at: Nanos, event: Event) {
        self.planned += 1;
        self.events.push(Reverse((at, self.planned, event)));
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Request => self.request(),
            Event::Arrival { request } => self.arrive(request),
            Event::Answer {
                request,
                is_admitted,
            } => self.answer(request, is_admitted),
            Event::Deadline { request } => self.deadline(request),
            Event::Attempt { link, number } => self.attempt(link, number),
            Event::ConnectionOpens { link } => self.open(link),
            Event::ConnectingFails { link } => self.fail_to_connect(link),
            Event::Probed { link, is_alive } => self.probed(link, is_alive),
            Event::SlotQuestion { process, server } => self.answer_slots(process, server),
            Event::Slots { process, moved } => self.learn_slots(process, moved),
            Event::Lost => self.lose(),
            Event::ConnectionsEnd => self.end_connections(),
            Event::Back => self.bring_back(),
            Event::Stop { server } => {
                let (_, length) = self.settings.stop.expect("it stops");
                self.servers[server * ADDRESSES].stand_still(self.now + length);
            }
        }
    }
}

/// Requests.
impl<'a> Fleet<'a> {
    fn request(&mut self) {
        let next = self.now + self.load.pause(self.settings.rate);
        if next < self.settings.length {
            self.plan(next, Event::Request);
        }
        let key = self.load.below(self.settings.keys);
        let process = (key + self.load.below(self.settings.reach)) % self.settings.processes;
        self.outcome.asked += 1;
        self.under_way += 1;
        let link = self.link_of(process, self.keys.servers[key]);
        let permission = match self.breakers[link].permission() {
            Some(permission) => permission,
            None => {
                self.reconnect(link);
                let is_late_only = self.breakers[link].is_late_only();
                let silent = self.links[link].silent_for(self.now);
                if silent.is_none_or(|silent| silent >= DEADLINE) || !is_late_only {
                    let is_overdue = is_late_only && self.links[link].is_connected;
                    let why = if is_overdue {
                        BackendErrorKind::Timeout
                    } else {
                        BackendErrorKind::Suspended
                    };
                    return self.fall_back(process, key, self.now, why);
                }
                Permission::default()
            }
        };
        let request = self.keep(Request {
            number: 0,
            process,
            key,
            link,
            asked: self.now,
            sent: None,
            is_decided: false,
            permission: Some(permission),
        });
        self.plan(self.now + DEADLINE, Event::Deadline { request });
        if self.links[link].is_usable(self.now) {
            self.send(request);
        } else {
            self.links[link].waiting.push(request);
            self.reconnect(link);
            self.want(link);
        }
    }

    fn send(&mut self, request: u64) {
        let now = self.now;
        if let Some(waiting) = self.get(request) {
            let (link, process) = (waiting.link, waiting.process);
            let connection = self.links[link].connection;
            self.get(request).expect("it is there").sent = Some((now, connection));
            self.plan(now + self.way(process), Event::Arrival { request });
        }
    }

    fn arrive(&mut self, request: u64) {
        let Some(&mut Request {
            link, key, process, ..
        }) = self.get(request)
        else {
            return;
        };
        let server = self.server_of(link);
        if self.servers[server].is_alive {
            let (begin, done) = self.servers[server].serve(self.now, DECISION);
            let is_admitted = self.keys.decide(key, begin);
            let answer = Event::Answer {
                request,
                is_admitted,
            };
            self.plan(done + self.way(process), answer);
        }
    }

    fn answer(&mut self, request: u64, is_admitted: bool) {
        let Some(&mut Request {
            link,
            process,
            key,
            asked,
            is_decided,
            ..
        }) = self.get(request)
        else {
            return;
        };
        if !self.servers[self.server_of(link)].is_alive {
            return;
        }
        if is_decided {
            self.drop_request(request);
            return self.fail(link, Failure::Late);
        }
        self.links[link].answered = Some(self.now);
        self.breakers[link].succeed();
        self.drop_request(request);
        self.outcome.by[By::Store as usize] += 1;
        self.decided(key, asked, By::Store, is_admitted);
        if is_admitted && matches!(self.settings.on_error, OnError::Local(_)) {
            self.note(process, key);
        }
    }

    fn deadline(&mut self, request: u64) {
        let now = self.now;
        let Some(waiting) = self.get(request) else {
            return;
        };
        let (link, process, key, asked) =
            (waiting.link, waiting.process, waiting.key, waiting.asked);
        let Some((sent, connection)) = waiting.sent else {
            self.drop_request(request);
            self.links[link].waiting.retain(|other| *other != request);
            let is_cut_off = !self.links[link].is_connected && self.links[link].has_failed;
            if is_cut_off {
                self.fail(link, Failure::Fault);
                return self.fall_back(process, key, asked, BackendErrorKind::Unavailable);
            }
            return self.fall_back(process, key, asked, BackendErrorKind::Timeout);
        };
        if !waiting.is_decided {
            waiting.is_decided = true;
            waiting.permission = None;
            self.fall_back(process, key, asked, BackendErrorKind::Timeout);
        }
        if self.links[link].note_silence(sent, connection, now) {
            self.reconnect(link);
        }
        let patience = sent + PATIENCE * DEADLINE;
        if now < sent + DEADLINE {
            return self.plan(sent + DEADLINE, Event::Deadline { request });
        }
        if self.links[link].has_answered_since(sent) && now < patience {
            return self.plan(patience, Event::Deadline { request });
        }
        self.drop_request(request);
        if self.links[link].connection == connection {
            self.fail(link, Failure::Late);
        }
    }

    /// What a request gets that the store did not decide about: as `throttle_tower` has it.
    fn fall_back(&mut self, process: usize, key: usize, asked: Nanos, why: BackendErrorKind) {
        self.clock.set(timestamp(self.now));
        let (by, is_admitted) = match (self.settings.on_error, &self.processes[process].share) {
            (OnError::Open, _) if !why.is_busy() => (By::Open, true),
            (_, Some(share)) => {
                let decision = share.decide(&self.keys.calls[key..=key], why);
                (By::Share, decision.is_admitted())
            }
            (_, None) => (By::Closed, false),
        };
        self.outcome.by[by as usize] += 1;
        self.outcome.last_failure = self.now;
        self.decided(key, asked, by, is_admitted);
    }

    fn decided(&mut self, key: usize, asked: Nanos, by: By, is_admitted: bool) {
        self.under_way -= 1;
        self.outcome.latencies.push(self.now - asked);
        let is_outside = by != By::Store;
        self.outcome.admitted[key] += u64::from(is_admitted);
        self.outcome.admitted_outside[key] += u64::from(is_admitted && is_outside);
        if is_outside && (self.settings.loss.is_none() || self.keys.servers[key] != 0) {
            self.outcome.others_lost += 1;
        }
        let loss = self.settings.loss;
        if loss.is_some_and(|loss| (loss.from..loss.until).contains(&asked)) {
            self.outcome.during.0 += 1;
            self.outcome.during.1 += u64::from(is_outside);
        }
    }

    /// Charges the share of a process with what the store has charged.
    fn note(&mut self, process: usize, key: usize) {
        let calls = &self.keys.calls[key..=key];
        if let Some(share) = &self.processes[process].share {
            self.clock.set(timestamp(self.now));
            share.note(&self.keys.admitted, calls);
        }
    }

    fn keep(&mut self, mut request: Request<'a>) -> u64 {
        let index = self.unused.pop().unwrap_or_else(|| {
            self.requests.push(None);
            self.requests.len() - 1
        });
        request.number = self.outcome.asked << 32 | index as u64;
        let number = request.number;
        self.requests[index] = Some(request);
        number
    }

    /// The request of a number, unless it is over.
    fn get(&mut self, number: u64) -> Option<&mut Request<'a>> {
        let index = (number & u64::from(u32::MAX)) as usize;
        let request = self.requests[index].as_mut();
        request.filter(|request| request.number == number)
    }

    fn drop_request(&mut self, number: u64) {
        let index = (number & u64::from(u32::MAX)) as usize;
        self.requests[index] = None;
        self.unused.push(index);
    }

    /// The time that packets of a process take in one direction.
    fn way(&self, process: usize) -> Nanos {
        let zone = match process % 3 {
            0 => self.settings.slow_zone,
            _ => 0,
        };
        (ROUND_TRIP + zone) / 2
    }

    fn link_of(&self, process: usize, server: usize) -> usize {
        let address = match server {
            0 => self.processes[process].address,
            _ => 0,
        };
        (process * self.settings.servers + server) * ADDRESSES + address
    }

    fn server_of(&self, link: usize) -> usize {
        link % (self.settings.servers * ADDRESSES)
    }

    fn process_of(&self, link: usize) -> usize {
        link / (self.settings.servers * ADDRESSES)
    }
}

/// Links, by the rules of `link::reconnect`.
impl Fleet<'_> {
    fn fail(&mut self, link: usize, failure: Failure) {
        let was_closed = self.breakers[link].is_closed();
        if self.breakers[link].fail(failure) {
            self.outcome.openings += u64::from(was_closed);
            self.reconnect(link);
        }
    }

    fn is_broken(&self, link: usize) -> bool {
        !self.links[link].is_usable(self.now) || self.breakers[link].is_open()
    }

    fn reconnect(&mut self, link: usize) {
        if !self.links[link].is_reconnecting && self.is_broken(link) {
            self.links[link].is_reconnecting = true;
            self.plan_attempt(link);
        }
    }

    fn plan_attempt(&mut self, link: usize) {
        let now = self.instant();
        let link_now = &mut self.links[link];
        let wait = match std::mem::take(&mut link_now.is_wanted) {
            true => link_now.pauses.short_wait(now),
            false => link_now.pauses.wait(now),
        };
        link_now.attempts += 1;
        let number = link_now.attempts;
        link_now.due = Some(number);
        self.plan(self.now + nanos(wait), Event::Attempt { link, number });
    }

    /// A request waits for a connection.
    fn want(&mut self, link: usize) {
        self.links[link].is_wanted = true;
        if self.links[link].due.is_some() {
            self.plan_attempt(link);
        }
    }

    fn attempt(&mut self, link: usize, number: u32) {
        if self.links[link].due != Some(number) {
            return;
        }
        self.links[link].due = None;
        if self.links[link].is_dropped && self.links[link].waiting.is_empty() {
            return;
        }
        let (now, random) = (self.instant(), self.chance.next());
        self.links[link].pauses.begin(now, random);
        if !self.links[link].is_usable(self.now) {
            return self.connect(link);
        }
        let is_alive = self.servers[self.server_of(link)].is_alive;
        let wait = if is_alive { ROUND_TRIP } else { DEADLINE };
        self.plan(self.now + wait, Event::Probed { link, is_alive });
    }

    fn probed(&mut self, link: usize, is_alive: bool) {
        if !is_alive {
            return self.connect(link);
        }
        self.breakers[link].half_open();
        self.end_or_go_on(link);
    }

    fn connect(&mut self, link: usize) {
        let process = self.process_of(link);
        self.look_for_slots(process);
        let server = self.server_of(link);
        let is_refused = self.settings.loss.is_some_and(|loss| loss.is_killed);
        if self.servers[server].is_alive {
            let arrives = self.now + self.way(process);
            let (_, done) = self.servers[server].serve(arrives, CONNECTION);
            self.plan(done + self.way(process), Event::ConnectionOpens { link });
        } else if is_refused {
            self.plan(self.now + ROUND_TRIP, Event::ConnectingFails { link });
        } else {
            self.plan(self.now + CONNECT_TIMEOUT, Event::ConnectingFails { link });
        }
    }

    fn open(&mut self, link: usize) {
        if self.links[link].open(self.now) {
            self.breakers[link].excuse_late();
        }
        for request in std::mem::take(&mut self.links[link].waiting) {
            self.send(request);
        }
        if self.breakers[link].is_open() {
            let is_alive = self.servers[self.server_of(link)].is_alive;
            self.plan(self.now + ROUND_TRIP, Event::Probed { link, is_alive });
        } else {
            self.end_or_go_on(link);
        }
    }

    fn fail_to_connect(&mut self, link: usize) {
        self.links[link].fail_to_open();
        for request in std::mem::take(&mut self.links[link].waiting) {
            if self.links[link].is_connected {
                self.send(request);
            } else {
                self.give_up(request, BackendErrorKind::Unavailable);
            }
        }
        self.end_or_go_on(link);
    }

    fn end_or_go_on(&mut self, link: usize) {
        if self.is_broken(link) {
            self.plan_attempt(link);
        } else {
            self.links[link].is_reconnecting = false;
        }
    }

    /// A request whose call has failed for good.
    fn give_up(&mut self, request: u64, why: BackendErrorKind) {
        let Some(failed) = self.get(request) else {
            return;
        };
        let (link, process, key, asked) = (failed.link, failed.process, failed.key, failed.asked);
        self.drop_request(request);
        self.fail(link, Failure::Fault);
        self.fall_back(process, key, asked, why);
    }

    fn instant(&self) -> Instant {
        self.start + Duration::from_nanos(self.now)
    }
}

/// The cluster, by the rules of `links::servers`.
impl Fleet<'_> {
    /// Asks one of the healthy servers for the slots, unless they were asked for lately.
    fn look_for_slots(&mut self, process: usize) {
        let now = self.instant();
        if !self.processes[process].slot_pauses.wait(now).is_zero() {
            return;
        }
        let random = self.chance.next();
        self.processes[process].slot_pauses.begin(now, random);
        self.outcome.slot_questions[process] += 1;
        let server = loop {
            let server = self.chance.below(CLUSTER);
            let link = self.link_of(process, server.min(self.settings.servers - 1));
            let is_healthy = self.links[link].is_usable(self.now) && !self.breakers[link].is_open();
            if server >= self.settings.servers || is_healthy {
                break server;
            }
        };
        let arrives = self.now + self.way(process);
        self.plan(arrives, Event::SlotQuestion { process, server });
    }

    fn answer_slots(&mut self, process: usize, server: usize) {
        let moved = self.servers[1].is_alive;
        let address = match server {
            0 => self.processes[process].address,
            _ => server * ADDRESSES,
        };
        let done = match self.servers.get_mut(address) {
            Some(server) if server.is_alive => {
                server.slot_questions += 1;
                server.serve(self.now, SLOTS_ANSWER).1
            }
            // It is asked in vain, and then the others are.
            Some(_) => self.now + CONNECT_TIMEOUT,
            // It is not simulated.
            None => self.now + SLOTS_ANSWER,
        };
        self.plan(done + self.way(process), Event::Slots { process, moved });
    }

    fn learn_slots(&mut self, process: usize, moved: bool) {
        if moved && self.processes[process].address == 0 {
            let former = self.link_of(process, 0);
            self.links[former].is_dropped = true;
            self.processes[process].address = 1;
            let link = self.link_of(process, 0);
            self.reconnect(link);
        }
    }

    fn lose(&mut self) {
        self.servers[0].is_alive = false;
        if self.settings.loss.is_some_and(|loss| loss.is_killed) {
            self.plan(self.now + ROUND_TRIP / 2, Event::ConnectionsEnd);
        }
    }

    fn end_connections(&mut self) {
        let sent = self.requests.iter().flatten();
        let sent =
            sent.filter(|request| request.sent.is_some() && self.server_of(request.link) == 0);
        let lost: Vec<(u64, bool)> = sent
            .map(|request| (request.number, request.is_decided))
            .collect();
        for process in 0..self.settings.processes {
            let link = self.link_of(process, 0);
            self.links[link].end();
            self.reconnect(link);
        }
        for (request, is_decided) in lost {
            if is_decided {
                self.drop_request(request);
            } else {
                self.give_up(request, BackendErrorKind::Unavailable);
            }
        }
    }

    fn bring_back(&mut self) {
        match self.settings.loss.expect("it was lost").then {
            Return::Replica => self.servers[1].is_alive = true,
            Return::Empty => {
                self.keys.forget(0);
                self.servers[0].is_alive = true;
            }
        }
    }
}
