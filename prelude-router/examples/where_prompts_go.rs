//! Two endpoints and a few prompts, and where each goes:
//! `cargo run -p prelude-router --example where_prompts_go`.
#![expect(clippy::print_stdout, reason = "an example that prints")]

use std::{collections::BTreeMap, time::Duration};

use prelude_core::{RequestId, ServiceTime, Timestamp};
use prelude_router::{
    EndpointSpec, Finish, Prefix, Prompt, Root, RouteRequest, Router, RouterConfig,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut router = Router::new(RouterConfig::default())?;
    for _ in 0..2 {
        let spec = EndpointSpec {
            kv_capacity_tokens: 100_000,
            service: ServiceTime::default(),
            pool: None,
        };
        let id = router.join(Timestamp::ZERO, spec)?;
        println!("endpoint {id} has joined");
    }

    // A document of 2,000 tokens for each letter, and the number of a question.
    let prompts = [('a', 1), ('a', 2), ('b', 1), ('a', 3), ('b', 2), ('c', 1)];
    let mut homes = BTreeMap::new();
    let root = Root::new("qwen3", None, "r1", None);
    for (n, (document, question)) in (0..).zip(prompts) {
        let now = Timestamp::ZERO.saturating_add(Duration::from_secs(n));
        let mut tokens: Vec<u32> = (0..2000).map(|at| at * 128 + document as u32).collect();
        tokens.push(question);
        let prefix = Prefix::new(root, Prompt::Tokens(&tokens), 64);
        let request = RouteRequest {
            id: RequestId(n),
            prefix: &prefix,
            max_output_tokens: Some(1),
            user: None,
            sheddable: false,
            subset: None,
            deadline: None,
        };
        let pick = router.route(now, &request)?;
        println!(
            "{n} s: question {question} about document {document} goes to endpoint {}: {:?}, {} of {} \
             tokens cached",
            pick.endpoint, pick.reason, pick.cached_tokens, pick.prompt_tokens
        );
        // An endpoint that has a document keeps it.
        assert_eq!(
            pick.endpoint,
            *homes.entry(document).or_insert(pick.endpoint)
        );
        router.finished(now, request.id, Finish::default());
    }
    Ok(())
}
