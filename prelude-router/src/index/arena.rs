//! Values by number, and lists that run through them.

use std::ops::{Index, IndexMut};

/// The number that stands for no value.
pub(crate) const NONE: u32 = u32::MAX;

/// Values that keep their numbers until they are taken out.
#[derive(Debug)]
pub(crate) struct Arena<T> {
    values: Vec<T>,
    free: Vec<u32>,
}

impl<T: Default> Arena<T> {
    pub(crate) fn new() -> Self {
        Self {
            values: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(crate) fn put(&mut self, value: T) -> u32 {
        if let Some(at) = self.free.pop() {
            self[at] = value;
            return at;
        }
        let at = u32::try_from(self.values.len()).expect("the index bounds its nodes");
        self.values.push(value);
        at
    }

    pub(crate) fn take(&mut self, at: u32) -> T {
        self.free.push(at);
        std::mem::take(&mut self[at])
    }

    /// Returns the number of elements.
    pub(crate) fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }
}

impl<T> Index<u32> for Arena<T> {
    type Output = T;

    #[inline]
    fn index(&self, at: u32) -> &T {
        &self.values[at as usize]
    }
}

impl<T> IndexMut<u32> for Arena<T> {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut T {
        &mut self.values[at as usize]
    }
}

/// The neighbours of a value in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Links {
    pub(crate) newer: u32,
    pub(crate) older: u32,
}

impl Default for Links {
    fn default() -> Self {
        Self {
            newer: NONE,
            older: NONE,
        }
    }
}

/// A value that can be in one list.
pub(crate) trait Linked {
    fn links(&mut self) -> &mut Links;
}

/// A list of values of one arena, by how lately they were used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct List {
    pub(crate) newest: u32,
    pub(crate) oldest: u32,
}

impl List {
    pub(crate) const EMPTY: Self = Self {
        newest: NONE,
        oldest: NONE,
    };

    /// Puts `at`, which is in no list, behind `older`; with [`NONE`], at the old end.
    pub(crate) fn insert_newer_than<T: Default + Linked>(
        &mut self,
        arena: &mut Arena<T>,
        at: u32,
        older: u32,
    ) {
        let newer = if older == NONE {
            std::mem::replace(&mut self.oldest, at)
        } else {
            std::mem::replace(&mut arena[older].links().newer, at)
        };
        if newer == NONE {
            self.newest = at;
        } else {
            arena[newer].links().older = at;
        }
        *arena[at].links() = Links { newer, older };
    }

    /// Puts `at`, which is in no list, at the new end.
    pub(crate) fn push_newest<T: Default + Linked>(&mut self, arena: &mut Arena<T>, at: u32) {
        self.insert_newer_than(arena, at, self.newest);
    }

    /// Takes `at` out.
    pub(crate) fn unlink<T: Default + Linked>(&mut self, arena: &mut Arena<T>, at: u32) {
        let Links { newer, older } = std::mem::take(arena[at].links());
        if newer == NONE {
            self.newest = older;
        } else {
            arena[newer].links().older = older;
        }
        if older == NONE {
            self.oldest = newer;
        } else {
            arena[older].links().newer = newer;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Item(Links);

    impl Linked for Item {
        fn links(&mut self) -> &mut Links {
            &mut self.0
        }
    }

    fn order(arena: &Arena<Item>, list: List) -> Vec<u32> {
        let next = |&at: &u32| Some(arena[at].0.older).filter(|&at| at != NONE);
        std::iter::successors(Some(list.newest).filter(|&at| at != NONE), next).collect()
    }

    #[test]
    fn lists_keep_their_order() {
        let mut arena = Arena::new();
        let mut list = List::EMPTY;
        for _ in 0..4 {
            let at = arena.put(Item::default());
            list.push_newest(&mut arena, at);
        }
        assert_eq!(order(&arena, list), [3, 2, 1, 0]);
        list.unlink(&mut arena, 0);
        list.unlink(&mut arena, 2);
        assert_eq!((order(&arena, list), list.oldest), (vec![3, 1], 1));
        list.insert_newer_than(&mut arena, 2, 1);
        list.insert_newer_than(&mut arena, 0, NONE);
        assert_eq!((order(&arena, list), list.oldest), (vec![3, 2, 1, 0], 0));
        for at in 0..4 {
            list.unlink(&mut arena, at);
        }
        assert_eq!(list, List::EMPTY);
    }
}
