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
    let infos = fields(status).filter(|field| field.number == INFOS);
    let delay = infos
        .filter(|any| field(any.bytes, 1).is_some_and(|name| is_retry_info(name.bytes)))
        .find_map(|any| field(field(any.bytes, 2)?.bytes, 1))?;
    let whole = |number| field(delay.bytes, number).map_or(0, |field| field.value);
    // A negative number is one with its highest bit set.
    let seconds = i64::try_from(whole(1)).ok()?;
    let nanos = u32::try_from(whole(2)).ok()?;
    let whole_seconds = Duration::from_secs(seconds.unsigned_abs());
    Some(whole_seconds.saturating_add(Duration::from_nanos(nanos.into())))
}

fn is_retry_info(name: &[u8]) -> bool {
    name.rsplit(|byte| *byte == b'/').next() == Some(b"google.rpc.RetryInfo")
}

fn field(message: &[u8], number: u64) -> Option<ProtobufField<'_>> {
    fields(message).find(|field| field.number == number)
}

/// One field of a protobuf message: a number, or bytes. Other kinds are passed over.
struct ProtobufField<'a> {
    number: u64,
    value: u64,
    bytes: &'a [u8],
}

/// The fields of a message, until the first that cannot be read.
fn fields(mut message: &[u8]) -> impl Iterator<Item = ProtobufField<'_>> {
    std::iter::from_fn(move || {
        let tag = varint(&mut message)?;
        let mut value = 0;
        let length = match tag & 7 {
            0 => {
                value = varint(&mut message)?;
                0
            }
            1 => 8,
            2 => varint(&mut message)?,
            5 => 4,
            _ => return None,
        };
        let bytes = message.split_off(..usize::try_from(length).ok()?)?;
        Some(ProtobufField {
            number: tag >> 3,
            value,
            bytes,
        })
    })
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = message.split_off_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if *byte < 0x80 {
            return Some(value);
        }
    }
    None
}
