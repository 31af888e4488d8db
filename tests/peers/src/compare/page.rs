//! COMPARE.md, which this program writes: fixed sentences, and the tables of the rows that were
//! run. A row that was not run this time stays as it is.

use std::fmt::Write;
use std::fs;
use std::process::Command;

use crate::report;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/COMPARE.md");

const HEAD: &str = "# throttle and its peers

`tests/peers` writes this page; see [README.md](README.md). All contenders of a row run in the \
same minutes on the same
machine, configured as the row says. Rows in which throttle is worse are included. A row says \
*not comparable* and why
where no honest number exists.

*In process* means called as a library. The libraries limitador and quota have no HTTP layer, so \
rows about HTTP leave
them out. nginx and HAProxy are servers of their own, with one thread each.
";

/// One question, and how it is answered.
pub struct Row {
    /// The argument that runs this row alone.
    pub word: &'static str,
    pub title: &'static str,
    /// What the row shows, how it is measured, and how the contenders are configured.
    pub about: &'static str,
    /// Returns the tables.
    pub run: fn() -> String,
}

/// Writes the page: the new answers, and of all other rows what the page says already.
pub fn write(rows: &[&Row], answers: &[(&str, String)]) {
    let former = fs::read_to_string(PATH).unwrap_or_default();
    let mut page = format!(
        "{HEAD}\n```text\n{}\n{}\n```\n",
        report::machine(),
        versions()
    );
    for (n, row) in rows.iter().enumerate() {
        let heading = format!("\n## {}. {}\n", n + 1, row.title);
        let new = answers
            .iter()
            .find(|(word, _)| *word == row.word)
            .map(|(_, answer)| answer.clone());
        let again = format!("\nAgain: `cargo run --release -- compare {}`.", row.word);
        let answer = new.or_else(|| kept(&former, &heading)).unwrap_or_else(|| {
            format!(
                "\nNot run \
            yet.\n{again}\n"
            )
        });
        page.push_str(&format!("{heading}\n{}\n{answer}", row.about));
    }
    fs::write(PATH, page).expect("COMPARE.md can be written");
}

/// An answer with the line that says when it was given.
pub fn dated(row: &Row) -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?");
    let answer = (row.run)();
    let day = output("date", &["-u", "+%F"]).unwrap_or_default();
    format!(
        "\n{answer}\nRun on {day} at a load of {load}. Again: `cargo run --release -- compare \
        {}`.\n",
        row.word
    )
}

/// What the page has of a row from its first table to the next heading.
fn kept(page: &str, heading: &str) -> Option<String> {
    let (_, section) = page.split_once(heading)?;
    let section = section.split("\n## ").next()?;
    Some(format!("\n{}", &section[section.find("| ")?..]))
}

/// Those of the crates, and of the servers that are installed.
fn versions() -> String {
    let servers = [
        ("nginx", "-v"),
        ("haproxy", "-v"),
        ("redis-server", "--version"),
        ("wrk", "--version"),
    ];
    let servers = servers.map(|(name, flag)| match output(name, &[flag]) {
        Some(text) => format!("{name} {}", number(&text)),
        None => format!("{name} not installed"),
    });
    format!("servers   {}", servers.join(", "))
}

/// The first word of a text that begins with a digit, whatever stands before the digit.
fn number(text: &str) -> &str {
    let word = text
        .split_whitespace()
        .find(|word| word.contains('.') && word.contains(|c: char| c.is_ascii_digit()));
    word.map_or("?", |word| {
        word.trim_start_matches(|c: char| !c.is_ascii_digit())
    })
}

/// The first line that a program prints.
pub fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    Some(
        String::from_utf8_lossy(&text)
            .lines()
            .next()?
            .trim()
            .to_owned(),
    )
}

/// A table in Markdown.
pub struct Table(String);

impl Table {
    pub fn new(columns: &[&str]) -> Self {
        Self(format!(
            "| {} |\n|{}\n",
            columns.join(" | "),
            "---|".repeat(columns.len())
        ))
    }

    pub fn row(&mut self, cells: &[String]) {
        writeln!(self.0, "| {} |", cells.join(" | ")).expect("text has room");
    }

    pub fn text(self) -> String {
        self.0
    }
}
