//! The definitions, in plain f32: what the fast families are held against.

use prelude_models::Activation;

/// Lanes of a sum. Independent partial sums let the compiler use whatever the baseline has, and
/// are more accurate than one running sum.
const LANES: usize = 8;

/// Returns `Σ a · b`.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (a, a_tail) = a.as_chunks::<LANES>();
    let (b, b_tail) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        for i in 0..LANES {
            lanes[i] += a[i] * b[i];
        }
    }
    let tail: f32 = a_tail.iter().zip(b_tail).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f32>() + tail
}

/// `out = x / sqrt(mean(x²) + eps) · weight`.
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let root = (dot(x, x) / x.len() as f32 + eps).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x / root * weight;
    }
}

/// `out += x / sqrt(mean(x²) + eps) · weight`.
pub(crate) fn rms_norm_add(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let root = (dot(x, x) / x.len() as f32 + eps).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out += x / root * weight;
    }
}

/// Normalises a head and rotates it: element `i` with `i + D/2`. `rotation`: cosines, then sines.
pub(crate) fn norm_rotate(head: &mut [f32], weight: &[f32], eps: f32, rotation: &[f32]) {
    let root = (dot(head, head) / head.len() as f32 + eps).sqrt();
    for (x, w) in head.iter_mut().zip(weight) {
        *x = *x / root * w;
    }
    rotate(head, rotation);
}

/// Rotates a head: element `i` with `i + D/2`. `rotation`: cosines, then sines.
pub(crate) fn rotate(head: &mut [f32], rotation: &[f32]) {
    let half = head.len() / 2;
    let (cos, sin) = rotation.split_at(half);
    for i in 0..half {
        let (a, b) = (head[i], head[i + half]);
        head[i] = a * cos[i] - b * sin[i];
        head[i + half] = b * cos[i] + a * sin[i];
    }
}

/// `out = silu(gate) · up`, `silu(g) = g / (1 + e^-g)`.
pub(crate) fn silu_mul(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((out, g), u) in out.iter_mut().zip(gate).zip(up) {
        *out = g / (1.0 + (-g).exp()) * u;
    }
}

/// `x = (x - mean(x)) / sqrt(var(x) + eps) · weight + bias`.
pub(crate) fn layer_norm(x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) {
    let mean = x.iter().sum::<f32>() / x.len() as f32;
    let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / x.len() as f32;
    let root = (variance + eps).sqrt();
    for ((x, w), b) in x.iter_mut().zip(weight).zip(bias) {
        *x = (*x - mean) / root * w + b;
    }
}

/// Returns the error function by its series of positive terms:
/// `2/√π · e^(-x²) · Σ 2ⁿ x^(2n+1) / (2n+1)!!`.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

/// Applies an activation to each number.
pub(crate) fn activate(x: &mut [f32], f: Activation) {
    for v in x {
        *v = match f {
            Activation::Gelu => {
                let wide = f64::from(*v);
                (wide / 2.0 * (1.0 + erf(wide * std::f64::consts::FRAC_1_SQRT_2))) as f32
            }
            Activation::GeluTanh => {
                let inner = (2.0 / std::f32::consts::PI).sqrt() * (*v + 0.044_715 * v.powi(3));
                *v / 2.0 * (1.0 + inner.tanh())
            }
            Activation::Relu if *v < 0.0 => 0.0,
            Activation::Relu => *v,
            Activation::Tanh => v.tanh(),
        };
    }
}

/// Computes attention of one query head over `keys` and `values`, one row per visible position;
/// `score` makes a row's score from its product with the query.
pub(crate) fn attend(
    q: &[f32],
    keys: &[&[f32]],
    values: &[&[f32]],
    score: impl Fn(usize, f32) -> f32,
    out: &mut [f32],
) {
    let scores = keys.iter().enumerate();
    let scores: Vec<f32> = scores.map(|(i, key)| score(i, dot(q, key))).collect();
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum: f32 = weights.iter().sum();
    out.fill(0.0);
    for (weight, value) in weights.iter().zip(values) {
        for (out, v) in out.iter_mut().zip(*value) {
            *out += weight * v;
        }
    }
    for out in out {
        *out /= sum;
    }
}
