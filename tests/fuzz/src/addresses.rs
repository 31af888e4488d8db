//! Finds clients' addresses in any headers, as a naive reader does that goes from the right and
//! reads each entry by the standard library. What is left of the first hop that is no trusted proxy
//! changes nothing.

#![no_main]

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::{HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::{Corpus, fuzz_target};
use throttle_core::canonical_ip;
use throttle_tower::client_ip::{
    AddressOrigin, ClientIp, MAX_HOPS, ResolvedAddress, TrustedProxies,
};

const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const SINGLE: &str = "x-real-ip";

fn trusted() -> TrustedProxies {
    TrustedProxies::new(["10.0.0.0/8", "2001:db8::/32"]).expect("networks")
}

fn headers(name: &'static str, lines: &[&[u8]]) -> Option<HeaderMap> {
    let value = |line: &&[u8]| HeaderValue::from_bytes(line).ok();
    lines
        .iter()
        .map(|line| Some((HeaderName::from_static(name), value(line)?)))
        .collect()
}

/// Each entry without the spaces and tabs around it, from the right. Empty ones count as hops.
fn entries(
    lines: &[&[u8]],
    separated: impl Fn(&[u8]) -> Option<Vec<Vec<u8>>>,
) -> Option<Vec<Vec<u8>>> {
    let lines = lines
        .iter()
        .map(|line| separated(line))
        .collect::<Option<Vec<_>>>()?;
    Some(
        lines
            .into_iter()
            .flatten()
            .rev()
            .map(|entry| trim(&entry).to_vec())
            .collect(),
    )
}

fn trim(bytes: &[u8]) -> &[u8] {
    let [from, to] = [
        bytes.iter().position(|byte| !b" \t".contains(byte)),
        bytes.iter().rposition(|byte| !b" \t".contains(byte)),
    ];
    from.zip(to).map_or(&[], |(from, to)| &bytes[from..=to])
}

/// An address alone or with a port, by the standard library. The zone of an address is no part of
/// it.
fn naive_address(entry: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(entry).ok()?;
    let without_zone = match text.split_once('%') {
        None => text.to_owned(),
        Some((before, behind)) => {
            let zone = behind.split(']').next().unwrap_or_default();
            // The brackets of an address with a zone end behind it, and without brackets the zone
            // ends the entry.
            let zone = if before.starts_with('[') {
                zone
            } else {
                behind
            };
            let is_legal = |c: char| c.is_ascii_alphanumeric() || "-._:@%".contains(c);
            if zone.is_empty() || !zone.chars().all(is_legal) {
                return None;
            }
            before.trim_start_matches('[').parse::<Ipv6Addr>().ok()?;
            format!("{before}{}", &behind[zone.len()..])
        }
    };
    if let Ok(address) = without_zone.parse() {
        return Some(address);
    }
    let (host, port) = without_zone.rsplit_once(':').unwrap_or((&without_zone, ""));
    if let Some(inner) = without_zone
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
    {
        return inner.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    }
    // The standard library's ports have any number of zeros before them.
    let is_port = port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit());
    let is_bare = host.starts_with('[') == host.ends_with(']');
    without_zone
        .parse::<SocketAddr>()
        .ok()
        .filter(|_| is_port && is_bare)
        .map(|at| at.ip())
}

/// What one entry says: an address, that there is none, or nothing that can be read.
#[derive(Clone, Copy)]
enum Says {
    Address(IpAddr),
    Hidden,
    Nothing,
}

fn naive_x_forwarded_for(entry: &[u8]) -> Says {
    // No address is longer, whatever its zone.
    let entry = Some(entry).filter(|entry| entry.len() <= 72);
    entry
        .and_then(naive_address)
        .map_or(Says::Nothing, |address| {
            Says::Address(canonical_ip(address))
        })
}

/// The elements of a line of `Forwarded`, read from the left. `None` if any of them is not as RFC
/// 7239 wants it.
fn naive_elements(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (mut elements, mut element, mut quoted) = (Vec::new(), Vec::new(), false);
    let mut bytes = line.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' if quoted => element.extend([byte, bytes.next()?]),
            b',' if !quoted => elements.push(std::mem::take(&mut element)),
            _ => {
                quoted ^= byte == b'"';
                element.push(byte);
            }
        }
    }
    elements.push(element);
    let is_sound =
        |element: &Vec<u8>| trim(element).is_empty() || naive_pairs(trim(element)).is_some();
    (!quoted
        && elements
            .iter()
            .all(|element| element.len() <= 900 && is_sound(element)))
    .then_some(elements)
}

/// The pairs of one element, unquoted.
fn naive_pairs(element: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    let (mut pairs, mut rest) = (Vec::<(String, Vec<u8>)>::new(), element);
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    loop {
        if !rest.is_empty() && rest[0] != b';' {
            let equals = rest.iter().position(|byte| *byte == b'=')?;
            let (name, behind) = (&rest[..equals], &rest[equals + 1..]);
            let (value, next) = if behind.first() == Some(&b'"') {
                let (mut value, mut at) = (Vec::new(), 1);
                loop {
                    match behind.get(at)? {
                        b'"' => break (value, &behind[at + 1..]),
                        b'\\' => at += 1,
                        _ => {}
                    }
                    let byte = *behind.get(at)?;
                    if byte != b'\t' && byte.is_ascii_control() {
                        return None;
                    }
                    value.push(byte);
                    at += 1;
                }
            } else {
                let end = behind
                    .iter()
                    .position(|byte| !is_token(byte))
                    .unwrap_or(behind.len());
                if end == 0 {
                    return None;
                }
                (behind[..end].to_vec(), &behind[end..])
            };
            if name.is_empty() || !name.iter().all(is_token) {
                return None;
            }
            pairs.push((String::from_utf8(name.to_ascii_lowercase()).ok()?, value));
            rest = next;
        }
        match rest.split_first() {
            None => break,
            Some((b';', next)) => rest = next,
            Some(_) => return None,
        }
    }
    let known = ["for", "by", "host", "proto"];
    let once = known
        .iter()
        .all(|name| pairs.iter().filter(|(of, _)| of == name).count() <= 1);
    (once && pairs.iter().any(|(name, _)| name == "for")).then_some(pairs)
}

fn naive_forwarded(element: &[u8]) -> Says {
    let pairs = naive_pairs(element).expect("checked where it was split");
    let node = pairs
        .into_iter()
        .find(|(name, _)| name == "for")
        .expect("checked, too")
        .1;
    let is_hidden = |name: &[u8]| {
        name.len() > 1
            && name[0] == b'_'
            && name[1..]
                .iter()
                .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(b))
    };
    let split = node
        .iter()
        .rposition(|byte| *byte == b':')
        .filter(|at| !node[*at..].contains(&b']'));
    let (host, port) = split.map_or((&node[..], None), |at| (&node[..at], Some(&node[at + 1..])));
    let is_port = |port: &[u8]| {
        port.len() <= 5
            && std::str::from_utf8(port)
                .is_ok_and(|text| text.parse::<u16>().is_ok() && !text.starts_with('+'))
    };
    if !port.is_none_or(|port| is_port(port) || is_hidden(port)) {
        return Says::Nothing;
    }
    if host.eq_ignore_ascii_case(b"unknown") || is_hidden(host) {
        return Says::Hidden;
    }
    // An IPv6 address has brackets, and an IPv4 address none.
    let address = Some(host)
        .filter(|_| node.len() <= 72)
        .and_then(naive_address);
    match address.filter(|address| address.is_ipv6() == host.starts_with(b"[")) {
        Some(address) => Says::Address(canonical_ip(address)),
        None => Says::Nothing,
    }
}

/// The client, or why it is not known, by the entries from the right.
fn naive(entries: &[Vec<u8>], hops: Option<u8>, read: impl Fn(&[u8]) -> Says) -> ResolvedAddress {
    let of = |address, origin| Some((address, origin));
    let (mut nearest, mut counted, mut found) = (None, 0, None);
    for (place, entry) in entries.iter().enumerate() {
        let vouched = nearest.unwrap_or(PEER);
        found = if place >= usize::from(MAX_HOPS) {
            of(
                if hops.is_some() { PEER } else { vouched },
                AddressOrigin::TooManyHops,
            )
        } else if entry.is_empty() {
            continue;
        } else {
            counted += 1;
            match (read(entry), hops) {
                (_, Some(hops)) if counted < hops => continue,
                (Says::Address(hop), None) if trusted().contains(hop) => {
                    nearest = Some(hop);
                    continue;
                }
                (Says::Address(client), _) => of(client, AddressOrigin::Forwarded),
                (Says::Hidden, _) => of(vouched, AddressOrigin::Obfuscated),
                (Says::Nothing, _) => of(vouched, AddressOrigin::Malformed),
            }
        };
        break;
    }
    let without = match hops {
        _ if counted == 0 => AddressOrigin::MissingHeader,
        None => AddressOrigin::AllTrusted,
        Some(_) => AddressOrigin::TooFewHops,
    };
    let (address, origin) = found.unwrap_or((PEER, without));
    resolved(address, origin)
}

fn resolved(address: IpAddr, origin: AddressOrigin) -> ResolvedAddress {
    let mut resolved = ClientIp::peer().resolve(Some(address), &HeaderMap::new());
    resolved.origin = origin;
    resolved
}

fn check(name: &'static str, lines: &[&[u8]], hops: u8) -> Option<()> {
    let request = headers(name, lines)?;
    let is_forwarded = name == "forwarded";
    let (by_trust, by_hops) = if is_forwarded {
        (
            ClientIp::forwarded(trusted()),
            ClientIp::forwarded_hops(hops),
        )
    } else {
        (
            ClientIp::x_forwarded_for(trusted()),
            ClientIp::x_forwarded_for_hops(hops),
        )
    };
    let by_hops = by_hops.expect("a number of hops");
    // A malformed element of `Forwarded` has no entries that every reader finds, so only whole
    // lines are compared.
    let naively = match is_forwarded {
        true => entries(lines, naive_elements),
        false => entries(lines, |line| {
            Some(
                line.split(|byte| *byte == b',')
                    .map(<[u8]>::to_vec)
                    .collect(),
            )
        }),
    };
    for (source, hops) in [(&by_trust, None), (&by_hops, Some(hops))] {
        let found = source.resolve(Some(PEER), &request);
        if let Some(entries) = &naively {
            let expected = naive(
                entries,
                hops,
                if is_forwarded {
                    naive_forwarded
                } else {
                    naive_x_forwarded_for
                },
            );
            assert_eq!(
                found,
                expected,
                "{name}, {hops:?} hops: {:?}",
                lines
                    .iter()
                    .map(|line| line.escape_ascii().to_string())
                    .collect::<Vec<_>>()
            );
        }
        assert!(found.address.is_some());
    }
    // A peer that is not trusted is the client.
    let stranger = "198.51.100.7".parse().ok();
    assert_eq!(by_trust.resolve(stranger, &request).address, stranger);
    // Lines before a line that has named a client or hidden it change nothing.
    let decisive = [
        AddressOrigin::Forwarded,
        AddressOrigin::Obfuscated,
        AddressOrigin::Malformed,
    ];
    for first in 1..lines.len() {
        let alone = headers(name, &lines[first..])?;
        for source in [&by_trust, &by_hops] {
            let found = source.resolve(Some(PEER), &alone);
            if decisive.contains(&found.origin) {
                assert_eq!(
                    source.resolve(Some(PEER), &request),
                    found,
                    "line {first} of {name}"
                );
            }
        }
    }
    Some(())
}

/// One header that must hold one address and nothing else.
fn check_single(lines: &[&[u8]]) -> Option<()> {
    let source = ClientIp::header(SINGLE, trusted()).expect("a name");
    let expected = match lines {
        [] => resolved(PEER, AddressOrigin::MissingHeader),
        [line] => {
            let bare = Some(trim(line))
                .filter(|line| line.len() <= 72)
                .filter(|line| !line.contains(&b'['));
            let address = bare
                .and_then(naive_address)
                .filter(|a| a.is_ipv6() || !line.contains(&b':'));
            match address {
                Some(address) => resolved(canonical_ip(address), AddressOrigin::Forwarded),
                None => resolved(PEER, AddressOrigin::Malformed),
            }
        }
        _ => resolved(PEER, AddressOrigin::Repeated),
    };
    assert_eq!(
        source.resolve(Some(PEER), &headers(SINGLE, lines)?),
        expected,
        "{lines:?}"
    );
    Some(())
}

// The number of hops, then lines.
fuzz_target!(|bytes: &[u8]| -> Corpus {
    let Some((hops, lines)) = bytes.split_first() else {
        return Corpus::Reject;
    };
    let lines: Vec<&[u8]> = lines.split(|byte| *byte == b'\n').collect();
    let hops = 1 + hops % MAX_HOPS;
    let checked = check("x-forwarded-for", &lines, hops)
        .and(check("forwarded", &lines, hops))
        .and(check_single(&lines));
    if checked.is_some() {
        Corpus::Keep
    } else {
        Corpus::Reject
    }
});
