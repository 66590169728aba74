//! The memory of all models of a process, planned together before one of them is loaded.

use std::fmt::Write as _;

use crate::{
    assets::LoadError,
    executor::{HostMemory, available_bytes, mib},
};

/// Checks that models fit into the host's memory together. `plans` has the name and the plan of each,
/// and `limit_bytes` is what they may take; by default what the system says is available now.
///
/// # Errors
/// [`LoadError::Together`] with the sums of each model if they do not fit.
pub fn check_together(
    plans: &[(&str, HostMemory)],
    limit_bytes: Option<u64>,
) -> Result<(), LoadError> {
    let (limit, source) = match limit_bytes {
        Some(limit) => (limit, "that executor.memory_limit_bytes allows"),
        None => match available_bytes() {
            Some(available) => (available, "that this machine has available"),
            // The executors take what the system gives.
            None => return Ok(()),
        },
    };
    let total = plans.iter().map(|(_, plan)| plan.total_bytes());
    let total = total.fold(0, u64::saturating_add);
    if total <= limit {
        return Ok(());
    }
    let mut message = format!(
        "the models need {} MiB of memory together, more than the {} MiB {source}:",
        mib(total),
        limit >> 20,
    );
    for (name, plan) in plans {
        // Writing to a string cannot fail.
        let _ = write!(
            message,
            "\n  {name}: {} MiB (weights {}, KV blocks {}, activations {}, buffers {})",
            mib(plan.total_bytes()),
            mib(plan.weights_bytes),
            mib(plan.kv_bytes),
            mib(plan.arena_bytes),
            mib(plan.scratch_bytes),
        );
    }
    message.push_str(
        "\nserve fewer models, or lower kv_bytes in [models.NAME.kv] or max_step_tokens in \
         [models.NAME.executor]",
    );
    Err(LoadError::Together(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(weights_mib: u64, kv_mib: u64) -> HostMemory {
        HostMemory {
            weights_bytes: weights_mib << 20,
            kv_bytes: kv_mib << 20,
            arena_bytes: 0,
            scratch_bytes: 0,
        }
    }

    #[test]
    fn models_that_do_not_fit_are_refused_with_their_sums() {
        let plans = [("judge", plan(60, 40)), ("embed", plan(20, 0))];
        let check = |limit_mib: u64| check_together(&plans, Some(limit_mib << 20));
        assert!(check(120).is_ok());
        let text = check(119).unwrap_err().to_string();
        for part in [
            "need 120 MiB of memory together, more than the 119 MiB that executor.memory_limit",
            "judge: 100 MiB (weights 60, KV blocks 40,",
            "embed: 20 MiB (weights 20, KV blocks 0,",
            "[models.NAME.kv]",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
    }

    #[test]
    fn sums_do_not_overflow_and_the_machine_is_asked_without_a_limit() {
        let huge = [
            ("a", plan(1 << 40, u64::MAX >> 21)),
            ("b", plan(1 << 40, 1)),
        ];
        assert!(check_together(&huge, Some(1 << 60)).is_err());
        assert!(check_together(&[("small", plan(1, 0))], None).is_ok());
        if available_bytes().is_some() {
            let text = check_together(&huge, None).unwrap_err().to_string();
            assert!(text.contains("this machine has available"), "{text}");
        }
    }
}
