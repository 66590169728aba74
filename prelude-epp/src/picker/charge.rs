//! A request that counts at its endpoint for as long as this exists.

use std::{net::SocketAddr, sync::Arc};

use prelude_core::{RequestId, Timestamp};
use prelude_router::Finish;

use super::Picker;

/// A request under way. Dropping it notes that the request has ended.
#[derive(Debug)]
pub struct Charge {
    picker: Arc<Picker>,
    /// The request; `None` once its end was noted.
    id: Option<RequestId>,
    began: Timestamp,
    /// The known facts about its end.
    finish: Finish,
}

impl Charge {
    /// Takes over a request that was picked for.
    #[must_use]
    pub fn new(picker: &Arc<Picker>, id: RequestId) -> Self {
        Self {
            picker: Arc::clone(picker),
            id: Some(id),
            began: picker.now(),
            finish: Finish::default(),
        }
    }

    /// Charges the endpoint that served the request.
    pub fn served(&self, address: SocketAddr) {
        if let Some(id) = self.id {
            self.picker.served(id, address);
        }
    }

    /// Notes that the answer has begun, with what its headers say.
    pub fn answered(&mut self, finish: Finish) {
        let took = self.picker.now().saturating_since(self.began);
        self.finish = Finish {
            first_token: Some(took),
            ..finish
        };
    }

    /// Lets go of a request whose end will not be seen. An answer of at most one token has ended.
    pub fn end_unseen(mut self, max_output_tokens: Option<u32>) {
        if max_output_tokens.is_some_and(|most| most <= 1) {
            return;
        }
        if let Some(id) = self.id.take() {
            self.picker.finish_unseen(id, max_output_tokens);
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.picker.finish(id, self.finish);
        }
    }
}
