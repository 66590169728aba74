//! The fit against service times that are known.

use proptest::prelude::*;

use super::*;

const TRUE: ServiceTime = ServiceTime {
    floor_ms: 20.0,
    per_cached_ms: 2e-3,
    base_ms: 5.0,
    per_token_ms: 0.1,
    per_pair_ms: 3e-6,
    decode_ms: 0.8,
};

/// The steps with which an engine is profiled, each off by a factor that `noise` draws.
fn grid(of: ServiceTime, mut noise: impl FnMut() -> f64) -> [Vec<Sample>; 2] {
    let mut prefill = Vec::new();
    for power in 0..14 {
        for cached in [0, 1024, 4096, 16_384] {
            for batch in [1, 8] {
                let sample = Sample {
                    batch,
                    computed: 1 << power,
                    cached,
                    ms: 0.0,
                };
                let ms = of.step_ms(&sample.prefill_work()) * noise();
                prefill.push(Sample { ms, ..sample });
            }
        }
    }
    let mut decode = Vec::new();
    for batch in [1, 16, 64, 256] {
        for cached in [64, 256] {
            let sample = Sample {
                batch,
                computed: 1,
                cached,
                ms: 0.0,
            };
            let ms = of.step_ms(&sample.decode_work()) * noise();
            decode.push(Sample { ms, ..sample });
        }
    }
    [prefill, decode]
}

fn exact(of: ServiceTime) -> Fitted {
    let [prefill, decode] = grid(of, || 1.0);
    Fitted::of(&prefill, &decode).expect("the grid tells everything apart")
}

fn assert_near(a: ServiceTime, b: ServiceTime, by: f64) {
    for ((name, a), (_, b)) in a.fields().into_iter().zip(b.fields()) {
        assert!((a - b).abs() <= by * b, "{name}: {a} is not {b}");
    }
}

#[test]
fn finds_what_made_its_samples() {
    let fitted = exact(TRUE);
    assert_near(fitted.service, TRUE, 1e-6);
    assert!(fitted.r2 > 0.999_999);
    assert!(fitted.correlation > 0.9, "{}", fitted.correlation);
    let [prefill, decode] = grid(TRUE, || 1.0);
    for (name, error) in Fitted::standard_errors(&prefill, &decode).fields() {
        assert!(error < 1e-6, "{name}: {error}");
    }
}

#[test]
fn a_device_that_is_never_bound_by_memory_has_no_floor_of_its_own() {
    let of = ServiceTime {
        floor_ms: 0.0,
        per_cached_ms: 0.0,
        ..TRUE
    };
    let fitted = exact(of).service;
    let shortest = of.prefill_ms(1, 1);
    assert!(fitted.floor_ms <= shortest + 1e-9, "{fitted:?}");
    for (computed, tokens) in [(1, 1), (100, 5000), (8000, 8000)] {
        let (is, said) = (
            of.prefill_ms(computed, tokens),
            fitted.prefill_ms(computed, tokens),
        );
        assert!((said / is - 1.0).abs() < 1e-6, "{said} is not {is}");
    }
}

#[test]
fn finds_the_floor_of_steps_that_only_read_much_of_the_cache() {
    // Memory's time is the longer for the shortest steps alone, and only where 16,384 tokens are
    // read for each: no number of computed tokens tells these from others.
    let of = ServiceTime {
        floor_ms: 0.67,
        per_cached_ms: 9.3e-5,
        base_ms: 0.56,
        per_token_ms: 0.87,
        per_pair_ms: 2.8e-5,
        decode_ms: 0.1,
    };
    assert_near(exact(of).service, of, 1e-6);
}

#[test]
fn samples_that_say_nothing_are_refused() {
    let sample = Sample {
        batch: 1,
        computed: 1000,
        cached: 0,
        ms: 3.0,
    };
    let of = |samples: &[Sample]| Fitted::of(samples, &[]);
    assert_eq!(of(&[sample; 9]), Err(FitError::Alike { samples: 9 }));
    assert_eq!(of(&[]), Err(FitError::Alike { samples: 0 }));
    let [mut prefill, _] = grid(TRUE, || 1.0);
    let falling = { prefill.iter() }.map(|s| Sample {
        ms: 1e3 / s.ms,
        ..*s
    });
    assert_eq!(of(&falling.collect::<Vec<_>>()), Err(FitError::Flat));
    prefill[3].ms = f64::NAN;
    assert_eq!(of(&prefill), Err(FitError::NoTime { at: 3 }));
    prefill[3] = Sample { batch: 0, ..sample };
    assert_eq!(of(&prefill), Err(FitError::NoTime { at: 3 }));
}

#[test]
fn noise_shows_in_the_errors_of_coefficients() {
    let mut at = 0.0_f64;
    let [prefill, decode] = grid(TRUE, || {
        at += 1.7;
        1.0 + 0.1 * at.sin()
    });
    let errors = Fitted::standard_errors(&prefill, &decode);
    let fitted = Fitted::of(&prefill, &decode).expect("the grid tells everything apart");
    let of = fitted.service.fields().into_iter().zip(errors.fields());
    for (((name, value), (_, error)), (_, is)) in of.zip(TRUE.fields()) {
        assert!(
            (value - is).abs() < 6.0 * error,
            "{name}: {value} ± {error}, not {is}"
        );
        assert!(error < 0.3 * is, "{name}: {value} ± {error}");
    }
}

proptest! {
    /// Coefficients of any size are found under noise of 5 %: each as far as it makes a difference
    /// to what is predicted, and none of them negative.
    #[test]
    fn finds_coefficients_under_noise(
        floor_ms in 0.1_f64..50.0,
        base_part in 0.0_f64..1.0,
        per_token_ms in 1e-3_f64..1.0,
        per_pair_ms in 0.0_f64..1e-4,
        per_cached_ms in 0.0_f64..1e-3,
        decode_part in 0.0_f64..1.0,
        noise in prop::collection::vec(-0.05_f64..0.05, 120),
    ) {
        let of = ServiceTime {
            floor_ms,
            per_cached_ms,
            base_ms: floor_ms * base_part,
            per_token_ms,
            per_pair_ms,
            decode_ms: per_token_ms * decode_part,
        };
        let mut noise = noise.iter();
        let [prefill, decode] = grid(of, || 1.0 + noise.next().copied().unwrap_or(0.0));
        let fitted = Fitted::of(&prefill, &decode).expect("the grid tells everything apart");
        prop_assert_eq!(fitted.service.validate(), Ok(()));
        for sample in &prefill {
            let work = sample.prefill_work();
            let (is, said) = (of.step_ms(&work), fitted.service.step_ms(&work));
            prop_assert!((said / is - 1.0).abs() < 0.12, "{} is not {} for {:?}", said, is, sample);
        }
        let [is, said] = [of, fitted.service].map(|s| s.per_token_ms + 3e4 * s.per_pair_ms);
        prop_assert!((said / is - 1.0).abs() < 0.2, "{} is not {}", said, is);
    }
}
