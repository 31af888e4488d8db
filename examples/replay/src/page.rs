//! Results as a page: one file, with nothing from outside.

use std::fmt::Write as _;

use crate::chart;
use crate::condition::COUNTED;
use crate::fit::Fit;
use crate::replay::Replayed;
use crate::report::{self, FitAsked};
use crate::rule_file::RuleFile;
use crate::tally::Tally;
use crate::text::{bracket, html, number};
use crate::timeline::Timeline;

const STYLE: &str = include_str!("page.css");

/// What a file has decided.
pub fn replay(file: &RuleFile, replayed: &Replayed, most: usize) -> anyhow::Result<String> {
    let mut body = about(replayed, &[file]);
    body += &timeline(&replayed.timeline, &["requests", "refused"])?;
    let first = || replayed.assumed.iter().map(|assumed| &assumed.tallies[0]);
    let admitted = bracket(first().map(|tally| replayed.log.decided() - tally.refused));
    let refused = bracket(first().map(|tally| tally.refused));
    let _ = write!(
        body,
        "<p class=sum>admits <b>{admitted}</b>, refuses <b>{refused}</b></p>"
    );
    body += "<h2>Limits</h2>";
    let rows = replayed.assumed[0].tallies[0]
        .limits
        .iter()
        .enumerate()
        .map(|(place, limit)| {
            let limits = || first().map(move |tally| &tally.limits[place]);
            if let Some(why) = report::nothing_decided(file, limit) {
                return vec![
                    html(&limit.name),
                    String::new(),
                    why.to_owned(),
                    String::new(),
                ];
            }
            let keys = bracket(limits().map(|limit| limit.keys.len() as u64));
            let refused = limits().map(|limit| limit.refused);
            let share = (refused.clone().max().unwrap_or(0), limit.asked);
            vec![
                html(&limit.name),
                number(limit.asked),
                bar(&bracket(refused), share),
                keys,
            ]
        });
    body += &table(&["limit", "asked", "would refuse", "keys refused"], rows);
    for (place, limit) in replayed.assumed[0].tallies[0].limits.iter().enumerate() {
        let limits = || first().map(move |tally| &tally.limits[place]);
        let Some(worst) = limits()
            .max_by_key(|limit| limit.refused)
            .filter(|worst| worst.refused > 0)
        else {
            continue;
        };
        let _ = write!(
            body,
            "<h2>Keys that {} refuses most</h2>",
            html(&limit.name)
        );
        let rows = worst.top(most).into_iter().map(|(key, count)| {
            let counts = limits().map(|limit| limit.keys.get(key).copied().unwrap_or(0));
            vec![
                format!("<code>{}</code>", html(key)),
                bar(&bracket(counts), (count, worst.refused)),
            ]
        });
        body += &table(&["key", "refused"], rows);
    }
    Ok(page(&file.name, &body))
}

/// What a second file changes.
pub fn plan(files: [&RuleFile; 2], replayed: &Replayed, most: usize) -> anyhow::Result<String> {
    let mut body = about(replayed, &files);
    body += &timeline(
        &replayed.timeline,
        &["requests", "refused by the old", "refused by the new"],
    )?;
    body += "<h2>What changes</h2>";
    let rows = COUNTED.iter().enumerate().map(|(place, counted)| {
        vec![
            (*counted).to_owned(),
            bracket(
                replayed
                    .assumed
                    .iter()
                    .map(|assumed| assumed.counts()[place]),
            ),
        ]
    });
    body += &table(&["counted", "number"], rows);
    body += "<h2>Limits</h2>";
    let [old, new] = [0, 1].map(|file| &replayed.assumed[0].tallies[file].limits);
    let names = old.iter().chain(
        new.iter()
            .filter(|limit| old.iter().all(|old| old.name != limit.name)),
    );
    let refused = |file: usize, name: &str| {
        let of = |tally: &'_ Tally| tally.limits.iter().position(|limit| limit.name == name);
        let Some(place) = of(&replayed.assumed[0].tallies[file]) else {
            return "no such limit".to_owned();
        };
        let limits = || {
            replayed
                .assumed
                .iter()
                .map(|assumed| &assumed.tallies[file].limits[place])
        };
        let nothing = limits().find_map(|limit| report::nothing_decided(files[file], limit));
        nothing.map_or_else(
            || bracket(limits().map(|limit| limit.refused)),
            str::to_owned,
        )
    };
    let rows = names.map(|limit| {
        vec![
            html(&limit.name),
            refused(0, &limit.name),
            refused(1, &limit.name),
        ]
    });
    body += &table(
        &["limit", "the old would refuse", "the new would refuse"],
        rows,
    );
    for (what, keys) in report::newly(replayed, most)
        .into_iter()
        .filter(|(_, keys)| !keys.is_empty())
    {
        let _ = write!(body, "<h2>{what}</h2>");
        let rows = keys.into_iter().map(|((limit, key), count)| {
            vec![
                html(limit),
                format!("<code>{}</code>", html(key)),
                number(count),
            ]
        });
        body += &table(&["limit", "key", "requests"], rows);
    }
    Ok(page(
        &format!("{} instead of {}", files[1].name, files[0].name),
        &body,
    ))
}

/// The limits that fit.
pub fn fit(asked: &FitAsked<'_>, over_time: &Timeline<3>) -> anyhow::Result<String> {
    let lines = report::about_log(asked.log)
        .into_iter()
        .chain([report::AS_LOGGED.to_owned()])
        .chain(asked.about());
    let mut body = list(lines);
    body += &timeline(over_time, &["requests"])?;
    body += "<h2>Limits that fit</h2>";
    let fits: Vec<Fit> = asked.fits.iter().map(|(fit, _)| *fit).collect();
    let few = format!("refuses at most {} of the keys", asked.refuse_at_most);
    body += &figure(
        "The least burst by rate",
        &chart::curve(&fits)?,
        &[&few, "refuses none"],
    );
    let rows = asked.fits.iter().map(|(fit, each)| {
        let rule = fit.rule().unwrap_or_else(|error| error.to_string());
        vec![
            format!("<code>{}</code>", html(&rule)),
            html(&report::about_fit(fit, each)),
        ]
    });
    body += &table(&["limit", "what it does"], rows);
    Ok(page(&format!("Limits by {}", asked.by), &body))
}

fn about(replayed: &Replayed, files: &[&RuleFile]) -> String {
    let notes = files.iter().flat_map(|file| {
        file.notes
            .iter()
            .map(|note| format!("{}: {note}", file.name))
    });
    list(
        report::about_log(&replayed.log)
            .into_iter()
            .chain([report::AS_LOGGED.to_owned()])
            .chain(notes),
    )
}

fn list(lines: impl Iterator<Item = String>) -> String {
    let lines: String = lines
        .map(|line| format!("<li>{}</li>", html(&line)))
        .collect();
    format!("<ul>{lines}</ul>")
}

fn timeline(timeline: &Timeline<3>, kinds: &[&str]) -> anyhow::Result<String> {
    let seconds = u64::try_from(timeline.step() / crate::entry::SECOND).unwrap_or(1);
    let title = format!("Requests in each {} s", number(seconds));
    Ok(figure(
        &title,
        &chart::timeline(timeline, kinds.len())?,
        kinds,
    ))
}

/// A picture with the names of its series.
fn figure(title: &str, svg: &str, series: &[&str]) -> String {
    let keys: String = (0..)
        .zip(series)
        .map(|(n, name)| format!("<i class=s{n}></i>{} ", html(name)))
        .collect();
    format!(
        "<figure role=img aria-label=\"{0}\"><figcaption>{0}: {keys}</figcaption>{svg}</figure>",
        html(title)
    )
}

/// A table of cells that are HTML.
fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let head: String = head.iter().map(|cell| format!("<th>{cell}</th>")).collect();
    let row = |cells: Vec<String>| {
        let cells: String = cells
            .into_iter()
            .map(|cell| format!("<td>{cell}</td>"))
            .collect();
        format!("<tr>{cells}</tr>\n")
    };
    format!(
        "<div class=wide><table><thead><tr>{head}</tr></thead><tbody>\n{}</tbody></table></div>",
        rows.map(row).collect::<String>()
    )
}

/// A number with a bar of its share.
fn bar(number: &str, (part, all): (u64, u64)) -> String {
    format!(
        "{number} <meter min=0 max={} value={part}></meter>",
        all.max(1)
    )
}

fn page(title: &str, body: &str) -> String {
    let title = html(title);
    format!(
        "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<meta name=viewport \
            content=\"width=device-width\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n<h1>{title}</h1>\n{body}\n</html>\n"
    )
}
