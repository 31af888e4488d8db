//! Replays access logs against rule files: what limits would have done, what a change does, and
//! which limits fit.

mod args;
mod by;

mod chart;
mod combined;
mod condition;
mod count;
mod entry;
mod fit;
mod flaw;
mod json;
mod likeness;
mod line_reader;
mod log;
mod names;
mod order;
mod page;

mod percent;
mod replay;
mod report;
mod routes;
mod rule_file;
mod run;
mod tally;
mod text;
mod time;
mod timeline;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Parser;
use throttle_tower::Rate;

use crate::args::{Arguments, Command, LogArguments, Out};
use crate::by::{By, Known};
use crate::condition::Condition;
use crate::count::Count;
use crate::entry::Entry;
use crate::fit::{Fit, Needs};
use crate::percent::Percent;
use crate::report::FitAsked;
use crate::timeline::Timeline;

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Check { rules } => check(&rules)?,
        Command::Count { log, top } => count(&log, top)?,
        Command::Replay { rules, log, out } => replay(&rules, &log, &out)?,
        Command::Plan {
            old,
            new,
            log,
            out,
            fail_if,
        } => return plan([&old, &new], &log, &out, &fail_if),
        Command::Fit {
            log,
            out,
            by,
            refuse_at_most,
            rates,
        } => fit(&log, &out, &by, refuse_at_most, &rates)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn check(rules: &Path) -> anyhow::Result<()> {
    let names = rule_file::check(rules)?.listed(&[]);
    println!("{}: nothing is wrong", rules.display());
    if !names.is_empty() {
        println!("the program must register: {}", names.join(", "));
    }
    Ok(())
}

fn count(log: &LogArguments, most: usize) -> anyhow::Result<()> {
    let mut count = Count::default();
    // Counting needs no order.
    let add = |entry: &Entry| {
        count.add(entry);
        None
    };
    let reading = log::read(log, add, |_| {})?;
    print!("{}{}", report::log(&reading), count.shown(most));
    Ok(())
}

fn replay(rules: &Path, log: &LogArguments, out: &Out) -> anyhow::Result<()> {
    let file = rule_file::read(rules, log)?;
    let replayed = replay::replay(&[&file], log)?;
    print!("{}", report::replay(&file, &replayed, out.top));
    write(out, || page::replay(&file, &replayed, out.top))
}

fn plan(
    paths: [&Path; 2],
    log: &LogArguments,
    out: &Out,
    conditions: &[Condition],
) -> anyhow::Result<ExitCode> {
    let files = [
        rule_file::read(paths[0], log)?,
        rule_file::read(paths[1], log)?,
    ];
    let replayed = replay::replay(&[&files[0], &files[1]], log)?;
    print!(
        "{}",
        report::plan([&files[0], &files[1]], &replayed, out.top)
    );
    write(out, || {
        page::plan([&files[0], &files[1]], &replayed, out.top)
    })?;
    let undecided = files[0].undecided_changes(&files[1]);
    if !conditions.is_empty() && !undecided.is_empty() {
        bail!(
            "--fail-if has no result: the files differ in what the log does not decide: {}",
            undecided.join(", ")
        );
    }
    // A condition holds if it does under one of the assumptions.
    let holds = |condition: &&Condition| {
        replayed
            .assumed
            .iter()
            .any(|assumed| condition.holds(&assumed.counts()))
    };
    let holding: Vec<_> = conditions.iter().filter(holds).collect();
    holding
        .iter()
        .for_each(|condition| println!("fails: {condition}"));
    Ok(if holding.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    })
}

fn fit(
    log: &LogArguments,
    out: &Out,
    by: &str,
    refuse_at_most: Percent,
    rates: &[Rate],
) -> anyhow::Result<()> {
    let by = if by == "ip" { "client-ip" } else { by };
    let fields: Vec<String> = log.fields.iter().map(|(name, _)| name.clone()).collect();
    let known = Known {
        fields: &fields,
        headers: log.format.headers(),
    };
    let key = By::All(
        by.split(',')
            .map(|part| By::named(part.trim(), &known))
            .collect(),
    );
    if let Some(unknown) = key.unknown() {
        bail!("no log has the key {unknown:?}; --field can name a field for it");
    }
    let (mut at_start, mut spread, mut label) =
        (Needs::new(rates), Needs::new(rates), String::new());
    let (mut timeline, mut without_key) = (Timeline::<3>::default(), 0);
    let undecided = |entry: &Entry| key.lacks_address(entry).then_some(rule_file::NO_ADDRESS);
    let reading = log::read(log, undecided, |together| {
        for (place, entry) in together.iter().enumerate() {
            timeline.add(entry.start, [1, 0, 0]);
            label.clear();
            if !key.write(entry, entry.route.as_deref(), &mut label) {
                without_key += 1;
                continue;
            }
            at_start.add(&label, entry.start);
            spread.add(&label, replay::spread_at(together, place));
        }
    })?;
    reading.require_decided()?;
    if at_start.keys() == 0 {
        bail!(
            "none of the {} requests has a key by {by}: there is nothing to fit",
            reading.requests
        );
    }
    let mut fits: Vec<(Fit, Vec<Fit>)> = at_start
        .fits(refuse_at_most)
        .into_iter()
        .map(|fit| (fit, vec![fit]))
        .collect();
    if reading.whole_seconds > 0 {
        for ((fit, each), spread) in fits.iter_mut().zip(spread.fits(refuse_at_most)) {
            *fit = fit.of_both(spread);
            each.push(spread);
        }
    }
    let keys = at_start.keys();
    let asked = FitAsked {
        log: &reading,
        by,
        keys,
        without_key,
        refuse_at_most,
        fits: &fits,
    };
    print!("{}", report::fit(&asked));
    write(out, || page::fit(&asked, &timeline))
}

fn write(out: &Out, page: impl FnOnce() -> anyhow::Result<String>) -> anyhow::Result<()> {
    let Some(path) = &out.html else { return Ok(()) };
    std::fs::write(path, page()?).with_context(|| format!("{} cannot be written", path.display()))
}
