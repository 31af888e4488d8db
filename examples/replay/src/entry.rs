//! A line of a log as the request that it was.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::header::{HOST, HeaderName, REFERER, USER_AGENT};
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use throttle_tower::extract::PeerAddr;

use crate::flaw::Flaw;

/// One second, in the microseconds in which all times are counted.
pub const SECOND: i64 = 1_000_000;

/// The limits count exactly up to 2^53 microseconds.
const YEAR_2255: i64 = 1 << 53;

/// A request that a log has recorded.
#[derive(Clone, Debug)]
pub struct Entry {
    /// When the request started, in microseconds since 1970.
    pub start: i64,
    /// Whether the log says more than the second.
    pub is_precise: bool,
    pub address: Option<IpAddr>,
    pub method: Method,
    pub uri: Uri,
    pub host: Option<HeaderValue>,
    pub status: StatusCode,
    pub agent: Option<HeaderValue>,
    pub referer: Option<HeaderValue>,
    /// The route's template, where the log has one.
    pub route: Option<Arc<str>>,
    /// What `--field` reads, in the order of the options.
    pub fields: Arc<[Option<String>]>,
}

/// What a format finds in a line: text that may be anything.
#[derive(Debug, Default)]
pub struct Draft<'l> {
    /// When the line was written or, with `is_start`, when the request started; in microseconds
    /// since 1970.
    pub at: i64,
    pub is_start: bool,
    pub is_precise: bool,
    /// In microseconds.
    pub duration: i64,
    pub address: &'l str,
    pub method: &'l [u8],
    pub target: &'l [u8],
    pub host: Option<&'l [u8]>,
    pub status: &'l [u8],
    pub agent: Option<&'l [u8]>,
    pub referer: Option<&'l [u8]>,
    pub route: Option<&'l str>,
    pub fields: Vec<Option<String>>,
}

/// What `--field` reads of a request, in its extensions.
#[derive(Clone)]
pub struct Fields(pub Arc<[Option<String>]>);

impl Entry {
    /// # Errors
    ///
    /// What is wrong with the line, as far as no server would have taken it for a request.
    pub fn new(draft: Draft<'_>) -> Result<Self, Flaw> {
        let header =
            |value: Option<&[u8]>| value.and_then(|value| HeaderValue::from_bytes(value).ok());
        let start = if draft.is_start {
            draft.at
        } else {
            draft.at.saturating_sub(draft.duration)
        };
        if !(0..YEAR_2255).contains(&start) {
            return Err("the time is not between 1970 and 2255".into());
        }
        Ok(Self {
            start: if draft.is_precise {
                start
            } else {
                start.div_euclid(SECOND) * SECOND
            },
            is_precise: draft.is_precise,
            address: address(draft.address),
            method: Method::from_bytes(draft.method)
                .map_err(|_| Flaw::of_request("the method is none", draft.status))?,
            // The server that has logged it may have accepted it: `hyper` refuses it.
            uri: Uri::try_from(draft.target).map_err(|_| Flaw {
                reason: "the target of the request is no URI",
                is_rejected: true,
            })?,
            host: header(draft.host),
            status: StatusCode::from_bytes(draft.status).map_err(|_| "the status is none")?,
            agent: header(draft.agent),
            referer: header(draft.referer),
            route: draft.route.map(Into::into),
            fields: draft.fields.into(),
        })
    }

    /// The request as a layer sees it, without its route.
    pub fn request(&self) -> Request<()> {
        let mut request = Request::new(());
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        let headers = [
            (HOST, &self.host),
            (USER_AGENT, &self.agent),
            (REFERER, &self.referer),
        ];
        for (name, value) in headers {
            if let Some(value) = value {
                request.headers_mut().insert(name, value.clone());
            }
        }
        let extensions = request.extensions_mut();
        if !self.fields.is_empty() {
            extensions.insert(Fields(Arc::clone(&self.fields)));
        }
        if let Some(address) = self.address {
            extensions.insert(PeerAddr(address));
        }
        request
    }

    /// The value of a header that logs have.
    pub fn header(&self, name: &HeaderName) -> Option<&HeaderValue> {
        match *name {
            HOST => self.host.as_ref(),
            USER_AGENT => self.agent.as_ref(),
            REFERER => self.referer.as_ref(),
            _ => None,
        }
    }
}

/// An address, with or without a port.
fn address(text: &str) -> Option<IpAddr> {
    text.parse()
        .ok()
        .or_else(|| text.parse::<SocketAddr>().ok().map(|socket| socket.ip()))
}
