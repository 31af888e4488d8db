//! What is said on the command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use http::header::{HOST, HeaderName, REFERER, USER_AGENT};
use throttle_tower::Rate;

use crate::condition::Condition;
use crate::percent::Percent;

/// Replays access logs against rule files of throttle.
///
/// Exit status: 0 if all is well, 1 if a condition of --fail-if holds, 2 if there is no result:
/// something is wrong with a file, a log or an argument, or too much of the log is undecided.
#[derive(Debug, Parser)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Reads a rule file and shows all problems.
    Check {
        /// The rule file.
        rules: PathBuf,
    },
    /// Shows how a log is read: its requests by hour, status and address.
    Count {
        #[command(flatten)]
        log: LogArguments,
        /// How many addresses are shown.
        #[arg(long, default_value_t = 5)]
        top: usize,
    },
    /// Shows what each limit of a rule file would have admitted and refused.
    Replay {
        /// The rule file.
        rules: PathBuf,
        #[command(flatten)]
        log: LogArguments,
        #[command(flatten)]
        out: Out,
    },
    /// Shows what another rule file would have changed.
    Plan {
        /// The rule file in force.
        old: PathBuf,
        /// The rule file that is to replace it.
        new: PathBuf,
        #[command(flatten)]
        log: LogArguments,
        #[command(flatten)]
        out: Out,
        /// Exits with status 1 if this holds, as in 'newly-refused-keys > 0'; may be given several
        /// times. Names: newly-refused-requests, newly-admitted-requests, newly-refused-keys,
        /// newly-admitted-keys, refused-requests, refused-keys. The last two are those of the new
        /// file. Comparisons: > >= < <= == !=.
        #[arg(long, value_name = "CONDITION")]
        fail_if: Vec<Condition>,
    },
    /// Shows for each rate the least burst that refuses few enough of the log's keys.
    Fit {
        #[command(flatten)]
        log: LogArguments,
        #[command(flatten)]
        out: Out,
        /// The key, as `by` of a rule file has it: client-ip (or ip), header:user-agent, method,
        /// constant, or a name that --field reads. Several, with commas between them, are one key.
        #[arg(long, value_name = "KEY", default_value = "client-ip")]
        by: String,
        /// How many of the keys may be refused anything.
        #[arg(long, value_name = "PERCENT", default_value = "0.1%")]
        refuse_at_most: Percent,
        /// The rates, as a rule file writes them.
        #[arg(long, value_delimiter = ',', value_name = "RATES", default_values = RATES)]
        rates: Vec<Rate>,
    },
}

const RATES: [&str; 12] = [
    "1/minute",
    "2/minute",
    "5/minute",
    "10/minute",
    "20/minute",
    "30/minute",
    "1/second",
    "2/second",
    "5/second",
    "10/second",
    "20/second",
    "50/second",
];

#[derive(Args, Debug)]
pub struct Out {
    /// Writes a page with pictures, too: one file that needs nothing else.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// How many keys of each limit are shown.
    #[arg(long, default_value_t = 5)]
    pub top: usize,
}

/// The log, and how it is read. The names of fields have dots between them, as in
/// .request.remote_ip; one in --ip and the like is used instead of the format's own.
#[derive(Args, Debug)]
#[command(next_help_heading = "The log")]
pub struct LogArguments {
    /// The log; - is the standard input.
    pub log: PathBuf,
    /// The format. Common and Combined are one, and the rest are JSON lines.
    #[arg(long, value_enum, default_value_t = Format::Combined)]
    pub format: Format,
    /// The field with the client's address.
    #[arg(long, value_name = "FIELD")]
    pub ip: Option<String>,
    /// The field with the time: RFC 3339, or seconds, milli-, micro- or nanoseconds since 1970.
    #[arg(long, value_name = "FIELD")]
    pub at: Option<String>,
    /// Whether that is the start or the end of the request.
    #[arg(long, value_enum)]
    pub at_is: Option<AtIs>,
    /// The field with the time that the request took.
    #[arg(long, value_name = "FIELD")]
    pub duration: Option<String>,
    /// The unit of it.
    #[arg(long, value_enum)]
    pub duration_in: Option<Unit>,
    /// The field with the method.
    #[arg(long, value_name = "FIELD")]
    pub method: Option<String>,
    /// The field with the path, or with the URI.
    #[arg(long, value_name = "FIELD")]
    pub path: Option<String>,
    /// The field with the host.
    #[arg(long, value_name = "FIELD")]
    pub host: Option<String>,
    /// The field with the status.
    #[arg(long, value_name = "FIELD")]
    pub status: Option<String>,
    /// The field with the route's template. Without it, a route is the template of the rule file
    /// that the path matches.
    #[arg(long, value_name = "FIELD")]
    pub route: Option<String>,
    /// What a name of the rule file stands for, as in --field api-key=.key, --field
    /// header:x-tenant=.tenant (keys) or --field tokens=.usage.total (a cost); may be given several
    /// times.
    #[arg(long = "field", value_name = "NAME=FIELD", value_parser = named_field)]
    pub fields: Vec<(String, String)>,
    /// How many lines are held back to bring them into the order in which the requests started. A
    /// line that comes later than that is undecided.
    #[arg(long, value_name = "LINES", default_value_t = 10_000)]
    pub window: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Combined,
    Common,
    Nginx,
    Caddy,
    Envoy,
    Traefik,
    /// Times and names of fields as nginx has them, where no option says otherwise.
    Json,
}

impl Format {
    /// The headers that a log of this format has.
    pub const fn headers(self) -> &'static [HeaderName] {
        const ALL: &[HeaderName] = &[USER_AGENT, REFERER, HOST];
        match self {
            Self::Common => &[],
            Self::Combined => ALL.split_at(2).0,
            Self::Nginx | Self::Caddy | Self::Envoy | Self::Traefik | Self::Json => ALL,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AtIs {
    Start,
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Unit {
    S,
    Ms,
    Us,
    Ns,
}

fn named_field(text: &str) -> Result<(String, String), String> {
    let (name, field) = text
        .split_once('=')
        .ok_or("write NAME=FIELD, as in api-key=.headers.key")?;
    Ok((name.to_owned(), field.to_owned()))
}
