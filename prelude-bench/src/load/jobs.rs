//! The requests of a load.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

/// A request: where it goes, and its body.
#[derive(Clone, Debug)]
pub struct Job {
    /// The path, for example `/classify`.
    pub path: &'static str,
    /// The body, JSON.
    pub body: Bytes,
}

/// Requests in an order, handed out once each and, when they run out, again from the first.
#[derive(Debug)]
pub struct Jobs {
    jobs: Vec<Job>,
    next: AtomicUsize,
    /// The number of jobs to hand out.
    limit: usize,
    /// The offset of the number in each body; empty if bodies are not numbered.
    marks: Vec<usize>,
    /// The number of consecutive bodies with the same number.
    alike: usize,
}

/// The placeholder for the number in a body: eight digits.
pub const NUMBER: &str = "00000000";

impl Jobs {
    /// # Panics
    /// If there are none.
    #[must_use]
    pub fn new(jobs: Vec<Job>) -> Self {
        assert!(!jobs.is_empty(), "there is something to send");
        Self {
            jobs,
            next: AtomicUsize::new(0),
            limit: usize::MAX,
            marks: Vec::new(),
            alike: 1,
        }
    }

    /// Jobs that are handed out once each: the load ends when they run out.
    ///
    /// # Panics
    /// If there are none.
    #[must_use]
    pub fn once(jobs: Vec<Job>) -> Self {
        Self {
            limit: jobs.len(),
            ..Self::new(jobs)
        }
    }

    /// Jobs whose bodies say [`NUMBER`] somewhere, where each gets a number as it is handed out:
    /// `alike` in a row the same one, and no other connection, however many are handed out.
    ///
    /// # Panics
    /// If there are none, or a body has no place for its number, or none are to be alike.
    #[must_use]
    pub fn numbered(jobs: Vec<Job>, alike: usize) -> Self {
        assert!(alike > 0, "each has a number");
        let mark = |job: &Job| {
            let mut windows = job.body.windows(NUMBER.len());
            let at = windows.position(|bytes| bytes == NUMBER.as_bytes());
            at.expect("a numbered body says where its number goes")
        };
        let marks = jobs.iter().map(mark).collect();
        Self {
            marks,
            alike,
            ..Self::new(jobs)
        }
    }

    pub(super) fn take(&self) -> Option<Job> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if number >= self.limit {
            return None;
        }
        let at = number % self.jobs.len();
        let mut job = self.jobs[at].clone();
        if let Some(&mark) = self.marks.get(at) {
            let mut body = job.body.to_vec();
            let digits = format!("{:08}", number / self.alike % 100_000_000);
            body[mark..mark + NUMBER.len()].copy_from_slice(digits.as_bytes());
            job.body = body.into();
        }
        Some(job)
    }

    /// Returns the number of bodies handed out, with repetitions.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.next.load(Ordering::Relaxed).min(self.limit)
    }

    /// Hands out up to `count` at once.
    #[must_use]
    pub fn hand_out(&self, count: usize) -> Vec<Job> {
        std::iter::from_fn(|| self.take()).take(count).collect()
    }

    /// Returns the first `count`, without handing them out.
    #[must_use]
    pub fn first(&self, count: usize) -> Vec<Job> {
        self.jobs.iter().take(count).cloned().collect()
    }

    /// Returns the number of different bodies.
    #[must_use]
    pub fn distinct(&self) -> usize {
        match self.marks.is_empty() {
            true => self.jobs.len(),
            false => usize::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_handed_out_once_and_then_again() {
        let job = |path| Job {
            path,
            body: Bytes::new(),
        };
        let jobs = Jobs::new(vec![job("/a"), job("/b")]);
        let paths: Vec<_> = (0..3).map(|_| jobs.take().unwrap().path).collect();
        assert_eq!(paths, ["/a", "/b", "/a"]);
        assert_eq!((jobs.taken(), jobs.distinct()), (3, 2));
        let paths: Vec<_> = jobs.hand_out(2).iter().map(|job| job.path).collect();
        assert_eq!((paths, jobs.taken()), (vec!["/b", "/a"], 5));
        let jobs = Jobs::once(vec![job("/a")]);
        let paths: Vec<_> = (0..3).map(|_| jobs.take().map(|job| job.path)).collect();
        assert_eq!((paths, jobs.taken()), (vec![Some("/a"), None, None], 1));
    }

    #[test]
    fn numbered_jobs_are_as_alike_as_they_are_told() {
        let job = |text: &str| Job {
            path: "/a",
            body: Bytes::from(text.to_owned()),
        };
        let take = |alike| {
            let jobs = Jobs::numbered(vec![job("a 00000000."), job("00000000 0")], alike);
            (0..4)
                .map(|_| jobs.take().unwrap().body)
                .collect::<Vec<_>>()
        };
        let expected = ["a 00000000.", "00000001 0", "a 00000002.", "00000003 0"];
        assert_eq!(take(1), expected);
        let expected = ["a 00000000.", "00000000 0", "a 00000001.", "00000001 0"];
        assert_eq!(take(2), expected);
    }
}
