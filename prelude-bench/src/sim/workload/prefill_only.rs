//! `PrefillOnly`'s workloads, of one output token each.

use super::{Arrival, Builder, Order, draw::poisson};
use crate::sim::{Prompt, Run};
use prelude_core::Timestamp;

/// Users of the post recommendation, and how many posts each is judged for.
pub(super) const POST_USERS: u32 = 20;
pub(super) const POSTS: u32 = 50;
/// Tokens of a post.
const POST: u32 = 150;
/// Users of the credit verification, with one request each.
pub(super) const CREDIT_USERS: u32 = 60;

/// Returns post recommendation: each user's profile with each of 50 posts. [`Order::Grouped`] is
/// the paper's: a user's requests come at once, in a burst; the others mix users, one request at a
/// time. `rate` is of requests in either case.
pub(super) fn posts(users: u32, order: Order, rate: f64, build: &mut Builder) -> Vec<Arrival> {
    let groups: Vec<Vec<Arrival>> = (0..users).map(|user| user_posts(user, build)).collect();
    if order != Order::Grouped {
        let mut arrivals = order.line_up(groups, &mut build.random);
        poisson(&mut arrivals, rate, &mut build.random);
        return arrivals;
    }
    let mut bursts: Vec<Arrival> = groups.iter().map(|posts| posts[0].clone()).collect();
    poisson(&mut bursts, rate / f64::from(POSTS), &mut build.random);
    let mut arrivals: Vec<Arrival> = groups.into_iter().flatten().collect();
    for arrival in &mut arrivals {
        arrival.at = bursts[arrival.user as usize].at;
    }
    arrivals
}

fn user_posts(user: u32, build: &mut Builder) -> Vec<Arrival> {
    // Normal(14000, 3000), clamped: the paper's profiles are of 11,000 to 17,000 tokens.
    let len = (14_000.0 + 3000.0 * build.random.normal()).clamp(11_000.0, 17_000.0);
    let profile = run(build.stream(), len as u32);
    let (key, root) = (build.key(), build.root());
    let mut post = |_| Arrival {
        at: Timestamp::ZERO,
        prompt: Prompt::new([profile, run(build.stream(), POST)]),
        output_tokens: 1,
        key,
        user,
        root,
    };
    (0..POSTS).map(&mut post).collect()
}

/// Returns credit verification: a long history each, without shared prefixes.
pub(super) fn credit(users: u32, rate: f64, build: &mut Builder) -> Vec<Arrival> {
    let mut request = |user| Arrival {
        at: Timestamp::ZERO,
        prompt: Prompt::new([run(
            build.stream(),
            40_000 + build.random.below(20_001) as u32,
        )]),
        output_tokens: 1,
        key: build.key(),
        user,
        root: build.root(),
    };
    let mut arrivals: Vec<Arrival> = (0..users).map(&mut request).collect();
    poisson(&mut arrivals, rate, &mut build.random);
    arrivals
}

const fn run(stream: u64, len: u32) -> Run {
    Run {
        stream,
        start: 0,
        len,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn posts_share_their_user_s_profile() {
        let arrivals = posts(POST_USERS, Order::Grouped, 10.0, &mut Builder::new(1));
        assert_eq!(arrivals.len(), 1000);
        for posts in arrivals.chunks(POSTS as usize) {
            let profile = posts[0].prompt.len() - POST;
            assert!((11_000..=17_000).contains(&profile));
            let one_burst = |a: &Arrival| a.user == posts[0].user && a.at == posts[0].at;
            assert!(posts.iter().all(one_burst));
            let shares = |a: &Arrival| a.prompt.shared_with(&posts[0].prompt) == profile;
            assert!(posts[1..].iter().all(shares));
        }
        // 14 million tokens in all, as the paper says.
        let tokens: u32 = arrivals.iter().map(|a| a.prompt.len()).sum();
        assert!((13_000_000..15_500_000).contains(&tokens), "{tokens}");
    }

    #[test]
    fn interleaved_posts_mix_users_at_the_same_rate() {
        let arrivals = posts(POST_USERS, Order::Shuffled, 10.0, &mut Builder::new(1));
        let changes = arrivals.windows(2).filter(|w| w[0].user != w[1].user);
        assert!(changes.count() > 900);
        let last = arrivals[999].at.as_nanos() as f64 / 1e9;
        assert!((last - 100.0).abs() < 10.0, "{last}");
    }

    #[test]
    fn credit_histories_are_long_and_shared_by_nobody() {
        let arrivals = credit(CREDIT_USERS, 1.0, &mut Builder::new(1));
        assert_eq!(arrivals.len(), 60);
        let long = |a: &Arrival| (40_000..=60_000).contains(&a.prompt.len());
        assert!(arrivals.iter().all(long));
        let shared = arrivals[0].prompt.shared_with(&arrivals[1].prompt);
        assert_eq!(shared, 0);
    }
}
