//! Refusals of gRPC servers, whose HTTP status is 200. Only those without a message have their
//! status in the headers.

use std::time::Duration;

use base64::Engine as _;
use http::HeaderMap;

use crate::grpc::{BASE64, DETAILS, PUSHBACK, STATUS};

const RESOURCE_EXHAUSTED: &[u8] = b"8";
const UNAVAILABLE: &[u8] = b"14";

pub(super) fn is_refusal(headers: &HeaderMap) -> bool {
    headers
        .get(&STATUS)
        .is_some_and(|status| matches!(status.as_bytes(), RESOURCE_EXHAUSTED | UNAVAILABLE))
}

/// The longer of the pushback and the delay of a `google.rpc.RetryInfo`.
pub(super) fn wait(headers: &HeaderMap) -> Option<Duration> {
    let number = |value: &http::HeaderValue| value.to_str().ok()?.trim().parse().ok();
    let pushback = headers
        .get(&PUSHBACK)
        .and_then(number)
        .map(Duration::from_millis);
    let details = headers
        .get(&DETAILS)
        .and_then(|value| BASE64.decode(value.as_bytes()).ok());
    pushback.max(details.and_then(|status| retry_delay(&status)))
}

/// The delay of the first `RetryInfo` among a status' details.
fn retry_delay(status: &[u8]) -> Option<Duration> {
    const INFOS: u64 = 3;
    let infos = Fields(status)
        .filter(|field| field.number == INFOS)
        .filter_map(|any| {
            let mut fields = Fields(any.bytes);
            let name = fields.clone().find(|field| field.number == 1)?;
            let is_retry_info =
                name.bytes.rsplit(|byte| *byte == b'/').next() == Some(b"google.rpc.RetryInfo");
            if is_retry_info {
                fields.find(|field| field.number == 2)
            } else {
                None
            }
        });
    let delay = infos
        .filter_map(|info| Fields(info.bytes).find(|field| field.number == 1))
        .next()?;
    let whole = |number| {
        Fields(delay.bytes)
            .find(|field| field.number == number)
            .map_or(0, |field| field.value)
    };
    // A negative number is one with its highest bit set.
    let (seconds, nanos) = (i64::try_from(whole(1)).ok()?, u32::try_from(whole(2)).ok()?);
    Some(
        Duration::from_secs(seconds.unsigned_abs())
            .saturating_add(Duration::from_nanos(nanos.into())),
    )
}

/// One field of a protobuf message: a number, or bytes. Other kinds are passed over.
struct Field<'a> {
    number: u64,
    value: u64,
    bytes: &'a [u8],
}

/// The fields of a message, until the first that cannot be read.
#[derive(Clone)]
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    fn next(&mut self) -> Option<Field<'a>> {
        let tag = self.varint()?;
        let (number, kind) = (tag >> 3, tag & 7);
        let (value, bytes) = match kind {
            0 => (self.varint()?, &[][..]),
            1 => (0, self.take(8)?),
            2 => {
                let length = self.varint()?;
                (0, self.take(usize::try_from(length).ok()?)?)
            }
            5 => (0, self.take(4)?),
            _ => return None,
        };
        Some(Field {
            number,
            value,
            bytes,
        })
    }
}

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.take(1)?.first()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
}
