//! An identity as the lookup gets it, as text, and as the cache keeps it, as a digest.

use std::hash::{BuildHasher, RandomState};

use throttle_core::{Key, KeyPart};

/// Two keyed hashes of 64 bits.
pub(super) type Digest = u128;

/// Makes digests that other processes cannot predict.
#[derive(Default)]
pub(super) struct Digester([RandomState; 2]);

impl Digester {
    pub(super) fn digest(&self, key: &Key) -> Digest {
        let [high, low] = [0, 1].map(|half: usize| self.0[half].hash_one(key));
        u128::from(high) << 64 | u128::from(low)
    }
}

/// A key as text; `None` if one of its parts is not text.
pub(super) fn identity_text(key: &Key) -> Option<String> {
    let mut text = String::new();
    for (index, part) in key.expose_parts().enumerate() {
        if index > 0 {
            text.push(',');
        }
        match part {
            KeyPart::Text(part) => text.push_str(part),
            KeyPart::Bytes(part) => text.push_str(std::str::from_utf8(part).ok()?),
            KeyPart::Number(number) => text.push_str(&number.to_string()),
            KeyPart::Network(address, bits) => text.push_str(&format!("{address}/{bits}")),
            _ => return None,
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn law_11_identities_are_distinguished_by_two_secrets() {
        let digester = Digester::default();
        for n in 0..100_u64 {
            let digest = digester.digest(&Key::from(n));
            assert_ne!(
                (digest >> 64) as u64,
                digest as u64,
                "128 bits, not 64 twice"
            );
        }
    }

    #[test]
    fn lookup_gets_the_identity_as_text() {
        let key = Key::builder()
            .text("acme")
            .bytes(b"ada")
            .number(7)
            .ip(Ipv4Addr::LOCALHOST.into())
            .finish();
        assert_eq!(
            identity_text(&key).as_deref(),
            Some("acme,ada,7,127.0.0.1/32")
        );
        assert_eq!(identity_text(&Key::CONSTANT).as_deref(), Some(""));
        assert_eq!(
            identity_text(&Key::builder().text("acme").bytes(b"\xff").finish()),
            None
        );
        assert_eq!(identity_text(&Key::missing()), None);
    }
}
