//! The waiting requests of a policy by their places, for policies that follow costs.

use std::collections::BTreeMap;

use prelude_core::RequestId;

/// The orders that a policy keeps its waiting requests in.
pub(super) trait Orders<P> {
    /// Adds a request at its place.
    fn insert(&mut self, request: RequestId, place: &P);

    /// Removes a request from the place where it was added.
    fn remove(&mut self, request: RequestId, place: &P);
}

/// The place of each waiting request, and the orders that follow from them: a request is in the
/// orders exactly as long as it has a place.
#[derive(Debug)]
pub(super) struct Places<P, O> {
    of: BTreeMap<RequestId, P>,
    orders: O,
}

impl<P, O: Default> Default for Places<P, O> {
    fn default() -> Self {
        Self {
            of: BTreeMap::new(),
            orders: O::default(),
        }
    }
}

impl<P, O: Orders<P>> Places<P, O> {
    /// Takes a request out. Returns its place, if it had one.
    pub(super) fn take(&mut self, request: RequestId) -> Option<P> {
        let place = self.of.remove(&request)?;
        self.orders.remove(request, &place);
        Some(place)
    }

    /// Puts a request at a place. It has none: it came, or was [taken out](Self::take).
    pub(super) fn put(&mut self, request: RequestId, place: P) {
        self.orders.insert(request, &place);
        let before = self.of.insert(request, place);
        debug_assert!(before.is_none(), "{request:?} has a place");
    }

    pub(super) fn get(&self, request: RequestId) -> Option<&P> {
        self.of.get(&request)
    }

    pub(super) const fn orders(&self) -> &O {
        &self.orders
    }

    pub(super) const fn orders_mut(&mut self) -> &mut O {
        &mut self.orders
    }
}

impl<P, O> std::ops::Index<RequestId> for Places<P, O> {
    type Output = P;

    fn index(&self, request: RequestId) -> &P {
        &self.of[&request]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    impl Orders<u8> for BTreeSet<(u8, RequestId)> {
        fn insert(&mut self, request: RequestId, &place: &u8) {
            assert!(Self::insert(self, (place, request)));
        }

        fn remove(&mut self, request: RequestId, &place: &u8) {
            assert!(Self::remove(self, &(place, request)));
        }
    }

    proptest! {
        /// Requests come, move and go; the order has those that have places, and no others.
        #[test]
        fn orders_follow_places(moves in prop::collection::vec((0u64..6, any::<Option<u8>>()), 0..60)) {
            let mut places: Places<u8, BTreeSet<_>> = Places::default();
            let mut twin = BTreeMap::new();
            for (request, place) in moves {
                let request = RequestId(request);
                prop_assert_eq!(places.take(request), twin.remove(&request));
                if let Some(place) = place {
                    places.put(request, place);
                    twin.insert(request, place);
                }
                let expected: BTreeSet<_> = twin.iter().map(|(&id, &place)| (place, id)).collect();
                prop_assert_eq!(places.orders(), &expected);
                prop_assert_eq!(places.get(request), twin.get(&request));
            }
        }
    }
}
