//! The table of known cases, each a request that at least one other implementation answers wrongly.
//!
//! The peer is 10.0.0.1 and 10.0.0.0/8 is trusted, unless a case says otherwise.

use super::*;

#[track_caller]
fn check(source: &ClientIp, lines: &[(&str, &str)], address: &str, origin: AddressOrigin) {
    assert_eq!(behind_proxy(source, lines), resolved(address, origin), "{lines:?}");
}

#[test]
fn vector_01_spoofed_entry_left_of_the_real_one() {
    check(&xff(), &[(XFF, "6.6.6.6, 203.0.113.9")], CLIENT, AddressOrigin::Forwarded);
}

#[test]
fn vector_02_spoofed_line_before_the_real_one() {
    check(&xff(), &[(XFF, "6.6.6.6"), (XFF, "203.0.113.9")], CLIENT, AddressOrigin::Forwarded);
}

#[test]
fn vector_03_second_proxy_on_its_own_line() {
    check(&xff(), &[(XFF, "6.6.6.6, 203.0.113.9"), (XFF, "10.1.2.3")], CLIENT, AddressOrigin::Forwarded);
}

#[test]
fn vector_04_forwarded_beside_the_configured_header() {
    check(&xff(), &[(FWD, "for=6.6.6.6"), (XFF, "203.0.113.9")], CLIENT, AddressOrigin::Forwarded);
}

#[test]
fn vector_05_port_on_the_real_entry() {
    check(&xff(), &[(XFF, "6.6.6.6, 203.0.113.9:41234")], CLIENT, AddressOrigin::Forwarded);
}

#[test]
fn vector_06_garbage_left_of_the_client() {
    check(&xff(), &[(XFF, "garbage, 203.0.113.9")], CLIENT, AddressOrigin::Forwarded);
}

#[test]
fn vector_07_garbage_right_of_the_client() {
    check(&xff(), &[(XFF, "203.0.113.9, garbage")], PEER, AddressOrigin::Malformed);
}

#[test]
fn vector_08_mapped_client() {
    check(&xff(), &[(XFF, "::ffff:cb00:7109")], CLIENT, AddressOrigin::Forwarded);
}

#[test]
fn vector_09_mapped_proxy() {
    check(&xff(), &[(XFF, "198.51.100.5, ::ffff:10.1.2.3")], "198.51.100.5", AddressOrigin::Forwarded);
}

#[test]
fn vector_10_nothing_but_proxies() {
    check(&xff(), &[(XFF, "10.9.9.9, 10.1.2.3")], PEER, AddressOrigin::AllTrusted);
}

#[test]
fn vector_11_attacker_behind_twenty_proxies() {
    let list = |proxies| {
        let proxies = (2..2 + proxies).map(|i| format!(", 10.0.0.{i}")).collect::<String>();
        format!("6.6.6.6{proxies}")
    };
    check(&xff(), &[(XFF, &list(20))], "10.0.0.2", AddressOrigin::TooManyHops);
    check(&xff(), &[(XFF, &list(19))], SPOOF, AddressOrigin::Forwarded);
}

#[test]
fn vector_12_client_sent_an_open_quote() {
    check(&fwd(), &[(FWD, r#"for=6.6.6.6;by=", for=203.0.113.9"#)], CLIENT, AddressOrigin::Forwarded);
}

#[test]
fn vector_13_comma_and_space_in_a_quoted_host() {
    check(&fwd(), &[(FWD, r#"for=203.0.113.9;host="a, for=6.6.6.6""#)], CLIENT, AddressOrigin::Forwarded);
}

#[test]
fn vector_14_comma_in_a_legal_host() {
    check(&fwd(), &[(FWD, r#"for=203.0.113.9;host="a,for=6.6.6.6";proto=https"#)], CLIENT, AddressOrigin::Forwarded);
}

#[test]
fn vector_15_semicolon_in_a_quoted_host() {
    check(&fwd(), &[(FWD, r#"for=203.0.113.9;host="a;for=6.6.6.6""#)], CLIENT, AddressOrigin::Forwarded);
}

#[test]
fn vector_16_parameter_given_twice() {
    check(&fwd(), &[(FWD, "for=203.0.113.9;for=6.6.6.6")], PEER, AddressOrigin::Malformed);
}

#[test]
fn vector_17_hidden_client() {
    check(&fwd(), &[(FWD, "for=6.6.6.6, for=_hidden")], PEER, AddressOrigin::Obfuscated);
}

#[test]
fn vector_18_hidden_port() {
    check(&fwd(), &[(FWD, r#"for="203.0.113.9:_p""#)], CLIENT, AddressOrigin::Forwarded);
}

#[test]
fn vector_19_unknown_client_in_any_case() {
    for unknown in ["for=6.6.6.6, for=Unknown", "for=6.6.6.6, FOR=UNKNOWN", r#"for=6.6.6.6, for="unknown:80""#] {
        check(&fwd(), &[(FWD, unknown)], PEER, AddressOrigin::Obfuscated);
    }
}

#[test]
fn vector_20_untrusted_peer() {
    let headers = headers([(XFF, SPOOF)]);
    assert_eq!(xff().resolve(Some(ip(STRANGER)), &headers), resolved(STRANGER, AddressOrigin::UntrustedPeer));
}
