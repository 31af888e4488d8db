//! How things are timed: contenders in turn, round after round, so that a noisy machine is equally unkind to all.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

pub const ROUNDS: usize = 11;

/// One contender: runs a batch on a thread (the argument is the thread's number) and returns how many steps it took.
pub type Contender<'a> = Box<dyn Fn(usize) -> usize + Sync + 'a>;

/// ns per step and thread: one list of rounds for each contender. The first round only warms up.
pub fn compete(contenders: &[Contender<'_>], threads: usize) -> Vec<Vec<f64>> {
    let mut rounds = vec![Vec::new(); contenders.len()];
    for round in 0..=ROUNDS {
        for (contender, nanos) in contenders.iter().zip(&mut rounds) {
            let measured = time(contender, threads);
            if round > 0 {
                nanos.push(measured);
            }
        }
    }
    rounds
}

fn time(contender: &Contender<'_>, threads: usize) -> f64 {
    let barrier = Barrier::new(threads);
    let run = |thread: usize| {
        barrier.wait();
        let start = Instant::now();
        let steps = contender(thread);
        (start.elapsed(), steps)
    };
    let per_step = |(elapsed, steps): (Duration, usize)| elapsed.as_secs_f64() * 1e9 / steps as f64;
    if threads == 1 {
        return per_step(run(0));
    }
    let run = &run;
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        let nanos: Vec<f64> = running.into_iter().map(|t| per_step(t.join().expect("no contender panics"))).collect();
        nanos.iter().sum::<f64>() / threads as f64
    })
}

/// A small generator whose cost is nothing beside a decision (SplitMix64, Steele et al. 2014).
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
