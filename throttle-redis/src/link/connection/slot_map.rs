//! Which server of a cluster has which slots, as one of its servers lists them.

use std::ops::RangeInclusive;

use super::{Reply, Route};

/// The primaries and their slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotMap(Vec<(RangeInclusive<u16>, Address)>);

/// Host and port.
pub(crate) type Address = (String, u16);

impl SlotMap {
    /// Reads the reply to `CLUSTER SLOTS`. A server that does not know its own address leaves it
    /// out: it is `asked`.
    pub(crate) fn read(reply: Reply, asked: &str) -> Option<Self> {
        Some(Self(
            reply
                .into_array()?
                .into_iter()
                .filter_map(|one| range(one, asked))
                .collect(),
        ))
    }

    /// The server of a slot.
    #[cfg(any(test, feature = "cluster"))]
    pub(crate) fn server_of(&self, slot: u16) -> Option<&Address> {
        self.0
            .iter()
            .find(|(slots, _)| slots.contains(&slot))
            .map(|(_, address)| address)
    }

    /// Each of the servers once.
    pub(crate) fn servers(&self) -> Vec<&Address> {
        let mut addresses: Vec<&Address> = self.0.iter().map(|(_, address)| address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// The route to each of the servers.
    pub(crate) fn routes(&self) -> Vec<Route> {
        let route = |(host, port): &Address| Route::Address {
            host: host.clone(),
            port: *port,
            asking: false,
        };
        self.servers().into_iter().map(route).collect()
    }
}

/// First slot, last slot, then the primary and its replicas, each as address, port and more.
fn range(range: Reply, asked: &str) -> Option<(RangeInclusive<u16>, Address)> {
    let mut parts = range.into_array()?.into_iter();
    let mut slot = || u16::try_from(parts.next()?.as_number()?).ok();
    let slots = slot()?..=slot()?;
    let mut node = parts.next()?.into_array()?.into_iter();
    let host = match node.next()? {
        Reply::Nil => String::new(),
        host => String::from_utf8(host.into_bytes()?).ok()?,
    };
    let host = if host.is_empty() {
        asked.to_owned()
    } else {
        host
    };
    let port = u16::try_from(node.next()?.as_number()?).ok()?;
    Some((slots, (host, port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range_reply(first: i64, last: i64, host: &str, port: i64) -> Reply {
        let node = Reply::Array(vec![
            Reply::Bytes(host.into()),
            Reply::Int(port),
            Reply::Bytes(b"id".to_vec()),
        ]);
        Reply::Array(vec![
            Reply::Int(first),
            Reply::Int(last),
            node.clone(),
            node,
        ])
    }

    #[test]
    fn each_slot_has_an_owner() {
        let reply = Reply::Array(vec![
            range_reply(0, 9, "a", 1),
            range_reply(10, 10, "b", 2),
            range_reply(11, 20, "a", 1),
        ]);
        let slot_map = SlotMap::read(reply, "asked").expect("a list of ranges");
        assert_eq!(slot_map.server_of(9), Some(&("a".to_owned(), 1)));
        assert_eq!(slot_map.server_of(10), Some(&("b".to_owned(), 2)));
        assert_eq!(slot_map.server_of(11), Some(&("a".to_owned(), 1)));
        assert_eq!(slot_map.server_of(20), Some(&("a".to_owned(), 1)));
        assert_eq!(slot_map.server_of(21), None);
        assert_eq!(slot_map.routes().len(), 2, "each server once");
        assert_eq!(SlotMap::read(Reply::Nil, "asked"), None);
    }

    #[test]
    fn a_range_that_makes_no_sense_is_left_out() {
        let (bytes, int) = (|text: &[u8]| Reply::Bytes(text.to_vec()), Reply::Int);
        let node = |host: Reply, port: Reply| Reply::Array(vec![host, port]);
        let whole = range_reply(0, 9, "a", 1);
        for wrong in [
            Reply::Nil,
            Reply::Array(vec![]),
            Reply::Array(vec![int(10), int(19)]),
            Reply::Array(vec![int(10), int(19), int(7)]),
            Reply::Array(vec![int(-1), int(19), node(bytes(b"b"), int(2))]),
            Reply::Array(vec![int(10), int(65_536), node(bytes(b"b"), int(2))]),
            Reply::Array(vec![int(10), int(19), node(bytes(b"\xff"), int(2))]),
            Reply::Array(vec![int(10), int(19), node(int(1), int(2))]),
            Reply::Array(vec![int(10), int(19), node(bytes(b"b"), int(65_536))]),
        ] {
            let read = SlotMap::read(Reply::Array(vec![wrong.clone(), whole.clone()]), "asked")
                .expect("a list");
            let only = SlotMap::read(Reply::Array(vec![whole.clone()]), "asked").expect("a list");
            assert_eq!(read, only, "{wrong:?}");
        }
    }

    #[test]
    fn routes_lead_to_each_server_once_in_order() {
        let ranges = [
            (20, 29, "b", 2),
            (0, 9, "a", 1),
            (10, 19, "b", 1),
            (30, 39, "a", 1),
        ];
        let ranges = ranges
            .map(|(first, last, host, port)| range_reply(first, last, host, port))
            .to_vec();
        let slot_map = SlotMap::read(Reply::Array(ranges), "asked").expect("a list of ranges");
        let route = |host: &str, port| Route::Address {
            host: host.to_owned(),
            port,
            asking: false,
        };
        assert_eq!(
            slot_map.routes(),
            [route("a", 1), route("b", 1), route("b", 2)]
        );
    }

    #[test]
    fn a_server_without_an_address_is_the_one_that_was_asked() {
        for host in [Reply::Nil, Reply::Bytes(Vec::new())] {
            let node = Reply::Array(vec![host, Reply::Int(7)]);
            let ranges = Reply::Array(vec![Reply::Array(vec![Reply::Int(0), Reply::Int(9), node])]);
            let slot_map = SlotMap::read(ranges, "asked").expect("a list of ranges");
            assert_eq!(slot_map.server_of(9), Some(&("asked".to_owned(), 7)));
        }
    }
}
