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
    let infos = ProtobufFields(status).filter(|field| field.number == INFOS);
    let delay = infos
        .filter(|any| field(any.bytes, 1).is_some_and(|name| is_retry_info(name.bytes)))
        .find_map(|any| field(field(any.bytes, 2)?.bytes, 1))?;
    let whole = |number| field(delay.bytes, number).map_or(0, |field| field.value);
    // A negative number is one with its highest bit set.
    let seconds = i64::try_from(whole(1)).ok()?;
    let nanos = u32::try_from(whole(2)).ok()?;
    Some(
        Duration::from_secs(seconds.unsigned_abs())
            .saturating_add(Duration::from_nanos(nanos.into())),
    )
}

fn is_retry_info(name: &[u8]) -> bool {
    name.rsplit(|byte| *byte == b'/').next() == Some(b"google.rpc.RetryInfo")
}

fn field(message: &[u8], number: u64) -> Option<ProtobufField<'_>> {
    ProtobufFields(message).find(|field| field.number == number)
}

/// One field of a protobuf message: a number, or bytes. Other kinds are passed over.
struct ProtobufField<'a> {
    number: u64,
    value: u64,
    bytes: &'a [u8],
}

/// The fields of a message, until the first that cannot be read.
struct ProtobufFields<'a>(&'a [u8]);

impl<'a> Iterator for ProtobufFields<'a> {
    type Item = ProtobufField<'a>;

    fn next(&mut self) -> Option<ProtobufField<'a>> {
        let tag = self.varint()?;
        let (value, bytes) = match tag & 7 {
            0 => (self.varint()?, &[][..]),
            1 => (0, self.take(8)?),
            2 => {
                let length = self.varint()?;
                (0, self.take(usize::try_from(length).ok()?)?)
            }
            5 => (0, self.take(4)?),
            _ => return None,
        };
        Some(ProtobufField {
            number: tag >> 3,
            value,
            bytes,
        })
    }
}

impl<'a> ProtobufFields<'a> {
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
