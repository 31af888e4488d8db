//! What holds for every request: the laws that the named attacks are instances of.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::collection::vec;
use proptest::prelude::*;
use throttle_core::canonical_ip;

use super::*;
use crate::client_ip::{IpNet, IpPrefix};

/// Any bytes that may stand in a header line.
fn line() -> impl Strategy<Value = Vec<u8>> {
    // Generated, not filtered: a run of many cases would give up over so many rejected bytes.
    let legal = prop_oneof![1 => Just(b'\t'), 95 => b' '..=b'~', 128 => 0x80..=u8::MAX];
    // Half of the bytes are the ones that mean something to a parser.
    let telling = prop::sample::select(br#"",;=\[]:. _%for1a"#.to_vec());
    vec(prop_oneof![legal, telling], 0..80)
}

/// An address outside 10.0.0.0/8.
fn client() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<Ipv4Addr>().prop_map(IpAddr::from),
        any::<Ipv6Addr>().prop_map(IpAddr::from)
    ]
    .prop_filter("not a proxy", |address| {
        !ten_slash_eight().contains(*address)
    })
}

fn proxies() -> impl Strategy<Value = Vec<[u8; 3]>> {
    vec(any::<[u8; 3]>(), 0..5)
}

/// A quoted string as a proxy writes it around whatever host the client sent.
fn quote(host: &[u8]) -> Vec<u8> {
    let mut quoted = vec![b'"'];
    for &byte in host {
        if matches!(byte, b'"' | b'\\') {
            quoted.push(b'\\');
        }
        quoted.push(byte);
    }
    quoted.push(b'"');
    quoted
}

fn element(address: IpAddr, host: Option<&[u8]>, host_first: bool) -> Vec<u8> {
    let node = if address.is_ipv6() {
        format!("for=\"[{address}]:443\"")
    } else {
        format!("for={address}")
    };
    match host.map(|host| [b"host=".as_slice(), &quote(host)].concat()) {
        None => node.into_bytes(),
        Some(host) if host_first => [&host, b";".as_slice(), node.as_bytes()].concat(),
        Some(host) => [node.as_bytes(), b";", &host, b";proto=https"].concat(),
    }
}

/// The header as it arrives: the client's lines, then the proxies' entries, on the last of those
/// lines or their own.
fn request(
    name: &'static str,
    prefix: &[Vec<u8>],
    suffix: &[Vec<u8>],
    own_line: bool,
) -> HeaderMap {
    let suffix = suffix.join(b", ".as_slice());
    let mut lines = prefix.to_vec();
    match lines.last_mut() {
        Some(last) if !own_line => {
            last.push(b',');
            last.extend_from_slice(&suffix);
        }
        _ => lines.push(suffix),
    }
    headers(lines.iter().map(|line| (name, line)))
}

const SINGLE: &str = "x-real-ip";

const OTHERS: [&str; 9] = [
    XFF,
    FWD,
    SINGLE,
    "x-client-ip",
    "true-client-ip",
    "cf-connecting-ip",
    "x_forwarded_for",
    "via",
    "connection",
];

/// A source of each kind, with the one header that it reads. What the peer's source is paired with
/// it ignores.
fn every_source() -> Vec<(ClientIp, &'static str)> {
    let mut sources = vec![
        (ClientIp::peer(), "x-unused"),
        (xff(), XFF),
        (fwd(), FWD),
        (ClientIp::header(SINGLE, ten_slash_eight()).unwrap(), SINGLE),
    ];
    for hops in [1, 2, 20] {
        sources.push((ClientIp::x_forwarded_for_hops(hops).unwrap(), XFF));
        sources.push((ClientIp::forwarded_hops(hops).unwrap(), FWD));
    }
    sources
}

proptest! {
    #[test]
    fn attack_01_no_prefix_moves_the_client(
        prefix in vec(line(), 0..4), client in client(), proxies in proxies(), own_line: bool, port: bool,
    ) {
        let entry = |address: IpAddr| match port {
            true if address.is_ipv6() => format!("[{address}]:443"),
            true => format!("{address}:443"),
            false => address.to_string(),
        };
        let mut suffix = vec![entry(client).into_bytes()];
        suffix.extend(proxies.iter().map(|[b, c, d]| entry(IpAddr::from([10, *b, *c, *d])).into_bytes()));
        let expected = ResolvedAddress { address: Some(canonical_ip(client)), origin: AddressOrigin::Forwarded };

        let request = request(XFF, &prefix, &suffix, own_line);
        prop_assert_eq!(xff().resolve(Some(ip(PEER)), &request), expected);
        let hops = ClientIp::x_forwarded_for_hops(suffix.len() as u8).unwrap();
        prop_assert_eq!(hops.resolve(None, &request), expected);
    }

    #[test]
    fn attack_07_no_prefix_and_no_host_moves_the_client(
        prefix in vec(line(), 0..4), client in client(), proxies in proxies(), own_line: bool,
        host in prop::option::of(line()), host_first: bool,
    ) {
        let host = host.as_deref();
        let mut suffix = vec![element(client, host, host_first)];
        suffix.extend(proxies.iter().map(|[b, c, d]| element(IpAddr::from([10, *b, *c, *d]), host, host_first)));
        let expected = ResolvedAddress { address: Some(canonical_ip(client)), origin: AddressOrigin::Forwarded };

        let request = request(FWD, &prefix, &suffix, own_line);
        prop_assert_eq!(fwd().resolve(Some(ip(PEER)), &request), expected);
        let hops = ClientIp::forwarded_hops(suffix.len() as u8).unwrap();
        prop_assert_eq!(hops.resolve(None, &request), expected);
    }

    /// The same law for suffixes that name no client: once the walk has stopped, what precedes does
    /// not matter.
    #[test]
    fn attack_08_no_prefix_revives_a_hidden_client(
        prefix in vec(line(), 0..4), proxies in proxies(), own_line: bool,
        stop in prop::sample::select(
            vec!["for=_x", "for=unknown", "for=", "proto=http", "for=1.2.3.4;for=1.2.3.4", "x"],
        ),
    ) {
        let mut suffix = vec![stop.as_bytes().to_vec()];
        suffix.extend(proxies.iter().map(|[b, c, d]| element(IpAddr::from([10, *b, *c, *d]), None, false)));
        let alone = fwd().resolve(Some(ip(PEER)), &request(FWD, &[], &suffix, true));
        prop_assert!(matches!(alone.origin, AddressOrigin::Obfuscated | AddressOrigin::Malformed));
        prop_assert_eq!(fwd().resolve(Some(ip(PEER)), &request(FWD, &prefix, &suffix, own_line)), alone);
    }

    #[test]
    fn attack_03_other_headers_change_nothing(
        configured in vec(line(), 0..3), others in vec((0..OTHERS.len(), line()), 0..8),
    ) {
        for (source, name) in every_source() {
            let configured = headers(configured.iter().map(|line| (name, line)));
            let mut smuggled = configured.clone();
            let others = others.iter().map(|(at, line)| (OTHERS[*at], line));
            smuggled.extend(headers(others.filter(|(other, _)| *other != name)));
            prop_assert_eq!(source.resolve(Some(ip(PEER)), &smuggled), source.resolve(Some(ip(PEER)), &configured));
        }
    }

    #[test]
    fn attack_04_an_untrusted_peer_is_the_client(peer in client(), lines in vec(line(), 0..4)) {
        for name in [XFF, FWD] {
            let headers = headers(lines.iter().map(|line| (name, line)));
            let expected = ResolvedAddress { address: Some(canonical_ip(peer)), origin: AddressOrigin::UntrustedPeer };
            let source = if name == XFF { xff() } else { fwd() };
            prop_assert_eq!(source.resolve(Some(peer), &headers), expected);
        }
    }

    #[test]
    fn no_bytes_make_it_panic_or_lose_the_peer(lines in vec(line(), 0..30), peer in prop::option::of(any::<IpAddr>())) {
        for (source, name) in every_source() {
            for peer in [peer, Some(ip(PEER))] {
                let resolved = source.resolve(peer, &headers(lines.iter().map(|line| (name, line))));
                prop_assert!(resolved.address.is_some() || peer.is_none(), "{:?}", resolved);
                prop_assert_eq!(resolved.address, resolved.address.map(canonical_ip));
            }
        }
    }

    #[test]
    fn attack_12_masks_agree_with_networks(address: IpAddr, v4 in 1u8..=32, v6 in 1u8..=128) {
        let masked = IpPrefix::new(v4, v6).unwrap().mask(address);
        prop_assert_eq!(masked.is_ipv4(), canonical_ip(address).is_ipv4());
        // Never refused: a masked address holds an IPv4 address only if it did before, and then it
        // is IPv4 by now.
        let net = IpNet::new(masked, if masked.is_ipv4() { v4 } else { v6 }).unwrap();
        prop_assert!(net.contains(address) && net.network() == masked);
    }

    #[test]
    fn networks_read_back_as_written(address: IpAddr, prefix in 0u8..=128) {
        if let Ok(net) = IpNet::new(address, prefix) {
            prop_assert_eq!(net.to_string().parse::<IpNet>().unwrap(), net);
            prop_assert!(net.contains(address));
        }
    }

    #[test]
    fn no_text_makes_a_network_panic(text in "[0-9a-f:./%+ -]{0,24}") {
        let _ = text.parse::<IpNet>();
    }
}
