//! The operations again, in f64 and as their definitions read: the twins that fast versions are
//! held against. One row or one head at a time, no batching, no tiles.

#[cfg(test)]
pub(crate) mod device;
pub(crate) mod layout;

/// `x / sqrt(mean(x²) + eps) · weight`.
pub(crate) fn rms_norm(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let mean_square = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean_square + eps).sqrt();
    x.iter().zip(weight).map(|(v, w)| v * scale * w).collect()
}

/// `W · x + bias` with `w` `[out, in]`, `in` being the length of `x`. An empty bias is none.
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

/// Attention of one query head over `keys` and `values`, one row per visible position.
pub(crate) fn attend(q: &[f64], keys: &[&[f64]], values: &[&[f64]], scale: f64) -> Vec<f64> {
    let scores: Vec<f64> = keys.iter().map(|k| dot(q, k) * scale).collect();
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut out = vec![0.0; q.len()];
    for (weight, value) in weights.iter().zip(values) {
        for (o, v) in out.iter_mut().zip(*value) {
            *o += weight / sum * v;
        }
    }
    out
}

/// `silu(gate) · up` of a row `[gate, up]`.
pub(crate) fn silu_mul(gate_up: &[f64]) -> Vec<f64> {
    let (gate, up) = gate_up.split_at(gate_up.len() / 2);
    gate.iter()
        .zip(up)
        .map(|(g, u)| g / (1.0 + (-g).exp()) * u)
        .collect()
}

/// `ln Σ exp(z)`.
pub(crate) fn log_sum_exp(z: &[f64]) -> f64 {
    let top = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    top + z.iter().map(|v| (v - top).exp()).sum::<f64>().ln()
}

/// Sum of products.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}
