//! Which server of a cluster has which slots, as one of its servers lists them.

use std::ops::RangeInclusive;

use crate::link::connection::{Address, Reply};

/// Ranges of slots, each with its primary.
pub(super) type SlotRanges = Vec<(RangeInclusive<u16>, Address)>;

/// Reads the reply to `CLUSTER SLOTS`. A server that does not know its own address leaves it out:
/// it is `asked`.
pub(super) fn read(reply: Reply, asked: &str) -> Option<SlotRanges> {
    let ranges = reply.into_array()?.into_iter();
    Some(ranges.filter_map(|one| range(one, asked)).collect())
}

/// First slot, last slot, then the primary and its replicas, each as address, port and more.
fn range(range: Reply, asked: &str) -> Option<(RangeInclusive<u16>, Address)> {
    let mut parts = range.into_array()?.into_iter();
    let mut slot = || u16::try_from(parts.next()?.as_number()?).ok();
    let slots = slot()?..=slot()?;
    let (mut host, port) = parts.next()?.into_address()?;
    if host.is_empty() {
        asked.clone_into(&mut host);
    }
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
    fn each_range_has_an_owner() {
        let reply = Reply::Array(vec![
            range_reply(0, 9, "a", 1),
            range_reply(10, 10, "b", 2),
            range_reply(11, 20, "a", 1),
        ]);
        let (a, b) = (("a".to_owned(), 1), ("b".to_owned(), 2));
        let expected = vec![(0..=9, a.clone()), (10..=10, b), (11..=20, a)];
        assert_eq!(read(reply, "asked"), Some(expected));
        assert_eq!(read(Reply::Nil, "asked"), None);
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
            let some = Reply::Array(vec![wrong.clone(), whole.clone()]);
            let only = Reply::Array(vec![whole.clone()]);
            assert_eq!(read(some, "asked"), read(only, "asked"), "{wrong:?}");
        }
    }

    #[test]
    fn a_server_without_an_address_is_the_one_that_was_asked() {
        for host in [Reply::Nil, Reply::Bytes(Vec::new())] {
            let node = Reply::Array(vec![host, Reply::Int(7)]);
            let ranges = Reply::Array(vec![Reply::Array(vec![Reply::Int(0), Reply::Int(9), node])]);
            let asked = ("asked".to_owned(), 7);
            assert_eq!(read(ranges, "asked"), Some(vec![(0..=9, asked)]));
        }
    }
}
