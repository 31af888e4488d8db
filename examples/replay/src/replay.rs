//! Decides a log by one rule file, or by two of which the second is to replace the first.

use crate::args::LogArguments;
use crate::condition::Counts;
use crate::entry::{Entry, SECOND};
use crate::log::{self, Reading};
use crate::rule_file::RuleFile;
use crate::tally::{Tallied, Tally};
use crate::timeline::Timeline;

/// What was decided.
pub struct Replayed {
    pub log: Reading,
    /// Requests, and those that each file refuses, if all requests of a second came at its start.
    pub timeline: Timeline<3>,
    /// Where the log knows only seconds there are two: the requests of a second came all at its
    /// start, or evenly spread.
    pub assumed: Vec<Assumed>,
}

/// What was decided under one assumption.
#[derive(Default)]
pub struct Assumed {
    /// For each file.
    pub tallies: Vec<Tally>,
    pub newly_refused: u64,
    pub newly_admitted: u64,
}

/// # Errors
///
/// If the log cannot be read, or the limits cannot be built.
pub fn replay(files: &[&RuleFile], arguments: &LogArguments) -> anyhow::Result<Replayed> {
    let mut timeline = Timeline::default();
    let mut assumed: Vec<(Vec<Tallied<'_>>, Assumed)> = Vec::new();
    // Built once before the log is read, so that limits which cannot be built are an error.
    let tallied = || {
        files
            .iter()
            .map(|file| Tallied::new(file))
            .collect::<Result<Vec<_>, _>>()
    };
    let mut spare = Some((tallied()?, tallied()?));
    let log = log::read(arguments, |together| {
        if let Some((at_start, spread)) = spare.take() {
            assumed.push((at_start, Assumed::default()));
            if !together[0].is_precise {
                assumed.push((spread, Assumed::default()));
            }
        }
        for (assumption, (files, counts)) in assumed.iter_mut().enumerate() {
            for (place, entry) in together.iter().enumerate() {
                let at = if assumption == 0 {
                    entry.start
                } else {
                    spread_at(together, place)
                };
                let mut refused = [0; 2];
                for (file, refused) in files.iter_mut().zip(&mut refused) {
                    *refused = u64::from(file.decide(at, entry));
                }
                if assumption == 0 {
                    timeline.add(at, [1, refused[0], refused[1]]);
                }
                counts.newly_refused += u64::from(refused == [0, 1]);
                counts.newly_admitted += u64::from(refused == [1, 0]);
            }
        }
    })?;
    let assumed = assumed.into_iter().map(|(files, counts)| {
        let tallies = files.into_iter().map(|file| file.tally).collect();
        Assumed { tallies, ..counts }
    });
    Ok(Replayed {
        log,
        timeline,
        assumed: assumed.collect(),
    })
}

/// When a request came, if those of one second were evenly spread.
pub fn spread_at(together: &[Entry], place: usize) -> i64 {
    let (place, all) = (
        i64::try_from(place).unwrap_or(0),
        i64::try_from(together.len()).unwrap_or(1),
    );
    together[0].start + place * SECOND / all
}

impl Assumed {
    /// What conditions on a plan compare.
    pub fn counts(&self) -> Counts {
        let [old, new] = self.tallies.as_slice() else {
            return Counts::default();
        };
        let keys = |of: &Tally, beside: &Tally| of.keys_beside(beside).count() as u64;
        let keys_of_new = new.refused_keys();
        [
            self.newly_refused,
            self.newly_admitted,
            keys(new, old),
            keys(old, new),
            new.refused,
            keys_of_new,
        ]
    }
}
