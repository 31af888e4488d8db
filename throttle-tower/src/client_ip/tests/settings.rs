//! What a configuration accepts, and what it says when it does not.

use super::*;
use crate::client_ip::{IpNet, IpPrefix};

#[test]
fn networks_are_canonical() {
    for (text, canonical) in [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.1.2.3/8", "10.0.0.0/8"),
        ("10.1.2.3", "10.1.2.3/32"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("255.255.255.255/31", "255.255.255.254/31"),
        ("2001:db8::/32", "2001:db8::/32"),
        ("2001:DB8:0:1::5/48", "2001:db8::/48"),
        ("2001:db8::1", "2001:db8::1/128"),
        ("::/0", "::/0"),
        ("8000::1/0", "::/0"),
        ("::ffff:10.1.2.3", "10.1.2.3/32"),
        ("::ffff:10.1.2.3/104", "10.0.0.0/8"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("64:ff9b::10.1.2.3", "10.1.2.3/32"),
        ("64:ff9b::10.0.0.0/104", "10.0.0.0/8"),
        ("::ffff:0:10.0.0.0/104", "10.0.0.0/8"),
        ("64:ff9b:1::/48", "64:ff9b:1::/48"),
        ("::1.2.3.4", "::102:304/128"),
    ] {
        let net = text.parse::<IpNet>().unwrap();
        assert_eq!(net.to_string(), canonical, "{text}");
        assert_eq!(IpNet::try_from(canonical.to_owned()), Ok(net));
    }
}

#[test]
fn networks_hold_their_own_family_by_bits() {
    let holds = |net: &str, address| net.parse::<IpNet>().unwrap().contains(ip(address));
    assert!(holds("10.0.0.0/8", "10.255.255.255"));
    assert!(holds("10.0.0.0/8", "::ffff:10.1.2.3"));
    assert!(holds("10.0.0.0/8", "64:ff9b::10.1.2.3") && holds("10.0.0.0/8", "::ffff:0:10.1.2.3"));
    assert!(
        holds("64:ff9b::10.0.0.0/104", "10.1.2.3") && !holds("10.0.0.0/8", "64:ff9b::11.0.0.0")
    );
    assert!(!holds("10.0.0.0/8", "11.0.0.0"));
    assert!(!holds("10.0.0.0/8", "::10.1.2.3"));
    assert!(holds("0.0.0.0/0", "255.255.255.255"));
    assert!(!holds("0.0.0.0/0", "::1"));
    assert!(!holds("::/0", "1.2.3.4"));
    assert!(!holds("::/0", "::ffff:1.2.3.4"));
    assert!(holds("2001:db8::/33", "2001:db8:7fff::1"));
    assert!(!holds("2001:db8::/33", "2001:db8:8000::1"));
    assert!(holds("2001:db8::1", "2001:db8::1"));
    assert!(!holds("2001:db8::1", "2001:db8::2"));
}

#[test]
fn networks_are_parsed_strictly() {
    for text in [
        "",
        "/8",
        "10.0.0.0/",
        "010.0.0.0/8",
        "10.0.0.0/08",
        "10.0.0.0/+8",
        "10.0.0.0/-1",
        "10.0.0.0/8 ",
        " 10.0.0.0/8",
        "10.0.0.0/8/8",
        "10.0.0.0/33",
        "10.0.0.0/256",
        "10.0.0.0/255.0.0.0",
        "10/8",
        "10.0.0/8",
        "[2001:db8::]/32",
        "2001:db8::/129",
        "2001:db8::/32%eth0",
        "fe80::%eth0/64",
        "::ffff:10.0.0.0/8",
        "example.com",
    ] {
        assert!(text.parse::<IpNet>().is_err(), "{text}");
    }
}

/// Spaces are refused wherever the text comes from: a list may be of any of these types.
#[test]
fn network_is_read_alike_from_every_kind_of_text() {
    for text in [
        "10.1.2.3/8",
        " 10.0.0.0/8",
        "10.0.0.0/8\n",
        "10.0.0.0 /8",
        "10.0.0.0/ 8",
        "2001:db8::1\t",
        "",
    ] {
        let net = text.parse::<IpNet>();
        assert_eq!(net.is_ok(), text == "10.1.2.3/8", "{text:?}");
        assert_eq!(IpNet::try_from(text), net);
        assert_eq!(IpNet::try_from(text.to_owned()), net);
    }
}

#[test]
fn trusted_proxies_take_text_addresses_and_networks() {
    let net: IpNet = "10.0.0.0/24".parse().unwrap();
    let texts = vec![String::from("10.0.0.0/24")];
    assert_eq!(
        TrustedProxies::new([net]),
        TrustedProxies::new(texts.clone())
    );
    assert_eq!(
        TrustedProxies::new(texts),
        TrustedProxies::new(["10.0.0.7/24"])
    );
    assert_eq!(
        TrustedProxies::new([ip("10.0.0.7")]),
        TrustedProxies::new(["10.0.0.7/32"])
    );
    assert!(
        TrustedProxies::new(["10.0.0.7"])
            .unwrap()
            .contains(ip("::ffff:10.0.0.7"))
    );
    let several = TrustedProxies::new(["10.0.0.0/24", "192.0.2.7", "2001:db8::/32"]).unwrap();
    for (address, is_trusted) in [
        ("10.0.0.1", true),
        ("192.0.2.7", true),
        ("2001:db8::1", true),
        ("192.0.2.8", false),
        ("2001:db9::1", false),
    ] {
        assert_eq!(several.contains(ip(address)), is_trusted, "{address}");
    }
}

#[test]
fn widest_networks_to_trust_are_a_class_a_and_all_private_ipv6() {
    for (widest, wider) in [("10.0.0.0/8", "10.0.0.0/7"), ("fc00::/7", "fc00::/6")] {
        assert!(TrustedProxies::new([widest]).is_ok());
        assert!(
            TrustedProxies::new([wider])
                .unwrap_err()
                .to_string()
                .contains("every machine")
        );
        assert!(TrustedProxies::danger_any_width([wider]).is_ok());
    }
}

#[test]
fn prefix_may_be_a_whole_address() {
    let whole = IpPrefix::new(32, 128).unwrap();
    assert_eq!(whole.mask(ip("2001:db8::1")), ip("2001:db8::1"));
    assert_eq!(whole.mask(ip(CLIENT)), ip(CLIENT));
}

#[test]
fn the_default_prefix_is_one_ipv4_address_and_one_ipv6_subnet() {
    let prefix = IpPrefix::default();
    assert_eq!((prefix.v4(), prefix.v6()), (32, 64));
    assert_eq!(prefix.mask(ip("203.0.113.9")), ip("203.0.113.9"));
    assert_eq!(
        prefix.mask(ip("2001:db8:1:2:3:4:5:6")),
        ip("2001:db8:1:2::")
    );
    let coarse = IpPrefix::new(24, 48).unwrap();
    assert_eq!(coarse.mask(ip("203.0.113.9")), ip("203.0.113.0"));
    assert_eq!(coarse.mask(ip("2001:db8:1:2:3:4:5:6")), ip("2001:db8:1::"));
}

#[test]
fn whole_message_of_each_error() {
    let text = |error: Option<throttle_core::ConfigError>| error.expect("it is wrong").to_string();
    let net = |text: &str| text.parse::<IpNet>().err();
    let cidr = "is not an address or a CIDR network; write 10.0.0.0/28, 2001:db8::/64 or one \
        address, without leading \
                zeros, spaces or a zone";
    let hops =
        "is out of range; write 1 to 20: the number of your proxies that append to the header";
    let mapped = "stands for an IPv4 address and has a prefix under 96; write the IPv4 network \
        itself, such as 10.0.0.0/8";
    for (message, expected) in [
        (
            text(net("localhost")),
            format!("network is \"localhost\": it {cidr}"),
        ),
        (
            text(net("10.0.0.0/x")),
            format!("network is \"10.0.0.0/x\": it {cidr}"),
        ),
        (
            text(net("\x1b[2J")),
            format!("network is \"\\u{{1b}}[2J\": it {cidr}"),
        ),
        (
            text(net("10.0.0.0/33")),
            "network is \"10.0.0.0/33\": it has too long a prefix; write 0 to 32 after the slash \
                for IPv4"
                .to_owned(),
        ),
        (
            text(net("2001:db8::/129")),
            "network is \"2001:db8::/129\": it has too long a prefix; write 0 to 128 after the \
                slash for IPv6"
                .to_owned(),
        ),
        (
            text(net("::ffff:10.0.0.0/129")),
            "network is \"::ffff:10.0.0.0/129\": it has too long a prefix; write 0 to 128 after \
                the slash for IPv6"
                .to_owned(),
        ),
        (
            text(net("::ffff:10.0.0.0/95")),
            format!("network is \"::ffff:10.0.0.0/95\": it {mapped}"),
        ),
        (
            text(ClientIp::x_forwarded_for_hops(0).err()),
            format!("hops is \"0\": it {hops}"),
        ),
        (
            text(ClientIp::x_forwarded_for_hops(21).err()),
            format!("hops is \"21\": it {hops}"),
        ),
        (
            text(ClientIp::forwarded_hops(0).err()),
            format!("hops is \"0\": it {hops}"),
        ),
        (
            text(IpPrefix::new(0, 0).err()),
            "IPv4 prefix is \"0\": it is out of range; write 1 to 32 bits; the default is 32"
                .to_owned(),
        ),
        (
            text(IpPrefix::new(1, 129).err()),
            "IPv6 prefix is \"129\": it is out of range; write 1 to 128 bits; the default is 64"
                .to_owned(),
        ),
        (
            text(TrustedProxies::new([""; 0]).err()),
            "trusted networks is \"\": it is empty, so that no header would ever be read; list \
                your proxies, or use \
             ClientIp::peer()"
                .to_owned(),
        ),
        (
            text(TrustedProxies::new(["10.0.0.1", "10.0.0.0/7", "::/0"]).err()),
            "trusted network is \"10.0.0.0/7\": it trusts (nearly) every machine, so any client \
                could name any address; list \
             your proxies' own networks, /8 (IPv4) or /7 (IPv6) at the very widest; if nothing \
             but your proxies can \
             reach this process, count hops instead, or opt in with \
             TrustedProxies::danger_any_width"
                .to_owned(),
        ),
        (
            text(ClientIp::header("x_ip", ten_slash_eight()).err()),
            "client address header is \"x_ip\": it has an underscore; write it with hyphens, as \
                the proxy sends it"
                .to_owned(),
        ),
        (
            text(ClientIp::header("", ten_slash_eight()).err()),
            "client address header is \"\": it is not a header name; write the name alone, such \
                as cf-connecting-ip"
                .to_owned(),
        ),
    ] {
        assert_eq!(message, expected);
    }
}

#[test]
fn network_of_one_address_holds_nothing_else() {
    for (address, text, prefix) in [
        ("10.1.2.3", "10.1.2.3/32", 32),
        ("::ffff:10.1.2.3", "10.1.2.3/32", 32),
        ("2001:db8::1", "2001:db8::1/128", 128),
    ] {
        let net = IpNet::from(ip(address));
        assert_eq!((net.to_string().as_str(), net.prefix()), (text, prefix));
        assert!(net.contains(net.network()));
    }
    let net: IpNet = "10.1.2.3/12".parse().unwrap();
    assert_eq!((net.network(), net.prefix()), (ip("10.0.0.0"), 12));
}

#[test]
fn each_bound_of_a_network_is_its_own() {
    for (v4, v6) in [(1, 1), (1, 128), (32, 1), (32, 128)] {
        let prefix = IpPrefix::new(v4, v6).unwrap();
        assert_eq!((prefix.v4(), prefix.v6()), (v4, v6));
    }
    for hops in [1, 20] {
        assert!(
            ClientIp::x_forwarded_for_hops(hops).is_ok() && ClientIp::forwarded_hops(hops).is_ok(),
            "{hops}"
        );
    }
    assert_eq!(crate::client_ip::MAX_HOPS, 20);
}
