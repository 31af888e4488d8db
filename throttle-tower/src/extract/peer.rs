use std::net::{IpAddr, SocketAddr};

use http::request::Parts;

/// The address at the other end of the connection, as an extension of the request.
///
/// Insert it yourself where the server does not provide an address: for a Unix socket behind a
/// proxy, or for an address that the listener takes from the PROXY protocol. It takes precedence
/// over `SocketAddr`, axum's `ConnectInfo<SocketAddr>` (feature `axum`) and tonic's
/// `TcpConnectInfo` (feature `tonic`).
///
/// ```
/// use std::net::{IpAddr, Ipv4Addr};
/// use throttle_tower::extract::PeerAddr;
/// use throttle_tower::{ClientIp, Key, KeyExtractor};
///
/// let address = IpAddr::from([203, 0, 113, 9]);
/// let request = http::Request::builder().extension(PeerAddr(address)).body(())?;
/// assert_eq!(ClientIp::peer().extract(&request.into_parts().0), Some(Key::from(address)));
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddr(pub IpAddr);

/// The peer of a request, from whichever extension holds it.
pub(crate) fn peer(parts: &Parts) -> Option<IpAddr> {
    if let Some(PeerAddr(address)) = parts.extensions.get() {
        return Some(*address);
    }
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(address)) = parts
        .extensions
        .get::<axum::extract::ConnectInfo<SocketAddr>>()
    {
        return Some(address.ip());
    }
    // Its server provides this for connections with TLS too.
    #[cfg(feature = "tonic")]
    if let Some(info) = parts
        .extensions
        .get::<tonic::transport::server::TcpConnectInfo>()
        && let Some(address) = info.remote_addr
    {
        return Some(address.ip());
    }
    parts.extensions.get::<SocketAddr>().map(SocketAddr::ip)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    /// Each address comes before those that are inserted before it here.
    #[test]
    fn address_that_the_user_states_comes_before_the_connection() {
        let socket = |last: u8| SocketAddr::from(([192, 0, 2, last], 4_000));
        let (mut parts, ()) = Request::new(()).into_parts();
        assert_eq!(peer(&parts), None);
        parts.extensions.insert(socket(1));
        assert_eq!(peer(&parts), Some(socket(1).ip()));
        #[cfg(feature = "tonic")]
        for (remote_addr, last) in [(None, 1), (Some(socket(2)), 2)] {
            let local_addr = Some(socket(9));
            parts
                .extensions
                .insert(tonic::transport::server::TcpConnectInfo {
                    local_addr,
                    remote_addr,
                });
            assert_eq!(peer(&parts), Some(socket(last).ip()), "{remote_addr:?}");
        }
        #[cfg(feature = "axum")]
        {
            parts
                .extensions
                .insert(axum::extract::ConnectInfo(socket(3)));
            assert_eq!(peer(&parts), Some(socket(3).ip()));
        }
        parts.extensions.insert(PeerAddr(socket(4).ip()));
        assert_eq!(peer(&parts), Some(socket(4).ip()));
    }
}
