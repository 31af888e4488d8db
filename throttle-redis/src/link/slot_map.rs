//! Which server of a cluster has which slots, as one of its servers lists them.

use std::ops::RangeInclusive;

use super::connection::{Reply, Route};

/// The primaries and their slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotMap(Vec<(RangeInclusive<u16>, Address)>);

/// Host and port.
pub(crate) type Address = (String, u16);

impl SlotMap {
    /// Reads the reply to `CLUSTER SLOTS`.
    pub(super) fn read(reply: Reply) -> Option<Self> {
        Some(Self(reply.into_array()?.into_iter().filter_map(range).collect()))
    }

    /// The server of a slot.
    pub(crate) fn server_of(&self, slot: u16) -> Option<&Address> {
        self.0.iter().find(|(slots, _)| slots.contains(&slot)).map(|(_, address)| address)
    }

    /// The route to each of the servers.
    pub(crate) fn routes(&self) -> Vec<Route> {
        self.routes_except(&[])
    }

    /// The route to each of the servers except some.
    pub(crate) fn routes_except(&self, others: &[&Address]) -> Vec<Route> {
        let mut addresses: Vec<&Address> = self.0.iter().map(|(_, address)| address).collect();
        addresses.retain(|address| !others.contains(address));
        addresses.sort_unstable();
        addresses.dedup();
        let route = |(host, port): &Address| Route::Address { host: host.clone(), port: *port, asking: false };
        addresses.into_iter().map(route).collect()
    }
}

/// First slot, last slot, then the primary and its replicas, each as address, port and more.
fn range(range: Reply) -> Option<(RangeInclusive<u16>, Address)> {
    let mut parts = range.into_array()?.into_iter();
    let mut slot = || u16::try_from(parts.next()?.as_number()?).ok();
    let slots = slot()?..=slot()?;
    let mut node = parts.next()?.into_array()?.into_iter();
    let host = String::from_utf8(node.next()?.into_bytes()?).ok()?;
    let port = u16::try_from(node.next()?.as_number()?).ok()?;
    Some((slots, (host, port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range_reply(first: i64, last: i64, host: &str, port: i64) -> Reply {
        let node = Reply::Array(vec![Reply::Bytes(host.into()), Reply::Int(port), Reply::Bytes(b"id".to_vec())]);
        Reply::Array(vec![Reply::Int(first), Reply::Int(last), node.clone(), node])
    }

    #[test]
    fn each_slot_has_an_owner() {
        let reply =
            Reply::Array(vec![range_reply(0, 9, "a", 1), range_reply(10, 10, "b", 2), range_reply(11, 20, "a", 1)]);
        let slot_map = SlotMap::read(reply).expect("a list of ranges");
        assert_eq!(slot_map.server_of(9), Some(&("a".to_owned(), 1)));
        assert_eq!(slot_map.server_of(10), Some(&("b".to_owned(), 2)));
        assert_eq!(slot_map.server_of(11), Some(&("a".to_owned(), 1)));
        assert_eq!(slot_map.server_of(20), Some(&("a".to_owned(), 1)));
        assert_eq!(slot_map.server_of(21), None);
        assert_eq!(slot_map.routes().len(), 2, "each server once");
        assert_eq!(slot_map.routes_except(&[&("a".to_owned(), 1)]).len(), 1);
        assert_eq!(SlotMap::read(Reply::Nil), None);
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
            Reply::Array(vec![int(10), int(19), node(Reply::Nil, int(2))]),
            Reply::Array(vec![int(10), int(19), node(bytes(b"b"), int(65_536))]),
        ] {
            let read = SlotMap::read(Reply::Array(vec![wrong.clone(), whole.clone()])).expect("a list");
            let only = SlotMap::read(Reply::Array(vec![whole.clone()])).expect("a list");
            assert_eq!(read, only, "{wrong:?}");
        }
    }

    #[test]
    fn routes_lead_to_each_server_in_order_but_those_left_out() {
        let ranges = [(20, 29, "b", 2), (0, 9, "a", 1), (10, 19, "b", 1), (30, 39, "a", 1)];
        let ranges = ranges.map(|(first, last, host, port)| range_reply(first, last, host, port)).to_vec();
        let slot_map = SlotMap::read(Reply::Array(ranges)).expect("a list of ranges");
        let route = |host: &str, port| Route::Address { host: host.to_owned(), port, asking: false };
        assert_eq!(slot_map.routes(), [route("a", 1), route("b", 1), route("b", 2)]);
        let left_out = [("a".to_owned(), 1), ("b".to_owned(), 2)];
        assert_eq!(slot_map.routes_except(&left_out.each_ref()), [route("b", 1)]);
    }
}
