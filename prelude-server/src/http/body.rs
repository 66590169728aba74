//! Reading a request's body within limits of size, time and memory.

use std::io::Read as _;

use bytes::{Bytes, BytesMut};
use flate2::bufread::MultiGzDecoder;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::time::{Instant, timeout_at};

use crate::{
    admission::{Growth, Reservation},
    app::App,
    config::{Limits, ms},
    error::ApiError,
};

/// Reads the whole body, and reserves room for it as it arrives.
///
/// # Errors
/// 413, 408, 429, or 400 if the body's framing is wrong.
pub(super) async fn read(
    body: &mut Incoming,
    limits: &Limits,
    reservation: &Reservation,
) -> Result<Bytes, ApiError> {
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    let start = Instant::now();
    let mut whole = BytesMut::new();
    loop {
        let frame = timeout_at(deadline(start, whole.len(), limits), body.frame())
            .await
            .map_err(|_| ApiError::request_timeout("the request's body did not arrive in time"))?;
        let data = match frame {
            None => return Ok(whole.freeze()),
            Some(Err(_)) => {
                let message = "the request's body ended early or is framed wrongly";
                return Err(ApiError::new(400, "malformed_http", message).closing());
            }
            // Trailers have no meaning here.
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
        };
        if (whole.len() + data.len()) as u64 > limits.body_bytes {
            return Err(ApiError::body_too_large(limits.body_bytes));
        }
        reservation.grow(Growth::Body(data.len() as u64))?;
        // Most bodies are one piece, which is not copied.
        if whole.is_empty() && body.is_end_stream() {
            return Ok(data);
        }
        whole.extend_from_slice(&data);
    }
}

/// Unpacks a body that is gzip'd, and reserves room for it as it grows. Ends at the byte that
/// crosses the limit.
///
/// # Errors
/// 413, 429, or 400 if it is no gzip.
pub(super) async fn unpack(
    app: &App,
    packed: &[u8],
    reservation: &Reservation,
) -> Result<Bytes, ApiError> {
    let max = app.config.limits.body_bytes;
    // JSON comes to about five times its packed bytes.
    let expected = packed.len().saturating_mul(5);
    app.encoder
        .run(expected, || gunzip(packed, max, reservation))
        .await?
}

fn gunzip(packed: &[u8], max: u64, reservation: &Reservation) -> Result<Bytes, ApiError> {
    let mut reader = MultiGzDecoder::new(packed);
    let mut whole = Vec::new();
    let mut piece = [0; 16 << 10];
    loop {
        let read = match reader.read(&mut piece) {
            Ok(0) => return Ok(whole.into()),
            Ok(read) => read,
            Err(_) => return Err(ApiError::invalid_gzip()),
        };
        if (whole.len() + read) as u64 > max {
            return Err(ApiError::body_too_large(max));
        }
        reservation.grow(Growth::Body(read as u64))?;
        whole.extend_from_slice(&piece[..read]);
    }
}

/// Returns the time by which more than `received` bytes of a body must have arrived.
fn deadline(start: Instant, received: usize, limits: &Limits) -> Instant {
    let rate = limits.body_min_bytes_per_s.max(1);
    let by_rate =
        ms((received as u64).saturating_mul(1000) / rate).max(ms(limits.body_min_rate_after_ms));
    start + by_rate.min(ms(limits.body_read_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_body_has_a_deadline_that_moves_with_its_bytes() {
        let limits = Limits {
            body_read_ms: 60_000,
            body_min_bytes_per_s: 1000,
            body_min_rate_after_ms: 5_000,
            ..Limits::default()
        };
        let start = Instant::now();
        let check = |received, expected_ms| {
            assert_eq!(deadline(start, received, &limits), start + ms(expected_ms));
        };
        check(0, 5_000);
        check(4_000, 5_000);
        check(20_000, 20_000);
        check(usize::MAX, 60_000);
    }
}
