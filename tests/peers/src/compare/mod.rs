//! `compare`: what each limiter does where limiters differ, written to COMPARE.md.

mod apps;
mod binary;
mod build;
pub mod clock;
mod flood;
mod hostile;
mod http;
mod ideal;
mod libraries;
pub mod many_keys;
mod obeyed;
mod page;
mod servers;
mod small_app;
mod speed;
mod spoofing;
mod store;
pub mod under_wrk;

use page::Row;

const ROWS: [&Row; 10] = [
    &hostile::ROW,
    &clock::ROW,
    &obeyed::ROW,
    &spoofing::ROW,
    &flood::ROW,
    &store::ROW,
    &speed::ROW,
    &under_wrk::ROW,
    &build::ROW,
    &binary::ROW,
];

/// They compile for minutes, so they run only by their names.
const ON_REQUEST: [&Row; 2] = [&build::ROW, &binary::ROW];

/// Runs the rows with these words, or all but those on request.
pub fn run(words: &[String]) {
    if let Some(unknown) = words
        .iter()
        .find(|word| ROWS.iter().all(|row| row.word != *word))
    {
        eprintln!(
            "no row {unknown:?}; there are: {}",
            ROWS.map(|row| row.word).join(", ")
        );
        std::process::exit(2);
    }
    let mut answers = Vec::new();
    for row in ROWS {
        let wanted = if words.is_empty() {
            ON_REQUEST.iter().all(|other| other.word != row.word)
        } else {
            words.iter().any(|w| w == row.word)
        };
        if wanted {
            eprintln!("{} …", row.word);
            answers.push((row.word, page::dated(row)));
            // After each row, so that what was measured is kept if a later one fails.
            page::write(&ROWS, &answers);
        }
    }
    println!("COMPARE.md is written");
}
