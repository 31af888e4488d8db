//! What is printed.

use std::fmt::Write as _;

use crate::condition::COUNTED;
use crate::fit::Fit;
use crate::log::Reading;
use crate::percent::Percent;
use crate::replay::Replayed;
use crate::rule_file::RuleFile;
use crate::tally::{LimitTally, Tally, top};
use crate::text::{bracket, escaped, number};
use crate::time;

const REJECTED: &str = "lines of what is no request, which no limit sees";
const UNDECIDED: &str = "lines that are undecided, and not counted";

/// What was read, and what a log cannot tell. A line for each.
pub fn about_log(log: &Reading) -> Vec<String> {
    let mut lines = Vec::new();
    let (first, last) = log.span.unwrap_or_default();
    lines.push(format!(
        "{} requests from {} to {}",
        number(log.requests),
        time::shown(first),
        time::shown(last)
    ));
    let mut add = |count: u64, what: &str| {
        lines.extend((count > 0).then(|| format!("{what}: {}", number(count))));
    };
    add(log.rejected.count, REJECTED);
    add(log.undecided.count, UNDECIDED);
    add(
        log.moved,
        "requests that were logged after one that started later, and were put in order",
    );
    add(
        log.late,
        "of them, those too late for --window, which are undecided and not counted",
    );
    add(
        log.without_address,
        "requests without an address, as where the log has the names of hosts",
    );
    add(
        log.answered_429,
        "requests that were refused with 429 when they were logged",
    );
    if log.whole_seconds > 0 {
        lines.push(
            "the log knows only seconds: two numbers are for all requests of a second at its \
                start and for requests \
             spread evenly over it"
                .to_owned(),
        );
    }
    lines
}

/// What was read, with the first lines that are not counted.
pub fn log(log: &Reading) -> String {
    let mut shown = String::new();
    for line in about_log(log) {
        shown += &format!("{line}\n");
        // Below their number.
        for (what, lines) in [(REJECTED, &log.rejected), (UNDECIDED, &log.undecided)] {
            if line.starts_with(what) {
                shown += &format!("{}\n", lines.shown());
            }
        }
    }
    shown
}

pub const AS_LOGGED: &str = "refused clients would have come again, or not at all: the requests \
    are decided as they were logged";

fn blocks(replayed: &Replayed, rows: &[(&str, usize)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let row = |(name, kind): &(&str, usize)| {
        format!("{name:width$} |{}|\n", replayed.timeline.blocks(*kind))
    };
    rows.iter().map(row).collect()
}

/// What a file has decided.
pub fn replay(file: &RuleFile, replayed: &Replayed, most: usize) -> String {
    let mut shown = format!("{}{AS_LOGGED}\n", log(&replayed.log));
    file.notes
        .iter()
        .for_each(|note| _ = writeln!(shown, "{note}"));
    let tallies = || replayed.assumed.iter().map(|assumed| &assumed.tallies[0]);
    let refused = |tally: &Tally| tally.refused;
    let admitted = bracket(tallies().map(|tally| replayed.log.decided() - refused(tally)));
    let _ = writeln!(
        shown,
        "\n{}: admits {admitted}, refuses {}",
        file.name,
        bracket(tallies().map(refused))
    );
    for (what, count) in [
        (
            "refused for want of a key",
            (|tally| tally.lacking_key) as fn(&Tally) -> u64,
        ),
        (
            "decided in a store that was full, where keys share a budget",
            |tally| tally.overflow,
        ),
    ] {
        if tallies().any(|tally| count(tally) > 0) {
            let _ = writeln!(shown, "  {what}: {}", bracket(tallies().map(count)));
        }
    }
    for (place, limit) in replayed.assumed[0].tallies[0].limits.iter().enumerate() {
        let limits = || tallies().map(move |tally| &tally.limits[place]);
        if let Some(why) = nothing_decided(file, limit) {
            let _ = writeln!(shown, "  limit {:?}: {why}", limit.name);
            continue;
        }
        let _ = writeln!(
            shown,
            "  limit {:?}: asked {}, would refuse {}, keys refused {}",
            limit.name,
            number(limit.asked),
            bracket(limits().map(|limit| limit.refused)),
            bracket(limits().map(|limit| limit.keys.len() as u64))
        );
        // By the assumption under which most is refused.
        let Some(worst) = limits().max_by_key(|limit| limit.refused) else {
            continue;
        };
        for (key, _) in worst.top(most) {
            let counts = limits().map(|limit| limit.keys.get(key).copied().unwrap_or(0));
            let _ = writeln!(shown, "    {:>12}  {}", bracket(counts), escaped(key));
        }
    }
    shown + "\n" + &blocks(replayed, &[("requests", 0), ("refused", 1)])
}

/// Why a limit has no numbers.
pub fn nothing_decided(file: &RuleFile, limit: &LimitTally) -> Option<&'static str> {
    let is_skipped = file
        .limits
        .iter()
        .any(|of_file| of_file.name == limit.name && of_file.is_skipped);
    match limit.asked {
        _ if is_skipped => Some("skipped"),
        0 => Some("applies to no request"),
        _ => None,
    }
}

/// What a second file changes.
pub fn plan(files: [&RuleFile; 2], replayed: &Replayed, most: usize) -> String {
    let mut shown = format!("{}{AS_LOGGED}\n", log(&replayed.log));
    for file in files {
        file.notes
            .iter()
            .for_each(|note| _ = writeln!(shown, "{}: {note}", file.name));
    }
    for (file, tally) in files.into_iter().zip(&replayed.assumed[0].tallies) {
        for limit in tally.limits.iter().filter(|limit| limit.asked == 0) {
            if let Some(why) = nothing_decided(file, limit).filter(|why| *why != "skipped") {
                let _ = writeln!(shown, "{}: limit {:?} {why}", file.name, limit.name);
            }
        }
    }
    shown.push('\n');
    for (place, file) in files.iter().enumerate() {
        let refused = bracket(
            replayed
                .assumed
                .iter()
                .map(|assumed| assumed.tallies[place].refused),
        );
        let _ = writeln!(shown, "{} refuses {refused}", file.name);
    }
    for (place, counted) in COUNTED.iter().enumerate() {
        let counts = bracket(
            replayed
                .assumed
                .iter()
                .map(|assumed| assumed.counts()[place]),
        );
        let _ = writeln!(shown, "  {counted}: {counts}");
    }
    for (what, keys) in newly(replayed, most) {
        if !keys.is_empty() {
            let _ = writeln!(shown, "{what}:");
        }
        for ((limit, key), count) in keys {
            let _ = writeln!(
                shown,
                "  {:>12}  limit {limit:?}: {}",
                number(count),
                escaped(key)
            );
        }
    }
    shown
        + "\n"
        + &blocks(
            replayed,
            &[
                ("requests", 0),
                ("refused by the old", 1),
                ("refused by the new", 2),
            ],
        )
}

/// A limit and a key, and how many requests it refuses of it.
pub type KeyOfLimit<'r> = ((&'r str, &'r str), u64);

/// The keys for which a second file changes most.
pub fn newly(replayed: &Replayed, most: usize) -> [(&'static str, Vec<KeyOfLimit<'_>>); 2] {
    let [old, new] = replayed.assumed[0].tallies.as_slice() else {
        return [("", Vec::new()), ("", Vec::new())];
    };
    let top_of = |of, beside| {
        top(
            Tally::keys_beside(of, beside).map(|(limit, key, n)| ((limit, key), n)),
            most,
        )
    };
    [
        ("Newly refused keys", top_of(new, old)),
        ("Keys that are refused no more", top_of(old, new)),
    ]
}

/// What a fit was asked for.
pub struct FitAsked<'a> {
    pub log: &'a Reading,
    pub by: &'a str,
    pub keys: usize,
    pub without_key: u64,
    pub refuse_at_most: Percent,
    /// For each rate the fit that serves under both assumptions, and those of each.
    pub fits: &'a [(Fit, Vec<Fit>)],
}

/// The limits that fit, as a part of a rule file.
pub fn fit(asked: &FitAsked<'_>) -> String {
    let mut shown = String::new();
    for line in log(asked.log)
        .lines()
        .chain([AS_LOGGED])
        .chain(asked.about().iter().map(String::as_str))
    {
        let _ = writeln!(shown, "# {line}");
    }
    let name = if asked.by == "client-ip" {
        "per-ip"
    } else {
        "fitted"
    };
    let parts: Vec<String> = asked
        .by
        .split(',')
        .map(|part| format!("{:?}", part.trim()))
        .collect();
    let by = if parts.len() == 1 {
        parts.concat()
    } else {
        format!("[{}]", parts.join(", "))
    };
    // Without it, requests without the key would share a budget.
    let on_missing = match asked.without_key {
        0 => "",
        _ => "on-missing = \"skip\"\n",
    };
    let _ = writeln!(
        shown,
        "\n[[limit]]\nname = {name:?}\nby = {by}\n{on_missing}# Keep one of these lines:"
    );
    let rules: Vec<_> = asked
        .fits
        .iter()
        .map(|(fit, each)| (fit.rule(), fit, each))
        .collect();
    let width = rules
        .iter()
        .filter_map(|(rule, ..)| rule.as_ref().ok())
        .map(String::len)
        .max()
        .unwrap_or(0);
    for (rule, fit, each) in rules {
        let _ = match rule {
            Ok(rule) => writeln!(shown, "# {rule:width$}  # {}", about_fit(fit, each)),
            Err(error) => writeln!(shown, "# {}: {error}", fit.rate),
        };
    }
    shown
}

impl FitAsked<'_> {
    pub fn about(&self) -> Vec<String> {
        let Self {
            by,
            keys,
            refuse_at_most,
            without_key,
            ..
        } = self;
        let most = number(refuse_at_most.of(*keys) as u64);
        let mut lines = vec![format!(
            "{} keys by {}; a limit may refuse anything to {refuse_at_most} of them, which is \
                {most}",
            number(*keys as u64),
            escaped(by)
        )];
        lines.extend((*without_key > 0).then(|| {
            format!(
                "{} requests have no such key, and are not limited",
                number(*without_key)
            )
        }));
        lines
    }
}

/// What a limit that fits does.
pub fn about_fit(fit: &Fit, each: &[Fit]) -> String {
    let mut shown = format!("keys refused: {}", number(fit.refused_keys as u64));
    let bursts = each.iter().map(|fit| fit.burst);
    if bursts.clone().min() != bursts.clone().max() {
        let _ = write!(shown, "; burst {} by how a second is read", bracket(bursts));
    }
    if fit.burst_for_all > fit.burst {
        let _ = write!(shown, "; none with burst {}", number(fit.burst_for_all));
    }
    shown
}
