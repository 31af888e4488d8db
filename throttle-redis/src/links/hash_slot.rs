//! Hash slots of Redis Cluster.

/// How many there are.
pub(crate) const SLOTS: usize = 16_384;

/// The slot of a key: that of its tag, the text between the first brace and the next closing one,
/// if there is any.
pub(crate) fn of(name: &[u8]) -> u16 {
    let tag = name.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &name[open + 1..];
        let len = rest.iter().position(|byte| *byte == b'}')?;
        (len > 0).then(|| &rest[..len])
    });
    crc16::State::<crc16::XMODEM>::calculate(tag.unwrap_or(name)) % 16_384
}

#[cfg(test)]
mod tests {
    /// The function agrees with `CLUSTER KEYSLOT`.
    #[test]
    fn slots_are_those_of_the_server() {
        for (name, slot) in [
            ("foo", 12_182),
            ("{user1000}.following", 3_443),
            ("user1000", 3_443),
            ("{}x", 10_595),
            ("a{b}{c}", 3_300),
            // No brace closes, or one too early, or twice.
            ("foo{bar", 15_278),
            ("{}{bar}", 11_272),
            ("foo}bar{x}", 16_287),
            ("x{{bar}}y", 4_015),
            ("", 0),
        ] {
            assert_eq!(super::of(name.as_bytes()), slot, "{name}");
        }
    }
}
