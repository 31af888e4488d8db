//! Decides a log by one rule file, or by two of which the second is to replace the first.

use anyhow::bail;

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
/// If the log cannot be read, the limits cannot be built, more than a few lines are undecided, or
/// no limit applies to a request.
pub fn replay(files: &[&RuleFile], arguments: &LogArguments) -> anyhow::Result<Replayed> {
    let mut timeline = Timeline::default();
    let tallied = || {
        files
            .iter()
            .map(|file| Tallied::new(file))
            .collect::<Result<Vec<_>, _>>()
    };
    let mut assumed = vec![
        (tallied()?, Assumed::default()),
        (tallied()?, Assumed::default()),
    ];
    let undecided = |entry: &Entry| files.iter().find_map(|file| file.undecided(entry));
    let log = log::read(arguments, undecided, |together| {
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
    log.require_decided()?;
    if log.whole_seconds == 0 {
        assumed.truncate(1);
    }
    let assumed = assumed.into_iter().map(|(files, counts)| {
        let tallies = files.into_iter().map(|file| file.tally).collect();
        Assumed { tallies, ..counts }
    });
    let replayed = Replayed {
        log,
        timeline,
        assumed: assumed.collect(),
    };
    let mut limits = replayed.assumed[0]
        .tallies
        .iter()
        .flat_map(|tally| &tally.limits);
    if limits.all(|limit| limit.asked == 0) {
        bail!("{}", nothing_applies(files));
    }
    Ok(replayed)
}

/// What to say where no limit decides a request.
fn nothing_applies(files: &[&RuleFile]) -> String {
    let mut text = "no result: no limit applies to a request of the log".to_owned();
    for file in files {
        for limit in file.limits.iter().filter(|limit| !limit.is_skipped) {
            text += &format!("\n{}: limit {:?} matches none", file.name, limit.name);
        }
        let notes = file.notes.iter();
        text.extend(notes.map(|note| format!("\n{}: {note}", file.name)));
    }
    text
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
