use super::Address;

/// A server's reply.
///
/// ```
/// use throttle_redis::Reply;
///
/// let pong = Reply::Status("PONG".to_owned());
/// assert_ne!(pong, Reply::Nil);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// No value.
    Nil,
    /// A number.
    Int(i64),
    /// A bulk string.
    Bytes(Vec<u8>),
    /// A status line, such as `OK`.
    Status(String),
    /// Several replies.
    Array(Vec<Reply>),
}

impl Reply {
    pub(crate) fn into_bytes(self) -> Option<Vec<u8>> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    pub(crate) fn into_array(self) -> Option<Vec<Reply>> {
        match self {
            Self::Array(replies) => Some(replies),
            _ => None,
        }
    }

    /// The host and the port with which a list begins. The host is empty if the server does not
    /// know it.
    pub(crate) fn into_address(self) -> Option<Address> {
        let mut parts = self.into_array()?.into_iter();
        let host = match parts.next()? {
            Self::Nil => Vec::new(),
            host => host.into_bytes()?,
        };
        let port = parts.next()?.as_number()?;
        Some((String::from_utf8(host).ok()?, u16::try_from(port).ok()?))
    }

    /// A number, or a text that is one.
    pub(crate) fn as_number(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Bytes(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_line_is_no_value() {
        let status = || Reply::Status("OK".to_owned());
        assert_eq!((status().into_bytes(), status().into_array()), (None, None));
        assert_eq!(
            Reply::Bytes(b"OK".to_vec()).into_bytes(),
            Some(b"OK".to_vec())
        );
    }

    #[test]
    fn a_number_may_come_as_a_text() {
        assert_eq!(Reply::Int(-7).as_number(), Some(-7));
        assert_eq!(Reply::Bytes(b"6379".to_vec()).as_number(), Some(6379));
        assert_eq!(Reply::Bytes(b"port".to_vec()).as_number(), None);
        assert_eq!(Reply::Status("7".to_owned()).as_number(), None);
    }
}
