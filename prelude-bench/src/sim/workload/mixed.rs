//! Preble's mixed workload: tools and videos at once, in bursts like Azure's.
//!
//! 200 tools with 3,600 requests come with the gaps of Azure's chat trace, and 150 videos with
//! 900 requests with those of its code trace (Preble, §4.2). A caller who has the traces gives
//! their gaps; otherwise gaps are log-normal with the moments of the published files: 0.181 ±
//! 0.198 s for chat and 0.390 ± 5.12 s for code, which are those of whole files. (The paper speaks
//! of 63 and 118 ms; the files do not.)

use std::time::Duration;

use super::{
    Arrival, Builder, Moments, Order,
    draw::{LogNormal, seconds},
    shared_prefix::{Prefixes, Shape},
};
use prelude_core::Timestamp;

const TOOLS: u32 = 200;
const TOOL_REQUESTS: u32 = 3600;
const VIDEOS: u32 = 150;
const VIDEO_REQUESTS: u32 = 900;
/// Gaps between requests of the files, in seconds.
const CHAT_GAP_S: Moments = Moments::new(0.181, 0.198);
const CODE_GAP_S: Moments = Moments::new(0.390, 5.12);

/// Gaps between requests of recorded traffic, taken in order, and again from the first if there
/// are too few.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gaps {
    /// Gaps between tool requests; reconstructed if empty.
    pub chat: Vec<Duration>,
    /// Gaps between video requests; reconstructed if empty.
    pub code: Vec<Duration>,
}

/// Returns the requests of both kinds, sorted by time. All counts are for two engines; more engines
/// get more of everything, at shorter gaps.
pub(super) fn arrivals(scale: f64, order: Order, gaps: &Gaps, build: &mut Builder) -> Vec<Arrival> {
    let scaled = |count: u32| ((f64::from(count) * scale).round() as u32).max(1);
    let mut part = |shape, prefixes, requests, gaps: &[Duration], moments| {
        let prefixes = Prefixes::new(shape, scaled(prefixes), build);
        let groups = prefixes.groups(scaled(requests), build);
        let mut arrivals = order.line_up(groups, &mut build.random);
        let drawn = LogNormal::new(moments);
        let mut at = Timestamp::ZERO;
        for (i, arrival) in arrivals.iter_mut().enumerate() {
            let gap = match gaps.is_empty() {
                true => seconds(drawn.draw(&mut build.random)),
                false => gaps[i % gaps.len()],
            };
            at = at.saturating_add(gap.div_f64(scale));
            arrival.at = at;
        }
        arrivals
    };
    let mut all = part(
        Shape::TOOLBENCH,
        TOOLS,
        TOOL_REQUESTS,
        &gaps.chat,
        CHAT_GAP_S,
    );
    all.extend(part(
        Shape::VIDEO,
        VIDEOS,
        VIDEO_REQUESTS,
        &gaps.code,
        CODE_GAP_S,
    ));
    all.sort_by_key(|arrival| arrival.at);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(scale: f64, gaps: &Gaps) -> Vec<Arrival> {
        arrivals(scale, Order::Shuffled, gaps, &mut Builder::new(1))
    }

    #[test]
    fn both_kinds_come_at_once_and_do_not_collide() {
        let all = of(1.0, &Gaps::default());
        assert_eq!(all.len(), 4500);
        let first_video = all.iter().position(|a| a.key >= TOOLS).unwrap();
        assert!(first_video < 100, "{first_video}");
        // Tools have one root, and each video its own.
        let (tools, videos): (Vec<_>, Vec<_>) = all.iter().partition(|a| a.key < TOOLS);
        assert_eq!((tools.len(), videos.len()), (3600, 900));
        assert!(tools.iter().all(|a| a.root == tools[0].root));
        assert!(videos.iter().all(|a| a.root != tools[0].root));
        assert_eq!(videos[0].prompt.shared_with(&tools[0].prompt), 0);
        let last = tools[3599].at.as_nanos() as f64 / 1e9;
        assert!((last / (3600.0 * 0.181) - 1.0).abs() < 0.1, "{last}");
        assert_eq!(of(2.0, &Gaps::default()).len(), 9000);
    }

    #[test]
    fn recorded_gaps_come_in_order_and_again() {
        let ms = Duration::from_millis;
        let gaps = Gaps {
            chat: vec![ms(10), ms(30)],
            code: vec![ms(100)],
        };
        let all = of(1.0, &gaps);
        let times = |key: fn(&&Arrival) -> bool| {
            let times = all.iter().filter(key).map(|a| a.at.as_nanos() / 1_000_000);
            times.take(4).collect::<Vec<_>>()
        };
        assert_eq!(times(|a| a.key < TOOLS), [10, 40, 50, 80]);
        assert_eq!(times(|a| a.key >= TOOLS), [100, 200, 300, 400]);
    }
}
