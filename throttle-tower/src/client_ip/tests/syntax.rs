//! Which texts are an entry of `X-Forwarded-For` and which an element of `Forwarded`.

use super::*;
use crate::client_ip::address_text::{EntryAddress, trim};
use crate::client_ip::{forwarded, x_forwarded_for};

#[test]
fn entries_that_are_addresses() {
    for (text, address) in [
        ("1.2.3.4", "1.2.3.4"),
        ("1.2.3.4:80", "1.2.3.4"),
        ("1.2.3.4:0", "1.2.3.4"),
        ("1.2.3.4:65535", "1.2.3.4"),
        ("2001:db8::1", "2001:db8::1"),
        ("2001:DB8:0:0::1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        ("[::ffff:1.2.3.4]:443", "::ffff:1.2.3.4"),
        (
            "[0000:0000:0000:0000:0000:ffff:255.255.255.255]:65535",
            "::ffff:255.255.255.255",
        ),
        ("fe80::1%eth0", "fe80::1"),
        ("fe80::1%25eth0", "fe80::1"),
        ("2001:db8:1::1%a", "2001:db8:1::1"),
        ("[2001:db8:1::1%7]:443", "2001:db8:1::1"),
        (
            "[0000:0000:0000:0000:0000:ffff:255.255.255.255%enp0s20f0u1u2u]:65535",
            "::ffff:255.255.255.255",
        ),
    ] {
        assert_eq!(
            x_forwarded_for::read(text.as_bytes()),
            Ok(ip(address)),
            "{text}"
        );
    }
}

#[test]
fn entries_that_are_malformed() {
    for text in [
        "",
        " ",
        "1.2.3",
        "1.2.3.4.5",
        "203.0.113.009",
        "0x7f.0.0.1",
        "2130706433",
        "１.2.3.4",
        "1.2.3.4 ",
        "\u{a0}1.2.3.4",
        "1.2.3.4:",
        "1.2.3.4:+80",
        "1.2.3.4:65536",
        "1.2.3.4:000080",
        "1.2.3.4:80:80",
        "1.2.3.4/32",
        "\"1.2.3.4\"",
        "[1.2.3.4]",
        "fe80::1%",
        "1.2.3.4%eth0",
        "%eth0",
        "fe80::1%eth0]",
        "fe80::1%eth 0",
        "fe80::1%\u{e9}",
        "[fe80::1%eth0",
        "[2001:db8::1",
        "2001:db8::1]",
        "[2001:db8::1]443",
        "[2001:db8::1]:",
        "[2001:db8::1]:x",
        "[2001:db8::1]::",
        "[2001:db8::1]::80",
        "[2001:db8::1]:80:",
        "1.2.3.4::80",
        "[[2001:db8::1]]",
        "[]",
        "unknown",
        "_hidden",
        "unix:",
        "localhost",
        "for=1.2.3.4",
    ] {
        assert_eq!(
            x_forwarded_for::read(text.as_bytes()),
            Err(AddressOrigin::Malformed),
            "{text:?}"
        );
    }
    assert_eq!(
        x_forwarded_for::read(b"1.2.3.4\xff"),
        Err(AddressOrigin::Malformed)
    );
    assert_eq!(
        x_forwarded_for::read(format!("[2001:db8::1]:{}80", "0".repeat(60)).as_bytes()),
        Err(AddressOrigin::Malformed)
    );
}

#[test]
fn only_spaces_and_tabs_are_trimmed() {
    assert_eq!(trim(b" \t1.2.3.4\t "), b"1.2.3.4");
    assert_eq!(trim(b" \t "), b"");
    assert_eq!(trim(b"\x0b1\x0c"), b"\x0b1\x0c");
}

#[test]
fn elements_that_name_an_address() {
    for (text, address) in [
        ("for=1.2.3.4", "1.2.3.4"),
        ("For=1.2.3.4;Proto=https", "1.2.3.4"),
        ("proto=http;by=10.0.0.1;FOR=1.2.3.4", "1.2.3.4"),
        (";for=1.2.3.4;;proto=http;", "1.2.3.4"),
        (r#"for="1.2.3.4""#, "1.2.3.4"),
        (r#"for="1.2.3.4:80""#, "1.2.3.4"),
        (r#"for="1.2.3.4:_port.x-1""#, "1.2.3.4"),
        (r#"for="[2001:db8::1]""#, "2001:db8::1"),
        (r#"for="[2001:db8::1]:443""#, "2001:db8::1"),
        (r#"for="[2001:db8::1]:_p""#, "2001:db8::1"),
        (r#"for="[::ffff:1.2.3.4]""#, "::ffff:1.2.3.4"),
        (r#"for="[fe80::1%eth0]:443""#, "fe80::1"),
        (r#"for="\1.\2.3.4\:80""#, "1.2.3.4"),
        (r#"for=1.2.3.4;host="""#, "1.2.3.4"),
        (r#"for=1.2.3.4;ext=a;ext=b"#, "1.2.3.4"),
        ("for=1.2.3.4;a!#$%&'*+-.^_`|~9=!#$%&'*+-.^_`|~9", "1.2.3.4"),
    ] {
        assert_eq!(forwarded::read(text.as_bytes()), Ok(ip(address)), "{text}");
    }
    assert_eq!(
        forwarded::read(b"for=1.2.3.4;host=\"\xe9\t\""),
        Ok(ip("1.2.3.4"))
    );
}

#[test]
fn elements_that_hide_the_address() {
    let long = format!("for=_{}", "x".repeat(500));
    for text in [
        "for=unknown",
        "for=_a",
        "for=_a.B-c_9",
        r#"for="_a:1""#,
        r#"for="\unknown""#,
        &long,
    ] {
        assert_eq!(
            forwarded::read(text.as_bytes()),
            Err(AddressOrigin::Obfuscated),
            "{text}"
        );
    }
}

#[test]
fn elements_that_are_malformed() {
    for text in [
        "for",
        "for=",
        "=1.2.3.4",
        ";",
        "proto=https",
        "1.2.3.4",
        r#"for="""#,
        "for=1.2.3.4:80",
        "for=[2001:db8::1]",
        r#"for="2001:db8::1""#,
        r#"for="[2001:db8::1""#,
        r#"for="[2001:db8::1]x""#,
        r#"for="[2001:db8::1]:""#,
        r#"for="[2001:db8::1]:x""#,
        r#"for="[2001:db8::1]::80""#,
        r#"for="[2001:db8::1]::_p""#,
        r#"for="1.2.3.4::80""#,
        r#"for="[2001:db8::1]:65536""#,
        r#"for="[1.2.3.4]""#,
        r#"for="1.2.3.4:""#,
        r#"for="1.2.3.4:123456""#,
        r#"for="1.2.3.4:_""#,
        r#"for=" 1.2.3.4""#,
        "for=01.2.3.4",
        "for =1.2.3.4",
        "for= 1.2.3.4",
        "for=1.2.3.4 ;proto=http",
        "for=1.2.3.4; proto=http",
        "for=1.2.3.4;proto=http;PROTO=https",
        "for=1.2.3.4;for=1.2.3.4",
        "for=1.2.3.4;host=",
        "for=1.2.3.4;=a",
        "for=1.2.3.4;by=a;by=a",
        "for=1.2.3.4;host=a;Host=a",
        r#"for=1.2.3.4;for="#,
        r#"for="1.2.3.4"x"#,
        r#"for="1.2.3.4"#,
        r#"for="1.2.3.4\"#,
        r#"for="1.2.3.4\""#,
        "for=unknown:80",
        "for=_",
        "for=_a*b",
        r#"for="_a:""#,
        "for=unknownx",
        "for=localhost",
    ] {
        assert_eq!(
            forwarded::read(text.as_bytes()),
            Err(AddressOrigin::Malformed),
            "{text}"
        );
    }
    for control in [
        b"for=1.2.3.4;host=\"\x7f\"".as_slice(),
        b"for=1.2.3.4;host=\"\\\x7f\"",
    ] {
        assert_eq!(forwarded::read(control), Err(AddressOrigin::Malformed));
    }
    // A quoted string that is too long is not cut to one that would fit.
    for escaped in [
        format!("{}1.2.3.4", r"\0".repeat(80)),
        format!(r"\[2001:db8::1]:_{}", "x".repeat(80)),
    ] {
        assert_eq!(
            forwarded::read(format!(r#"for="{escaped}""#).as_bytes()),
            Err(AddressOrigin::Malformed),
            "{escaped}"
        );
    }
}

#[test]
fn elements_split_from_the_right() {
    let split = |text: &'static str| forwarded::split(text.as_bytes()).collect::<Vec<_>>();
    assert_eq!(split(r"a,b,c"), [b"c", b"b", b"a"]);
    assert_eq!(split(""), [b""]);
    assert_eq!(split(","), [b"", b""]);
    assert_eq!(split(r#"a,"b,c",d"#), [b"d".as_slice(), br#""b,c""#, b"a"]);
    assert_eq!(
        split(r#"a,"b\",c",d"#),
        [b"d".as_slice(), br#""b\",c""#, b"a"]
    );
    assert_eq!(split(r#"a,"b\\",d"#), [b"d".as_slice(), br#""b\\""#, b"a"]);
    // An open quote takes everything to its left; the strict reader then refuses that element.
    assert_eq!(split(r#"a,b",c"#), [b"c".as_slice(), br#"a,b""#]);
}

#[test]
fn element_over_the_bound_is_neither_split_nor_read() {
    let element = |length: usize| {
        let start = "for=203.0.113.9;host=".to_owned();
        let host = "h".repeat(length - start.len());
        start + &host
    };
    let longest = element(forwarded::MAX_ELEMENT);
    assert_eq!(forwarded::read(longest.as_bytes()), Ok(ip(CLIENT)));
    assert_eq!(
        forwarded::read(element(forwarded::MAX_ELEMENT + 1).as_bytes()),
        Err(AddressOrigin::Malformed)
    );
    // The comma is found on the left of the longest element, and not looked for any further.
    let line = format!("for=6.6.6.6,{longest}");
    assert_eq!(forwarded::split(line.as_bytes()).count(), 2);
    let line = format!("for=6.6.6.6,{longest}h");
    assert_eq!(
        forwarded::split(line.as_bytes()).collect::<Vec<_>>(),
        [line.as_bytes()]
    );
}

/// Long runs of what makes a careless tokeniser go back and forth. Quadratic work would take
/// minutes here.
#[test]
fn splitting_takes_linear_time() {
    for unit in ["\\", "\"", "\\\"", "\"\\", ",", ",\""] {
        let line = unit.repeat(1 << 20);
        let total = forwarded::split(line.as_bytes())
            .map(|element| element.len() + 1)
            .sum::<usize>();
        assert_eq!(total, line.len() + 1, "{unit}");
    }
}

/// No legal entry is longer, but a hidden port may be.
#[test]
fn entry_is_read_up_to_its_bound() {
    fn quoted(node: &str) -> EntryAddress {
        forwarded::read(format!("for=\"{node}\"").as_bytes())
    }
    let port = |length: usize| {
        let start = "[2001:db8::1]:_";
        format!("{start}{}", "x".repeat(length - start.len()))
    };
    let escaped = |node: &str| quoted(&format!("\\{node}"));
    let bound = crate::client_ip::address_text::MAX_ENTRY;
    assert_eq!(bound, 72);
    for read in [quoted, escaped as fn(&str) -> EntryAddress] {
        assert_eq!(read(&port(bound)), Ok(ip("2001:db8::1")));
        assert_eq!(read(&port(bound + 1)), Err(AddressOrigin::Malformed));
    }
    // The bounds of a port, and text that is not UTF-8 where one is expected.
    for (node, is_address) in [
        ("1.2.3.4:00000", true),
        ("1.2.3.4:000000", false),
        ("1.2.3.4:65535", true),
        ("1.2.3.4:65536", false),
    ] {
        assert_eq!(quoted(node) == Ok(ip("1.2.3.4")), is_address, "{node}");
        assert_eq!(
            x_forwarded_for::read(node.as_bytes()) == Ok(ip("1.2.3.4")),
            is_address,
            "{node}"
        );
    }
    assert_eq!(
        forwarded::read(b"for=\"1.2.3.4:\xff\""),
        Err(AddressOrigin::Malformed)
    );
    assert_eq!(
        forwarded::read(b"for=\"[2001:db8::1]:\xff\""),
        Err(AddressOrigin::Malformed)
    );
}
