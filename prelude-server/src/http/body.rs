//! Reading a request's body within limits of size, time and memory.

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::time::{Instant, timeout_at};

use crate::{
    admission::Reservation,
    config::{Limits, ms},
    error::ApiError,
};

/// Reads the whole body, and reserves room for it as it arrives.
///
/// # Errors
/// 413, 408, 429, or 400 if the body's framing is wrong.
pub(super) async fn read(
    body: &mut Incoming,
    declared: Option<u64>,
    limits: &Limits,
    reservation: &Reservation,
) -> Result<Bytes, ApiError> {
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    let start = Instant::now();
    let mut pieces = Pieces::new(declared);
    loop {
        let frame = timeout_at(deadline(start, pieces.len(), limits), body.frame())
            .await
            .map_err(|_| ApiError::request_timeout("the request's body did not arrive in time"))?;
        let data = match frame {
            None => return Ok(pieces.finish()),
            Some(Err(_)) => {
                let message = "the request's body ended early or is framed wrongly";
                return Err(ApiError::new(400, "malformed_http", message).closing());
            }
            // Trailers have no meaning here.
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
        };
        let len = pieces.len() + data.len() as u64;
        if len > limits.body_bytes {
            return Err(ApiError::body_too_large(limits.body_bytes));
        }
        reservation.grow_body(data.len() as u64)?;
        pieces.push(data);
    }
}

/// Returns the time by which a body must go on of which `received` bytes have arrived.
fn deadline(start: Instant, received: u64, limits: &Limits) -> Instant {
    let rate = limits.body_min_bytes_per_s.max(1);
    let by_rate = ms(received.saturating_mul(1000) / rate).max(ms(limits.body_min_rate_after_ms));
    start + by_rate.min(ms(limits.body_read_ms))
}

/// The bytes of a body; a body of one piece is not copied.
struct Pieces {
    first: Bytes,
    rest: Vec<u8>,
    declared: usize,
}

impl Pieces {
    fn new(declared: Option<u64>) -> Self {
        Self {
            first: Bytes::new(),
            rest: Vec::new(),
            // The declared length has been checked against the limit.
            declared: declared.map_or(0, |d| usize::try_from(d).unwrap_or(0)),
        }
    }

    fn len(&self) -> u64 {
        (self.first.len() + self.rest.len()) as u64
    }

    fn push(&mut self, data: Bytes) {
        if self.first.is_empty() && self.rest.is_empty() {
            self.first = data;
            return;
        }
        if self.rest.is_empty() {
            let arrived = self.first.len() + data.len();
            // The declared length, unless that is far more than has arrived and may never come.
            self.rest
                .reserve(arrived.max(self.declared.min(8 * arrived)));
            self.rest.extend_from_slice(&self.first);
            self.first = Bytes::new();
        }
        self.rest.extend_from_slice(&data);
    }

    fn finish(self) -> Bytes {
        if self.rest.is_empty() {
            self.first
        } else {
            self.rest.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_joined() {
        let join = |parts: &[&'static str]| {
            let mut pieces = Pieces::new(None);
            for piece in parts {
                pieces.push(Bytes::from_static(piece.as_bytes()));
            }
            pieces.finish()
        };
        assert_eq!(join(&[]), "");
        assert_eq!(join(&["ab"]), "ab");
        assert_eq!(join(&["ab", "", "c", "d"]), "abcd");
    }

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
        check(u64::MAX, 60_000);
    }
}
