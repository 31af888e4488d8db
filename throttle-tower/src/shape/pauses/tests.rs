//! The rules by themselves, and random histories against what holds of each.

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const TRIP: Duration = Duration::from_millis(100);
const TERMS: Terms = Terms {
    interval: Duration::from_millis(20),
    longest: Duration::from_secs(3_600),
    slows: false,
};

/// A key, and the time.
struct Key {
    pauses: Pauses,
    now: Instant,
}

impl Key {
    fn new() -> Self {
        let now = Instant::now();
        let pauses = Pauses::new(now);
        Self { pauses, now }
    }

    /// A response to a call that left a round trip ago, and how long it pauses the key.
    fn hear(&mut self, status: u16, wait: Option<u64>, left: Option<(u64, u64)>) -> Duration {
        let reply = Reply {
            left: self.now - TRIP,
            now: self.now,
            status: StatusCode::from_u16(status).unwrap(),
            refuses: status == 429,
            wait: wait.map(Duration::from_secs),
            allowance: left.map(|(remaining, seconds)| Allowance {
                remaining,
                within: Duration::from_secs(seconds),
            }),
            used_up: None,
        };
        self.apply(&reply, TERMS)
    }

    fn apply(&mut self, reply: &Reply, terms: Terms) -> Duration {
        let pause = self.pauses.hear(reply, terms);
        if let Some((pause, cause)) = pause {
            let until = self.now + pause;
            self.pauses.pause(Pause { until, cause }, self.now);
        }
        pause.map_or(Duration::ZERO, |(pause, _)| pause)
    }

    fn leave(&mut self) {
        self.pauses.left(self.now, 1, TERMS.interval);
    }

    /// After a pause a call leaves, and a round trip passes.
    fn after_pause(&mut self) {
        self.now = self.now.max(self.pauses.end());
        self.leave();
        self.now += TRIP;
    }

    fn held(&self) -> Option<Duration> {
        self.pauses.held(self.now).map(|until| until - self.now)
    }
}

#[test]
fn refusals_without_a_time_pause_for_1_2_4_to_60_seconds_until_one_is_answered() {
    let mut key = Key::new();
    for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
        assert_eq!(key.hear(429, None, None), seconds * SECOND);
        key.after_pause();
    }
    assert_eq!(key.hear(500, None, None), Duration::ZERO);
    key.after_pause();
    assert_eq!(
        key.hear(429, None, None),
        60 * SECOND,
        "an error says nothing"
    );
    key.after_pause();
    assert_eq!(key.hear(200, None, None), Duration::ZERO);
    key.after_pause();
    assert_eq!(key.hear(429, None, None), SECOND);
}

#[test]
fn refusal_of_a_call_from_before_a_pause_does_not_double_it() {
    let mut key = Key::new();
    assert_eq!(key.hear(429, None, None), SECOND);
    key.now += TRIP;
    assert_eq!(key.hear(429, None, None), SECOND - TRIP, "the same end");
    assert_eq!(
        key.hear(429, Some(5), None),
        5 * SECOND,
        "a stated wait prolongs it"
    );
}

#[test]
fn first_pause_is_at_least_an_interval_and_a_period_bounds_each() {
    for (interval, used_up, pauses) in [
        (3, None, [3, 6, 12]),
        (0, Some(2), [1, 2, 2]),
        (90, None, [90, 90, 90]),
    ] {
        let mut key = Key::new();
        for seconds in pauses {
            let terms = Terms {
                interval: (interval * SECOND).max(TERMS.interval),
                ..TERMS
            };
            let reply = Reply {
                left: key.now - TRIP,
                now: key.now,
                status: StatusCode::TOO_MANY_REQUESTS,
                refuses: true,
                wait: None,
                allowance: None,
                used_up: used_up.map(Duration::from_secs),
            };
            assert_eq!(key.apply(&reply, terms), seconds * SECOND, "{interval}");
            key.after_pause();
        }
    }
}

#[test]
fn resets_are_learned_from_refusals_and_from_early_answers() {
    for (wait, resets) in [
        (None, Resets::Window),
        (Some(4), Resets::Refills),
        (Some(50), Resets::Window),
    ] {
        let mut key = Key::new();
        key.hear(429, wait, Some((0, 100)));
        assert_eq!(key.pauses.resets(), resets, "{wait:?}");
        // What is learned can be corrected.
        key.after_pause();
        key.hear(429, Some(1), Some((0, 100)));
        assert_eq!(key.pauses.resets(), Resets::Refills);
    }
    let mut key = Key::new();
    assert_eq!(key.hear(200, None, Some((0, 100))), Duration::ZERO);
    assert_eq!(key.held(), Some(SECOND), "tried after a second");
    key.now += SECOND;
    key.after_pause();
    assert_eq!(key.pauses.resets(), Resets::Unknown);
    key.hear(200, None, Some((0, 99)));
    assert_eq!((key.pauses.resets(), key.held()), (Resets::Refills, None));
}

/// The stated second may be over already when the answer comes.
#[test]
fn answer_less_than_a_second_before_the_reset_teaches_nothing() {
    let mut key = Key::new();
    key.hear(200, None, Some((0, 2)));
    key.now += SECOND;
    key.after_pause();
    key.hear(200, None, Some((5, 2)));
    assert_eq!(key.pauses.resets(), Resets::Unknown);
}

#[test]
fn what_is_left_is_counted_when_calls_under_way_could_use_it_up() {
    let mut key = Key::new();
    // Five intervals in a round trip: what is left beyond ten is not counted.
    key.hear(200, None, Some((11, 60)));
    assert!(!key.pauses.is_active(key.now));
    key.hear(200, None, Some((8, 60)));
    // Five have left meanwhile, at the pace.
    for _ in 0..3 {
        assert_eq!(key.held(), None);
        key.leave();
    }
    assert_eq!(key.held(), Some(2 * TRIP), "for an answer");
    key.now += TRIP / 2;
    key.pauses.hear(
        &Reply {
            left: key.now - TRIP / 2,
            ..reply(&key, 6)
        },
        TERMS,
    );
    assert_eq!(key.held(), None, "six are left after the last one");
    key.now += 60 * SECOND;
    key.leave();
    assert_eq!(
        key.held(),
        Some(TRIP),
        "the first one after the reset leaves alone"
    );
}

fn reply(key: &Key, remaining: u64) -> Reply {
    Reply {
        left: key.now - TRIP,
        now: key.now,
        status: StatusCode::OK,
        refuses: false,
        wait: None,
        allowance: Some(Allowance {
            remaining,
            within: 60 * SECOND,
        }),
        used_up: None,
    }
}

#[test]
fn calls_under_way_double_after_a_refusal_until_the_pace_is_the_limit() {
    let mut key = Key::new();
    key.hear(429, Some(1), None);
    key.now = key.pauses.end();
    for size in [1, 2, 4] {
        for call in 0..size {
            assert_eq!(key.held(), None, "{call} of {size}");
            key.leave();
        }
        assert!(key.held() > Some(2 * SECOND), "{size}");
        key.now += TRIP;
        for _ in 0..size {
            key.hear(200, None, None);
        }
    }
    assert!(
        !key.pauses.is_active(key.now),
        "more than fit into a round trip"
    );
}

#[test]
fn lost_probe_gives_its_place_back_and_one_that_hangs_is_given_up() {
    let mut key = Key::new();
    key.hear(429, Some(1), None);
    key.now = key.pauses.end();
    key.leave();
    let left = key.now;
    key.now += TRIP;
    assert!(key.held().is_some());
    assert!(key.pauses.give_back(left) && key.held().is_none());
    key.leave();
    key.now += key.held().unwrap();
    assert_eq!(key.held(), None);
    key.leave();
    assert!(key.held().is_some());
}

#[test]
fn pace_that_slows_down_halves_at_most_to_a_thirty_second_and_grows_in_a_minute() {
    let mut key = Key::new();
    let terms = Terms {
        slows: true,
        ..TERMS
    };
    for half in [2, 4, 8, 16, 32, 32] {
        let refusal = Reply {
            refuses: true,
            status: StatusCode::FORBIDDEN,
            allowance: None,
            wait: Some(SECOND),
            ..reply(&key, 0)
        };
        key.apply(&refusal, terms);
        assert_eq!(key.pauses.stretched(SECOND, key.now), half * SECOND);
        key.now = key.pauses.end() + TRIP;
        key.pauses.part = key.pauses.part.map(|(part, _)| (part, key.now));
    }
    key.now += 28 * SECOND + SECOND / 8;
    assert_eq!(key.pauses.stretched(SECOND, key.now), 2 * SECOND);
    key.now += 30 * SECOND;
    assert_eq!(key.pauses.stretched(SECOND, key.now), SECOND);
    let used_up = Reply {
        refuses: true,
        ..reply(&key, 0)
    };
    key.apply(&used_up, terms);
    assert_eq!(
        key.pauses.stretched(SECOND, key.now),
        SECOND,
        "nothing left explains it"
    );
}

#[test]
fn key_is_forgotten_some_time_after_its_last_wait() {
    for (wait, left, seconds) in [
        (None, None, 1 + 60),
        (Some(300), None, 300 + 60),
        (None, Some((0, 300)), 300 + 3_600),
        (Some(86_400), Some((0, 86_400)), 3_600 + 3_600),
    ] {
        let mut key = Key::new();
        key.hear(429, wait, left);
        let end = key.now + seconds * SECOND;
        assert!(
            key.pauses.is_needed(end - TRIP) && !key.pauses.is_needed(end),
            "{seconds}"
        );
    }
}

/// Numbers that repeat for each seed.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// Histories of hostile statements, late and lost answers, answers out of order, and pauses of
/// others. `THROTTLE_HISTORIES` sets how many.
#[test]
fn law_16_no_history_leaves_early_waits_for_long_or_is_kept_for_ever() {
    let histories = std::env::var("THROTTLE_HISTORIES").map_or(100_000, |n| n.parse().unwrap());
    let far = [0, 1, 2, 59, 300, 7_200, 1 << 40, u64::MAX];
    for seed in 0..histories {
        let (mut random, start) = (Random(seed), Instant::now());
        let (mut pauses, mut now) = (Pauses::new(start), start);
        let terms = Terms {
            interval: Duration::from_millis(random.pick(&[1, 20, 200, 90_000])),
            longest: Duration::from_secs(random.pick(&[0, 2, 60, 3_600])),
            slows: random.below(4) == 0,
        };
        let (mut under_way, mut longest_trip) = (Vec::new(), Duration::ZERO);
        let mut pause_until = start;
        for _ in 0..random.below(40) {
            now += Duration::from_millis(random.pick(&[0, 1, 20, 20, 200, 1_000, 70_000]));
            match random.below(8) {
                0..4 if pauses.end() <= now => {
                    assert!(now >= pause_until, "seed {seed}: left in a pause");
                    if let Some(until) = pauses.held(now) {
                        let most = (3 * longest_trip + 2 * SECOND).max(SECOND);
                        assert!(
                            until <= now + most,
                            "seed {seed}: held for {:?}",
                            until - now
                        );
                        // Only a call whose bound ends leaves.
                        if random.below(3) > 0 {
                            continue;
                        }
                    }
                    pauses.left(now, random.pick(&[0, 1, 1, 5]), terms.interval);
                    under_way.push(now);
                }
                4 if !under_way.is_empty() => {
                    let lost = random.below(under_way.len() as u64) as usize;
                    pauses.give_back(under_way.swap_remove(lost));
                }
                5 => {
                    let until = now + Duration::from_secs(random.below(100));
                    let cause = random.pick(&[PauseCause::Program, PauseCause::Fleet]);
                    pauses.pause(Pause { until, cause }, now);
                    pause_until = pause_until.max(until);
                }
                _ if !under_way.is_empty() => {
                    let answered = random.below(under_way.len() as u64) as usize;
                    let left = under_way.swap_remove(answered);
                    let status = random.pick(&[200, 200, 204, 400, 403, 429, 500, 503]);
                    let said = |random: &mut Random| Duration::from_secs(random.pick(&far));
                    let reply = Reply {
                        left,
                        now,
                        status: StatusCode::from_u16(status).unwrap(),
                        refuses: matches!(status, 403 | 429 | 503),
                        wait: (random.below(3) == 0).then(|| said(&mut random).max(SECOND)),
                        allowance: (random.below(2) == 0).then(|| Allowance {
                            remaining: random.pick(&[0, 0, 1, 5, 50, u64::MAX]),
                            within: said(&mut random),
                        }),
                        used_up: (random.below(8) == 0).then(|| said(&mut random)),
                    };
                    longest_trip = longest_trip.max(now - left);
                    let asks = reply.wait.is_some() && reply.refuses;
                    let pause = pauses.hear(&reply, terms);
                    match pause {
                        Some((pause, cause)) => {
                            assert!(pause <= terms.longest, "seed {seed}: {pause:?}");
                            pauses.pause(
                                Pause {
                                    until: now + pause,
                                    cause,
                                },
                                now,
                            );
                            pause_until = pause_until.max(now + pause);
                        }
                        None if asks => {
                            assert!(terms.longest.is_zero(), "seed {seed}: a wait ignored");
                        }
                        None => {}
                    }
                    assert!(pauses.end() >= pause_until, "seed {seed}: shortened");
                    if !reply.refuses && pauses.resets() != Resets::Window {
                        assert!(pause.is_none(), "seed {seed}: an answer paused a key");
                    }
                }
                _ => {}
            }
        }
        let end = now + 2 * REMEMBERED + 2 * LONGEST + 32 * terms.interval + 100 * SECOND;
        assert!(
            !pauses.is_needed(end + terms.longest),
            "seed {seed}: kept for ever"
        );
        assert!(pauses.held(end).is_none(), "seed {seed}: held for ever");
    }
}
