//! Times contenders in turn, round after round, so that noise of the machine affects all of them
//! equally.

use std::hint;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::report::median;

pub const ROUNDS: usize = 11;

/// Turns in a round. A round's figure is their median, so a turn in which the machine did something
/// else does not count.
pub const TURNS: usize = 9;

/// One contender: takes a turn on a thread (the arguments are the thread's number and the turn's)
/// and returns how many steps it took.
pub type Contender<'a> = Box<dyn Fn(usize, usize) -> usize + Sync + 'a>;

/// ns per step and thread: one list of rounds for each contender. The first round only warms up.
pub fn compete(contenders: &[Contender<'_>], threads: usize) -> Vec<Vec<f64>> {
    let mut rounds = vec![Vec::new(); contenders.len()];
    for round in 0..=ROUNDS {
        let mut turns = vec![Vec::new(); contenders.len()];
        for turn in 0..TURNS {
            for (contender, nanos) in contenders.iter().zip(&mut turns) {
                nanos.push(time(contender, threads, turn));
            }
        }
        if round > 0 {
            rounds
                .iter_mut()
                .zip(&turns)
                .for_each(|(rounds, turns)| rounds.push(median(turns)));
        }
    }
    rounds
}

fn time(contender: &Contender<'_>, threads: usize, turn: usize) -> f64 {
    // Spinning, so that all threads are on a processor when they start.
    let waiting = AtomicUsize::new(threads);
    let run = |thread: usize| {
        waiting.fetch_sub(1, Ordering::AcqRel);
        while waiting.load(Ordering::Acquire) > 0 {
            hint::spin_loop();
        }
        let start = Instant::now();
        let steps = contender(thread, turn);
        (start.elapsed(), steps)
    };
    let per_step = |(elapsed, steps): (Duration, usize)| elapsed.as_secs_f64() * 1e9 / steps as f64;
    if threads == 1 {
        return per_step(run(0));
    }
    let run = &run;
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || run(thread)))
            .collect();
        let nanos: Vec<f64> = running
            .into_iter()
            .map(|t| {
                per_step(t.join().expect(
                    "no contender \
            panics",
                ))
            })
            .collect();
        nanos.iter().sum::<f64>() / threads as f64
    })
}

/// A small generator whose cost is negligible beside a decision (SplitMix64, Steele et al. 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, most: u32) -> u32 {
        (((self.next() >> 32) * u64::from(most)) >> 32) as u32
    }

    /// In 0..1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
