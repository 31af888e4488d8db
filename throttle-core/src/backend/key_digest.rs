//! What a store that several processes share calls a key.

use std::fmt;

use siphasher::sip128::SipHasher24;

use crate::key::Key;

/// Digests keys under a secret, so that a store that processes share holds no address, name or
/// token of a client. Different keys have different digests, and a client that does not know the
/// secret cannot choose two keys that share one.
///
/// The digest is SipHash-2-4 of 128 bits: the same in every process that has the secret, on every
/// machine and in every version. Under another secret all keys count as unused. Keep the secret
/// apart from the store: with both, an attacker can try all addresses until a digest fits.
///
/// ```
/// use throttle_core::Key;
/// use throttle_core::backend::KeyDigest;
///
/// let secret = *b"sixteen bytes of"; // in a program, random bytes from its configuration
/// let digest = KeyDigest::new(&secret);
/// assert_eq!(digest.of(&Key::from("ada")), KeyDigest::new(&secret).of(&Key::from("ada")));
/// assert_ne!(digest.of(&Key::from("ada")), digest.of(&Key::from("eve")));
/// assert_ne!(digest.of(&Key::from("7")), digest.of(&Key::from(7)), "a text is no number");
/// ```
#[derive(Clone, Copy)]
pub struct KeyDigest(SipHasher24);

impl KeyDigest {
    /// Digests keys under a secret.
    #[must_use]
    pub fn new(secret: &[u8; 16]) -> Self {
        Self(SipHasher24::new_with_key(secret))
    }

    /// Returns the digest of a key.
    #[must_use]
    pub fn of(&self, key: &Key) -> [u8; 16] {
        self.0.hash(key.expose_bytes()).as_bytes()
    }
}

/// The secret is not shown.
impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyDigest")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stores outlive versions of this crate. This is the vector of no bytes from SipHash's
    /// reference.
    #[test]
    fn digests_never_change() {
        let secret = std::array::from_fn(|index| index as u8);
        let digest = |key: &Key| u128::from_be_bytes(KeyDigest::new(&secret).of(key));
        assert_eq!(digest(&Key::CONSTANT), 0xa3817f04ba25a8e66df67214c7550293);
        assert_eq!(format!("{:?}", KeyDigest::new(&secret)), "KeyDigest");
    }
}
