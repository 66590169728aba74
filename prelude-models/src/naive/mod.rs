//! The operations again, in f64 and as their definitions read: the twins that fast versions are
//! held against. One row or one head at a time, no batching, no tiles.

#[cfg(test)]
pub(crate) mod device;
pub(crate) mod layout;

use crate::{Activation, Routing};

/// Returns `x / sqrt(mean(x²) + eps) · weight`.
pub(crate) fn rms_norm(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let mean_square = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean_square + eps).sqrt();
    x.iter().zip(weight).map(|(v, w)| v * scale * w).collect()
}

/// Returns `W · x + bias` with `w` `[out, in]`, `in` being the length of `x`. An empty bias is
/// none.
pub(crate) fn linear(x: &[f64], w: &[f64], bias: &[f64]) -> Vec<f64> {
    w.chunks_exact(x.len())
        .enumerate()
        .map(|(o, row)| dot(x, row) + bias.get(o).copied().unwrap_or_default())
        .collect()
}

/// Rotates a head at `position`. The angle is an f32 product, as in the reference: it decides
/// which rotation is meant; everything after it is exact.
pub(crate) fn rotate(head: &[f64], position: usize, inv_freq: &[f32], scaling: f32) -> Vec<f64> {
    let half = head.len() / 2;
    let mut out = vec![0.0; head.len()];
    for (i, &frequency) in inv_freq.iter().enumerate() {
        let angle = f64::from(position as f32 * frequency);
        let (sin, cos) = angle.sin_cos();
        let (sin, cos) = (sin * f64::from(scaling), cos * f64::from(scaling));
        let (a, b) = (head[i], head[i + half]);
        out[i] = a * cos - b * sin;
        out[i + half] = b * cos + a * sin;
    }
    out
}

/// Returns a number bounded to `±cap`, if there is a cap.
pub(crate) fn soft_cap(x: f64, cap: Option<f32>) -> f64 {
    cap.map_or(x, |cap| f64::from(cap) * (x / f64::from(cap)).tanh())
}

/// Returns the number that head `head` adds to the score of a query and a key, by their positions.
/// `bias`: `[heads · (2 R + 1)]`.
pub(crate) fn distance_bias(bias: &[f64], heads: usize, head: usize, q: usize, k: usize) -> f64 {
    let of_head = &bias[bias.len() / heads * head..][..bias.len() / heads];
    let reach = (of_head.len() / 2) as i64;
    let distance = (k as i64 - q as i64).max(-reach).min(reach);
    of_head[(distance + reach) as usize]
}

/// Returns the average of rows, weighted by the softmax of their scores.
pub(crate) fn average(scores: &[f64], values: &[&[f64]]) -> Vec<f64> {
    let width = values[0].len();
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut out = vec![0.0; width];
    for (weight, value) in weights.iter().zip(values) {
        for (o, v) in out.iter_mut().zip(*value) {
            *o += weight / sum * v;
        }
    }
    out
}

/// Moves a row to mean 0 and variance 1, then scales and moves it by `weight` and `bias`.
pub(crate) fn layer_norm(x: &[f64], weight: &[f64], bias: &[f64], eps: f64) -> Vec<f64> {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
    let root = (variance + eps).sqrt();
    let weights = weight.iter().zip(bias);
    x.iter()
        .zip(weights)
        .map(|(v, (w, b))| (v - mean) / root * w + b)
        .collect()
}

/// Returns the error function by its series of positive terms:
/// `2/√π · e^(-x²) · Σ 2ⁿ x^(2n+1) / (2n+1)!!`.
pub(crate) fn erf(x: f64) -> f64 {
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

/// Returns one number of an activation.
pub(crate) fn activate(x: f64, f: Activation) -> f64 {
    match f {
        Activation::Gelu => x / 2.0 * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            x / 2.0 * (1.0 + inner.tanh())
        }
        Activation::Relu => x.max(0.0),
        Activation::Tanh => x.tanh(),
    }
}

/// Returns `silu(gate) · up` of a row `[gate, up]`.
pub(crate) fn silu_mul(gate_up: &[f64]) -> Vec<f64> {
    let (gate, up) = gate_up.split_at(gate_up.len() / 2);
    gate.iter()
        .zip(up)
        .map(|(g, u)| g / (1.0 + (-g).exp()) * u)
        .collect()
}

/// Returns the experts that work on a token and their shares, in order of their numbers.
pub(crate) fn route(logits: &[f64], routing: Routing) -> Vec<(usize, f64)> {
    let lse = log_sum_exp(logits);
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let mut chosen = order[..routing.per_token].to_vec();
    chosen.sort_unstable();
    let shares: Vec<f64> = chosen.iter().map(|&e| (logits[e] - lse).exp()).collect();
    let sum = if routing.normalise {
        shares.iter().sum()
    } else {
        1.0
    };
    let shares = shares.into_iter().map(|share| share / sum);
    chosen.into_iter().zip(shares).collect()
}

/// Returns `ln Σ exp(z)`.
pub(crate) fn log_sum_exp(z: &[f64]) -> f64 {
    let top = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    top + z.iter().map(|v| (v - top).exp()).sum::<f64>().ln()
}

/// Returns the sum of products.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}
