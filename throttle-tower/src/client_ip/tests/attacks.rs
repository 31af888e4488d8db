//! One test for each attack on identity that concerns the client's address. `properties` adds
//! random ones.

use std::net::SocketAddrV6;

use super::*;
use crate::client_ip::{IpNet, IpPrefix};

/// Headers that some deployment believes.
const OTHER_HEADERS: [&str; 8] = [
    FWD,
    "x-real-ip",
    "true-client-ip",
    "cf-connecting-ip",
    "x-client-ip",
    "fastly-client-ip",
    "x_forwarded_for",
    "x-forwarded",
];

#[test]
fn attack_01_leftmost_entries_are_the_clients_own() {
    for spoof in 0..=255 {
        let line = format!("192.0.2.{spoof}, 203.0.113.9");
        assert_eq!(
            behind_proxy(&xff(), &[(XFF, &line)]),
            resolved(CLIENT, AddressOrigin::Forwarded)
        );
    }
}

#[test]
fn attack_02_several_lines_are_one_list() {
    let lines = [
        (XFF, SPOOF),
        (XFF, "192.0.2.1, 192.0.2.2"),
        (XFF, ""),
        (XFF, CLIENT),
    ];
    assert_eq!(
        behind_proxy(&xff(), &lines),
        resolved(CLIENT, AddressOrigin::Forwarded)
    );
    let lines = [
        (FWD, "for=6.6.6.6"),
        (FWD, "for=\""),
        (FWD, "for=203.0.113.9"),
    ];
    assert_eq!(
        behind_proxy(&fwd(), &lines),
        resolved(CLIENT, AddressOrigin::Forwarded)
    );
}

#[test]
fn attack_02_single_header_that_occurs_twice_has_no_value() {
    let source = ClientIp::header("cf-connecting-ip", ten_slash_eight()).unwrap();
    let lines = [("cf-connecting-ip", SPOOF), ("cf-connecting-ip", CLIENT)];
    assert_eq!(
        behind_proxy(&source, &lines),
        resolved(PEER, AddressOrigin::Repeated)
    );
}

#[test]
fn attack_03_only_the_configured_header_is_read() {
    let mut lines = vec![(XFF, CLIENT)];
    lines.extend(OTHER_HEADERS.map(|name| (name, if name == FWD { "for=6.6.6.6" } else { SPOOF })));
    assert_eq!(
        behind_proxy(&xff(), &lines),
        resolved(CLIENT, AddressOrigin::Forwarded)
    );
    // None of them is used instead of a missing configured header.
    assert_eq!(
        behind_proxy(&xff(), &lines[1..]),
        resolved(PEER, AddressOrigin::MissingHeader)
    );
}

#[test]
fn attack_04_headers_from_untrusted_peers_are_ignored() {
    let headers = headers([
        (XFF, SPOOF),
        (FWD, "for=6.6.6.6"),
        ("cf-connecting-ip", SPOOF),
    ]);
    let single = ClientIp::header("cf-connecting-ip", ten_slash_eight()).unwrap();
    for source in [xff(), fwd(), single] {
        assert_eq!(
            source.resolve(Some(ip(STRANGER)), &headers),
            resolved(STRANGER, AddressOrigin::UntrustedPeer)
        );
    }
    assert_eq!(
        ClientIp::peer().resolve(Some(ip(STRANGER)), &headers),
        resolved(STRANGER, AddressOrigin::Peer)
    );
}

#[test]
fn attack_05_trusted_peer_without_the_header_is_limited_as_itself() {
    // A proxy that obeys `Connection: close, X-Forwarded-For` leaves no header: the peer's bucket
    // is used, never none.
    let connection = [("connection", "close, x-forwarded-for")];
    let single = ClientIp::header("cf-connecting-ip", ten_slash_eight()).unwrap();
    for source in [
        xff(),
        fwd(),
        single,
        ClientIp::fly_io(),
        ClientIp::forwarded_hops(1).unwrap(),
    ] {
        assert_eq!(
            behind_proxy(&source, &connection),
            resolved(PEER, AddressOrigin::MissingHeader)
        );
    }
}

#[test]
fn attack_06_underscores_are_not_hyphens() {
    let lines = [
        ("x_forwarded_for", SPOOF),
        (XFF, CLIENT),
        ("x_forwarded_for", SPOOF),
    ];
    assert_eq!(
        behind_proxy(&xff(), &lines),
        resolved(CLIENT, AddressOrigin::Forwarded)
    );
    assert_eq!(
        behind_proxy(&xff(), &[("x_forwarded_for", SPOOF)]),
        resolved(PEER, AddressOrigin::MissingHeader)
    );
    for name in ["x_real_ip", "_x-real-ip", "x-real-ip_"] {
        assert!(
            ClientIp::header(name, ten_slash_eight())
                .unwrap_err()
                .to_string()
                .contains("underscore"),
            "{name}"
        );
    }
}

#[test]
fn attack_07_quotes_in_forwarded_hide_nothing() {
    // The proxy's element, with each of these hosts quoted as it must be.
    for host in [
        "a,for=6.6.6.6",
        "a;for=6.6.6.6",
        r#"a\", for=6.6.6.6"#,
        r"a\\",
        r#"\\\", for=6.6.6.6, \""#,
    ] {
        let element = format!(r#"for=203.0.113.9;host="{host}";proto=https"#);
        assert_eq!(
            behind_proxy(&fwd(), &[(FWD, &element)]),
            resolved(CLIENT, AddressOrigin::Forwarded),
            "{element}"
        );
    }
    // The client's own elements before it.
    for prefix in [
        r#"""#,
        r#"for=6.6.6.6;by=""#,
        r#"\"#,
        r#""\"#,
        r#"for="\""#,
        ",,,",
        ";",
    ] {
        let line = format!(r#"{prefix}, for="203.0.113.9:80";host="x""#);
        assert_eq!(
            behind_proxy(&fwd(), &[(FWD, &line)]),
            resolved(CLIENT, AddressOrigin::Forwarded),
            "{line}"
        );
    }
}

#[test]
fn attack_07_element_with_broken_quotes_names_no_client() {
    for line in [
        r#"for=6.6.6.6, for=203.0.113.9""#,
        r#"for=6.6.6.6, for="203.0.113.9"#,
        r#"for=203.0.113.9;host="a\""#,
        r#"for=203.0.113.9;host="a"b"#,
        r#"for=203.0.113.9;host="a"for=6.6.6.6"#,
        r#"for=203.0.113.9;host"#,
        r#"for=203.0.113.9;host=a,"b""#,
    ] {
        assert_eq!(
            behind_proxy(&fwd(), &[(FWD, line)]),
            resolved(PEER, AddressOrigin::Malformed),
            "{line}"
        );
    }
}

/// 64 KiB in one header. Only the proxy's own element is read, so that a request cannot make the
/// reader work through all of it.
#[test]
fn attack_07_long_elements_are_not_read() {
    let pairs = "a=b;".repeat(16_000) + "for=6.6.6.6";
    let open_quote = format!("for=\"{}", ",".repeat(64_000));
    let escapes = "for=\"\\\"".repeat(9_000);
    let host = format!("for=6.6.6.6;host=\"{}\"", "a".repeat(64_000));
    for (garbage, origin) in [
        (pairs, AddressOrigin::Malformed),
        (open_quote, AddressOrigin::TooManyHops),
        (escapes, AddressOrigin::Malformed),
        (host, AddressOrigin::Malformed),
    ] {
        assert_eq!(
            behind_proxy(&fwd(), &[(FWD, &garbage)]),
            resolved(PEER, origin)
        );
        let appended = format!("{garbage}, for=203.0.113.9");
        assert_eq!(
            behind_proxy(&fwd(), &[(FWD, &appended)]),
            resolved(CLIENT, AddressOrigin::Forwarded)
        );
    }
}

#[test]
fn attack_08_hidden_client_gets_no_other_clients_bucket() {
    for hidden in [
        "for=_x",
        "for=unknown",
        r#"for="_x:_y""#,
        r#"for="unknown:1""#,
        "by=10.0.0.2;for=_SEVKISEK",
    ] {
        let line = format!("for=6.6.6.6, {hidden}");
        assert_eq!(
            behind_proxy(&fwd(), &[(FWD, &line)]),
            resolved(PEER, AddressOrigin::Obfuscated),
            "{line}"
        );
        assert_eq!(
            behind_proxy(&ClientIp::forwarded_hops(1).unwrap(), &[(FWD, &line)]),
            resolved(PEER, AddressOrigin::Obfuscated)
        );
        // Behind a second proxy the bucket is that proxy's.
        let line = format!("{line}, for=10.0.0.2");
        assert_eq!(
            behind_proxy(&fwd(), &[(FWD, &line)]),
            resolved("10.0.0.2", AddressOrigin::Obfuscated),
            "{line}"
        );
    }
}

#[test]
fn attack_09_trusting_all_addresses_takes_an_opt_in() {
    for all in [
        "0.0.0.0/0",
        "::/0",
        "1.2.3.4/0",
        "::ffff:0:0/96",
        "0.0.0.0/1",
        "128.0.0.0/1",
        "2000::/3",
    ] {
        let error = TrustedProxies::new(["10.0.0.1", all])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("every machine") && error.contains("danger_any_width"),
            "{error}"
        );
        assert_eq!(
            TrustedProxies::danger_any_width([all])
                .unwrap()
                .broad_networks()
                .count(),
            1,
            "{all}"
        );
    }
    // Even so no client chooses its bucket by writing a list of trusted addresses.
    let source =
        ClientIp::x_forwarded_for(TrustedProxies::danger_any_width(["0.0.0.0/0"]).unwrap());
    assert_eq!(
        behind_proxy(&source, &[(XFF, "6.6.6.6, 203.0.113.9")]),
        resolved(PEER, AddressOrigin::AllTrusted)
    );
}

#[test]
fn attack_09_broad_networks_are_named() {
    let nets = [
        "10.0.0.0/8",
        "10.0.0.0/23",
        "10.0.0.0/24",
        "10.0.0.1",
        "fc00::/7",
        "2001:db8::/47",
        "2001:db8::/48",
    ];
    let source = ClientIp::x_forwarded_for(TrustedProxies::new(nets).unwrap());
    let broad = ["10.0.0.0/8", "10.0.0.0/23", "fc00::/7", "2001:db8::/47"];
    let expected = broad.map(|net| net.parse::<IpNet>().unwrap());
    assert_eq!(source.broad_networks().collect::<Vec<_>>(), expected);
    let single = ClientIp::header("cf-connecting-ip", ten_slash_eight()).unwrap();
    assert_eq!(single.broad_networks().count(), 1);
    assert_eq!(
        ClientIp::peer().broad_networks().count() + ClientIp::fly_io().broad_networks().count(),
        0
    );
}

#[test]
fn attack_10_list_shorter_than_the_hop_count_names_the_peer() {
    // Never the leftmost instead: that would be the client's choice.
    let source = ClientIp::x_forwarded_for_hops(3).unwrap();
    assert_eq!(
        behind_proxy(&source, &[(XFF, "6.6.6.6, 203.0.113.9")]),
        resolved(PEER, AddressOrigin::TooFewHops)
    );
}

#[test]
fn attack_12_mapped_address_is_that_ipv4_address_and_no_other() {
    let aliases = [
        "1.2.3.4",
        "::ffff:1.2.3.4",
        "::FFFF:102:304",
        "0:0:0:0:0:ffff:0102:0304",
        "[::ffff:1.2.3.4]:80",
    ];
    for alias in aliases {
        assert_eq!(
            behind_proxy(&xff(), &[(XFF, alias)]),
            resolved("1.2.3.4", AddressOrigin::Forwarded),
            "{alias}"
        );
    }
    for v6 in [32, 56, 64, 80, 128] {
        let prefix = IpPrefix::new(32, v6).unwrap();
        assert_eq!(prefix.mask(ip("::ffff:1.2.3.4")), ip("1.2.3.4"));
        assert_ne!(
            prefix.mask(ip("::ffff:1.2.3.5")),
            prefix.mask(ip("1.2.3.4"))
        );
    }
    assert!(
        behind_proxy(&xff(), &[(XFF, "2001:db8::1.2.3.4")])
            .address
            .unwrap()
            .is_ipv6()
    );
    // Deprecated "compatible" notation is not mapped, and ::1 is not 0.0.0.1.
    assert!(
        behind_proxy(&xff(), &[(XFF, "::1.2.3.4")])
            .address
            .unwrap()
            .is_ipv6()
    );
    assert_eq!(
        xff().resolve(Some(ip("::1")), &HeaderMap::new()),
        resolved("::1", AddressOrigin::UntrustedPeer)
    );
}

#[test]
fn attack_12_translated_address_is_that_ipv4_address() {
    let own = |source: ClientIp| source.nat64("2001:db8:64::/96").unwrap();
    let single = || ClientIp::header("cf-connecting-ip", ten_slash_eight()).unwrap();
    for (prefix, by) in [
        ("64:ff9b::", (|source| source) as fn(ClientIp) -> ClientIp),
        ("::ffff:0:", |source| source),
        ("2001:db8:64::", own),
    ] {
        let (client, proxy) = (format!("{prefix}{CLIENT}"), ip(&format!("{prefix}{PEER}")));
        let found = resolved(CLIENT, AddressOrigin::Forwarded);
        let line = format!("[{client}]:443, {prefix}10.0.0.2");
        assert_eq!(
            by(xff()).resolve(Some(proxy), &headers([(XFF, &line)])),
            found,
            "{prefix}"
        );
        let element = format!("for=\"[{client}]\"");
        assert_eq!(
            by(fwd()).resolve(Some(proxy), &headers([(FWD, &element)])),
            found,
            "{prefix}"
        );
        assert_eq!(
            by(single()).resolve(Some(proxy), &headers([("cf-connecting-ip", &client)])),
            found,
            "{prefix}"
        );
        let hops = ClientIp::x_forwarded_for_hops(2).unwrap();
        assert_eq!(
            by(hops).resolve(None, &headers([(XFF, &line)])),
            found,
            "{prefix}"
        );
        let peer = by(ClientIp::peer()).resolve(Some(ip(&client)), &HeaderMap::new());
        assert_eq!(peer, resolved(CLIENT, AddressOrigin::Peer), "{prefix}");
    }
    let unnamed = ClientIp::peer().resolve(Some(ip("2001:db8:64::1.2.3.4")), &HeaderMap::new());
    assert!(unnamed.address.unwrap().is_ipv6());
    let mask = |address: &str| IpPrefix::default().mask(ip(address));
    assert_ne!(mask("64:ff9b::192.0.2.1"), mask("64:ff9b::198.51.100.9"));
}

#[test]
fn attack_12_mapped_peer_is_the_trusted_proxy() {
    let headers = headers([(XFF, CLIENT)]);
    assert_eq!(
        xff().resolve(Some(ip("::ffff:10.0.0.1")), &headers),
        resolved(CLIENT, AddressOrigin::Forwarded)
    );
    assert_eq!(
        xff().resolve(Some(ip("::ffff:198.51.100.7")), &headers),
        resolved(STRANGER, AddressOrigin::UntrustedPeer)
    );
}

#[test]
fn attack_13_zones_are_no_part_of_an_address() {
    let zone_left_out = resolved("fe80::1", AddressOrigin::Forwarded);
    for zoned in [
        "fe80::1%eth0",
        "fe80::1%2",
        "[fe80::1%eth0]",
        "[fe80::1%25eth0]:80",
    ] {
        assert_eq!(
            behind_proxy(&xff(), &[(XFF, zoned)]),
            zone_left_out,
            "{zoned}"
        );
    }
    let single = ClientIp::header("cf-connecting-ip", ten_slash_eight()).unwrap();
    assert_eq!(
        behind_proxy(&single, &[("cf-connecting-ip", "fe80::1%eth0")]),
        zone_left_out
    );
    assert_eq!(
        behind_proxy(&fwd(), &[(FWD, r#"for="[fe80::1%eth0]""#)]),
        zone_left_out
    );
    // A proxy is trusted whatever interface it was seen on, and an IPv4 address has no zone.
    let behind_two = [(XFF, "203.0.113.9, ::ffff:10.0.0.2%a")];
    assert_eq!(
        behind_proxy(&xff(), &behind_two),
        resolved(CLIENT, AddressOrigin::Forwarded)
    );
    assert_eq!(
        behind_proxy(&xff(), &[(XFF, "10.0.0.2%1")]),
        resolved(PEER, AddressOrigin::Malformed)
    );
    assert!(TrustedProxies::new(["fe80::1%eth0"]).is_err());
    // Link-local peers on two interfaces are one client.
    let peer =
        |scope| IpAddr::from(*SocketAddrV6::new("fe80::1".parse().unwrap(), 443, 0, scope).ip());
    let found = |scope| ClientIp::peer().resolve(Some(peer(scope)), &HeaderMap::new());
    assert_eq!(found(1), found(2));
}
