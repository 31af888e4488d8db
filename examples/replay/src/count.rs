//! What a log has, to see whether it is read as it is meant.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::net::IpAddr;

use crate::entry::Entry;
use crate::tally::top;
use crate::text::number;
use crate::time;

/// Requests by hour, status and address.
#[derive(Default)]
pub struct Count {
    /// By the hour since 1970.
    hours: BTreeMap<i64, u64>,
    statuses: BTreeMap<u16, u64>,
    addresses: HashMap<IpAddr, u64>,
}

const HOUR: i64 = 3_600 * crate::entry::SECOND;

impl Count {
    pub fn add(&mut self, entry: &Entry) {
        *self.hours.entry(entry.start.div_euclid(HOUR)).or_default() += 1;
        *self.statuses.entry(entry.status.as_u16()).or_default() += 1;
        if let Some(address) = entry.address {
            *self.addresses.entry(address).or_default() += 1;
        }
    }

    /// A table for each, of addresses those with the most requests.
    pub fn shown(&self, most: usize) -> String {
        let hour = |hour: &i64| {
            time::shown(hour * HOUR)
                .get(..13)
                .unwrap_or_default()
                .to_owned()
        };
        let mut shown = table(
            "hour (UTC)",
            self.hours
                .iter()
                .map(|(start, count)| (hour(start), *count)),
        );
        shown += &table(
            "status",
            self.statuses
                .iter()
                .map(|(status, count)| (status.to_string(), *count)),
        );
        let addresses = top(
            self.addresses
                .iter()
                .map(|(address, count)| (*address, *count)),
            most,
        );
        shown += &table(
            "address",
            addresses
                .into_iter()
                .map(|(address, count)| (address.to_string(), count)),
        );
        shown + &format!("of {} addresses\n", number(self.addresses.len() as u64))
    }
}

fn table(name: &str, rows: impl Iterator<Item = (String, u64)>) -> String {
    rows.fold(
        format!("\n{:>12}  {name}\n", "requests"),
        |mut table, (name, count)| {
            let _ = writeln!(table, "{:>12}  {name}", number(count));
            table
        },
    )
}
