//! The table of known cases, each a request that at least one other implementation answers wrongly.

use AddressOrigin::{AllTrusted, Forwarded, Malformed, Obfuscated, TooManyHops};

use super::*;

/// The peer is 10.0.0.1 and 10.0.0.0/8 is trusted.
#[test]
fn known_cases_are_resolved() {
    let behind = |proxies| {
        let proxies = (2..2 + proxies)
            .map(|i| format!(", 10.0.0.{i}"))
            .collect::<String>();
        format!("6.6.6.6{proxies}")
    };
    let (twenty, nineteen) = (&*behind(20), &*behind(19));
    for (case, lines, address, origin) in [
        (
            "spoofed entry",
            &[(XFF, "6.6.6.6, 203.0.113.9")][..],
            CLIENT,
            Forwarded,
        ),
        (
            "spoofed line",
            &[(XFF, "6.6.6.6"), (XFF, "203.0.113.9")],
            CLIENT,
            Forwarded,
        ),
        (
            "second proxy on its own line",
            &[(XFF, "6.6.6.6, 203.0.113.9"), (XFF, "10.1.2.3")],
            CLIENT,
            Forwarded,
        ),
        (
            "another header",
            &[(FWD, "for=6.6.6.6"), (XFF, "203.0.113.9")],
            CLIENT,
            Forwarded,
        ),
        (
            "port",
            &[(XFF, "6.6.6.6, 203.0.113.9:41234")],
            CLIENT,
            Forwarded,
        ),
        (
            "garbage on the left",
            &[(XFF, "garbage, 203.0.113.9")],
            CLIENT,
            Forwarded,
        ),
        (
            "garbage on the right",
            &[(XFF, "203.0.113.9, garbage")],
            PEER,
            Malformed,
        ),
        (
            "mapped client",
            &[(XFF, "::ffff:cb00:7109")],
            CLIENT,
            Forwarded,
        ),
        (
            "mapped proxy",
            &[(XFF, "198.51.100.5, ::ffff:10.1.2.3")],
            "198.51.100.5",
            Forwarded,
        ),
        (
            "nothing but proxies",
            &[(XFF, "10.9.9.9, 10.1.2.3")],
            PEER,
            AllTrusted,
        ),
        (
            "more than twenty hops",
            &[(XFF, twenty)],
            "10.0.0.2",
            TooManyHops,
        ),
        ("twenty hops", &[(XFF, nineteen)], SPOOF, Forwarded),
    ] {
        assert_eq!(
            behind_proxy(&xff(), lines),
            resolved(address, origin),
            "{case}"
        );
    }
    for (case, line, address, origin) in [
        (
            "open quote",
            r#"for=6.6.6.6;by=", for=203.0.113.9"#,
            CLIENT,
            Forwarded,
        ),
        (
            "comma and space in a host",
            r#"for=203.0.113.9;host="a, for=6.6.6.6""#,
            CLIENT,
            Forwarded,
        ),
        (
            "comma in a host",
            r#"for=203.0.113.9;host="a,for=6.6.6.6";proto=https"#,
            CLIENT,
            Forwarded,
        ),
        (
            "semicolon in a host",
            r#"for=203.0.113.9;host="a;for=6.6.6.6""#,
            CLIENT,
            Forwarded,
        ),
        (
            "parameter given twice",
            "for=203.0.113.9;for=6.6.6.6",
            PEER,
            Malformed,
        ),
        (
            "hidden client",
            "for=6.6.6.6, for=_hidden",
            PEER,
            Obfuscated,
        ),
        ("hidden port", r#"for="203.0.113.9:_p""#, CLIENT, Forwarded),
        (
            "unknown client",
            "for=6.6.6.6, for=Unknown",
            PEER,
            Obfuscated,
        ),
        (
            "unknown client in capitals",
            "for=6.6.6.6, FOR=UNKNOWN",
            PEER,
            Obfuscated,
        ),
        (
            "unknown client with a port",
            r#"for=6.6.6.6, for="unknown:80""#,
            PEER,
            Obfuscated,
        ),
    ] {
        assert_eq!(
            behind_proxy(&fwd(), &[(FWD, line)]),
            resolved(address, origin),
            "{case}"
        );
    }
}
