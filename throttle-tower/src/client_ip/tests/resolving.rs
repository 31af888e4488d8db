//! The rules of each source, one at a time.

use super::*;
use crate::client_ip::MAX_HOPS;

fn single() -> ClientIp {
    ClientIp::header("CF-Connecting-IP", ten_slash_eight()).unwrap()
}

#[test]
fn without_a_peer_only_a_hop_count_reads_headers() {
    let headers = headers([
        (XFF, CLIENT),
        (FWD, "for=203.0.113.9"),
        ("cf-connecting-ip", CLIENT),
    ]);
    let no_peer = ResolvedAddress {
        address: None,
        origin: AddressOrigin::NoPeer,
    };
    for source in [ClientIp::peer(), xff(), fwd(), single()] {
        assert_eq!(source.resolve(None, &headers), no_peer);
    }
    let hops = ClientIp::x_forwarded_for_hops(1).unwrap();
    assert_eq!(
        hops.resolve(None, &headers),
        resolved(CLIENT, AddressOrigin::Forwarded)
    );
    let missing = ResolvedAddress {
        address: None,
        origin: AddressOrigin::MissingHeader,
    };
    assert_eq!(hops.resolve(None, &HeaderMap::new()), missing);
}

#[test]
fn malformed_or_hidden_stops_at_the_nearest_trusted_hop() {
    let lines = [(XFF, "6.6.6.6, garbage, 10.0.0.3, 10.0.0.2")];
    assert_eq!(
        behind_proxy(&xff(), &lines),
        resolved("10.0.0.3", AddressOrigin::Malformed)
    );
    let lines = [(FWD, "for=6.6.6.6, for=unknown, for=10.0.0.3, for=10.0.0.2")];
    assert_eq!(
        behind_proxy(&fwd(), &lines),
        resolved("10.0.0.3", AddressOrigin::Obfuscated)
    );
}

/// Several lines of one header are one list: the last line is the nearest hop's, whatever is left
/// of it.
#[test]
fn lines_of_one_header_are_read_from_the_last_to_the_first() {
    let lists = [
        (
            XFF,
            xff(),
            [SPOOF, CLIENT, "10.0.0.3", "10.0.0.2"].map(str::to_owned),
        ),
        {
            (
                FWD,
                fwd(),
                [SPOOF, CLIENT, "10.0.0.3", "10.0.0.2"].map(|hop| format!("for={hop}")),
            )
        },
    ];
    for (name, source, entries) in lists {
        let [spoof, client, far, near] = &entries;
        for lines in [
            vec![format!("{spoof}, {client}, {far}, {near}")],
            vec![format!("{spoof}, {client}"), format!("{far}, {near}")],
            vec![spoof.clone(), format!("{client}, {far}"), near.clone()],
            entries.to_vec(),
        ] {
            let lines: Vec<_> = lines.iter().map(|line| (name, line.as_str())).collect();
            assert_eq!(
                behind_proxy(&source, &lines),
                resolved(CLIENT, AddressOrigin::Forwarded),
                "{lines:?}"
            );
        }
        let trusted = [(name, far.as_str()), (name, near.as_str())];
        assert_eq!(
            behind_proxy(&source, &trusted),
            resolved(PEER, AddressOrigin::AllTrusted)
        );
    }
}

#[test]
fn empty_entries_are_skipped() {
    for line in [
        "203.0.113.9,",
        "203.0.113.9, ,\t,",
        ",6.6.6.6,,203.0.113.9 , 10.0.0.2,",
    ] {
        assert_eq!(
            behind_proxy(&xff(), &[(XFF, line)]),
            resolved(CLIENT, AddressOrigin::Forwarded),
            "{line}"
        );
    }
    assert_eq!(
        behind_proxy(&fwd(), &[(FWD, "for=203.0.113.9, ,")]),
        resolved(CLIENT, AddressOrigin::Forwarded)
    );
    let second = ClientIp::x_forwarded_for_hops(2).unwrap();
    assert_eq!(
        behind_proxy(&second, &[(XFF, "203.0.113.9,, 10.0.0.2,")]),
        resolved(CLIENT, AddressOrigin::Forwarded)
    );
}

#[test]
fn empty_header_counts_as_missing() {
    for line in ["", ",", " ,\t, "] {
        assert_eq!(
            behind_proxy(&xff(), &[(XFF, line)]),
            resolved(PEER, AddressOrigin::MissingHeader)
        );
        assert_eq!(
            behind_proxy(&fwd(), &[(FWD, line)]),
            resolved(PEER, AddressOrigin::MissingHeader)
        );
        assert_eq!(
            behind_proxy(&ClientIp::fly_io(), &[(XFF, line)]),
            resolved(PEER, AddressOrigin::MissingHeader)
        );
    }
}

#[test]
fn empty_entries_and_lines_count_against_the_bound() {
    let commas = ",".repeat(usize::from(MAX_HOPS));
    assert_eq!(
        behind_proxy(&xff(), &[(XFF, &format!("203.0.113.9{commas}"))]),
        resolved(PEER, AddressOrigin::TooManyHops)
    );
    assert_eq!(
        behind_proxy(&xff(), &[(XFF, &format!("203.0.113.9{}", &commas[1..]))]),
        resolved(CLIENT, AddressOrigin::Forwarded)
    );
    let mut lines = vec![(XFF, CLIENT)];
    lines.extend([(XFF, ""); MAX_HOPS as usize]);
    assert_eq!(
        behind_proxy(&xff(), &lines),
        resolved(PEER, AddressOrigin::TooManyHops)
    );
    let nearest = ClientIp::x_forwarded_for_hops(1).unwrap();
    assert_eq!(
        behind_proxy(&nearest, &lines),
        resolved(PEER, AddressOrigin::TooManyHops)
    );
}

#[test]
fn hop_count_counts_over_lines_and_reads_only_its_entry() {
    let lines = [
        (XFF, "6.6.6.6, 203.0.113.9"),
        (XFF, "unix:, unknown"),
        (XFF, "10.0.0.2"),
    ];
    for (hops, expected) in [
        (1, resolved("10.0.0.2", AddressOrigin::Forwarded)),
        (2, resolved(PEER, AddressOrigin::Malformed)),
        (4, resolved(CLIENT, AddressOrigin::Forwarded)),
        (5, resolved(SPOOF, AddressOrigin::Forwarded)),
        (6, resolved(PEER, AddressOrigin::TooFewHops)),
    ] {
        let source = ClientIp::x_forwarded_for_hops(hops).unwrap();
        assert_eq!(behind_proxy(&source, &lines), expected, "{hops}");
    }
    let second = ClientIp::forwarded_hops(2).unwrap();
    let lines = [(FWD, r#"for="[2001:db8::9]", by=_lb;host="a,b""#)];
    assert_eq!(
        behind_proxy(&second, &lines),
        resolved("2001:db8::9", AddressOrigin::Forwarded)
    );
}

#[test]
fn hop_count_reaches_its_bound() {
    let line = format!(
        "203.0.113.9{}",
        ", 10.0.0.2".repeat(usize::from(MAX_HOPS) - 1)
    );
    let source = ClientIp::x_forwarded_for_hops(MAX_HOPS).unwrap();
    assert_eq!(
        behind_proxy(&source, &[(XFF, &line)]),
        resolved(CLIENT, AddressOrigin::Forwarded)
    );
}

#[test]
fn single_header_is_one_bare_address() {
    for (value, expected) in [
        ("203.0.113.9", resolved(CLIENT, AddressOrigin::Forwarded)),
        ("\t203.0.113.9 ", resolved(CLIENT, AddressOrigin::Forwarded)),
        (
            "::ffff:203.0.113.9",
            resolved(CLIENT, AddressOrigin::Forwarded),
        ),
        (
            "2001:DB8::1",
            resolved("2001:db8::1", AddressOrigin::Forwarded),
        ),
        // A CDN's own client may be inside the CDN.
        ("10.0.0.77", resolved("10.0.0.77", AddressOrigin::Forwarded)),
        ("", resolved(PEER, AddressOrigin::Malformed)),
        (
            "203.0.113.9, 203.0.113.9",
            resolved(PEER, AddressOrigin::Malformed),
        ),
        ("203.0.113.9:80", resolved(PEER, AddressOrigin::Malformed)),
        ("[2001:db8::1]", resolved(PEER, AddressOrigin::Malformed)),
        ("unknown", resolved(PEER, AddressOrigin::Malformed)),
    ] {
        assert_eq!(
            behind_proxy(&single(), &[("cf-connecting-ip", value)]),
            expected,
            "{value:?}"
        );
    }
    assert_eq!(
        behind_proxy(&single(), &[]),
        resolved(PEER, AddressOrigin::MissingHeader)
    );
}

/// A peer is in canonical form, whatever the source does with it.
#[test]
fn mapped_peer_is_an_ipv4_address() {
    let mapped = Some(ip("::ffff:10.0.0.1"));
    let hops = ClientIp::x_forwarded_for_hops(1).unwrap();
    for (source, origin) in [
        (ClientIp::peer(), AddressOrigin::Peer),
        (xff(), AddressOrigin::MissingHeader),
        (single(), AddressOrigin::MissingHeader),
        (hops, AddressOrigin::MissingHeader),
    ] {
        assert_eq!(
            source.resolve(mapped, &HeaderMap::new()),
            resolved(PEER, origin)
        );
    }
}

/// Each kind of source has its own warnings about the networks that it trusts.
#[test]
fn only_sources_that_trust_networks_warn_of_broad_ones() {
    let hops = ClientIp::forwarded_hops(1).unwrap();
    for (source, warnings) in [
        (ClientIp::peer(), 0),
        (xff(), 1),
        (fwd(), 1),
        (single(), 1),
        (hops, 0),
        (ClientIp::google_cloud_load_balancer(), 0),
    ] {
        assert_eq!(source.broad_networks().count(), warnings, "{source:?}");
    }
}

/// The third entry is read neither by Fly's nor by Google's preset, nor is the header that they do
/// not use.
#[test]
fn attack_10_presets_find_the_client_and_not_the_platform() {
    for source in [ClientIp::fly_io(), ClientIp::google_cloud_load_balancer()] {
        let lines = [
            (FWD, "for=6.6.6.6, for=6.6.6.6"),
            (XFF, "6.6.6.6, 203.0.113.9, 10.0.0.2"),
        ];
        assert_eq!(
            behind_proxy(&source, &lines),
            resolved(CLIENT, AddressOrigin::Forwarded)
        );
        assert_eq!(
            behind_proxy(&source, &[(XFF, CLIENT)]),
            resolved(PEER, AddressOrigin::TooFewHops)
        );
        assert_eq!(
            behind_proxy(&source, &lines[..1]),
            resolved(PEER, AddressOrigin::MissingHeader)
        );
    }
}
