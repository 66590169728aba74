//! Keys, values and attention of the device in f64.

use std::ops::Range;

use prelude_core::Attention;

use super::{Fault, KeyValue, NaiveOps, NaiveStep, Rows, Weight};
use crate::{AttnShape, Distances, QkNorm, naive, naive::layout::KvOrigin};

impl NaiveOps {
    /// Norms and rotates queries and keys, and places keys and values.
    pub(super) fn place(
        &mut self,
        plan: &NaiveStep,
        layer: usize,
        rows: Range<usize>,
        shape: AttnShape,
        (norm, rope): (Option<QkNorm<'_, Weight>>, Option<&Weight>),
        qkv: &mut Rows,
    ) {
        if self.placed.len() <= layer {
            self.placed.resize_with(layer + 1, Vec::new);
        }
        let scaling = if self.has(Fault::ForgetsRopeScaling) {
            1.0
        } else {
            rope.map_or(1.0, |rope| rope.scaling)
        };
        let eps = norm.map_or(0.0, |norm| f64::from(norm.eps));
        let weights = norm.map_or((None, None), |norm| (Some(norm.q), Some(norm.k)));
        let fault = self.fault;
        let turn = |head: &[f64], norm: Option<&Weight>, position| {
            let norm = |head: &[f64]| match norm {
                Some(norm) => naive::rms_norm(head, &norm.values, eps),
                None if fault == Some(Fault::NormsWithoutWeights) => {
                    naive::rms_norm(head, &vec![1.0; head.len()], f64::from(1e-6f32))
                }
                None => head.to_vec(),
            };
            let rotate = |head: &[f64]| match rope {
                Some(rope) => naive::rotate(head, position, &rope.inv_freq, scaling),
                None => head.to_vec(),
            };
            match fault {
                Some(Fault::RotatesBeforeNorm) => norm(&rotate(head)),
                Some(Fault::RotatesNeighbours) => {
                    let d = head.len();
                    let at = |i: usize| i % (d / 2) * 2 + i / (d / 2);
                    let halves: Vec<f64> = (0..d).map(|i| norm(head)[at(i)]).collect();
                    let turned = rotate(&halves);
                    (0..d).map(|i| turned[i % 2 * (d / 2) + i / 2]).collect()
                }
                _ => rotate(&norm(head)),
            }
        };
        let mut placed = Vec::new();
        for (i, t) in rows.enumerate() {
            let position = plan.tokens[t].position;
            let row = qkv.row_mut(i);
            let (q, kv) = row.split_at_mut(shape.out_width());
            for head in q.chunks_exact_mut(shape.head_dim) {
                head.copy_from_slice(&turn(head, weights.0, position));
            }
            let (k, v) = kv.split_at(shape.kv_heads * shape.head_dim);
            let k = k.chunks_exact(shape.head_dim);
            let k: Vec<f64> = k.flat_map(|head| turn(head, weights.1, position)).collect();
            assert_eq!(
                self.placed[layer].len() + i,
                t,
                "tokens are placed in order"
            );
            placed.push((k, v.to_vec()));
            kv.fill(f64::NAN);
            if let Some((block, mut offset)) = plan.tokens[t].kept {
                if self.fault == Some(Fault::KeepsBesideItsSlot) {
                    offset ^= 1;
                }
                let shared = self.fault == Some(Fault::LayersShareBlocks);
                let layer = if shared { 0 } else { layer };
                self.pool.insert((layer, block, offset), placed[i].clone());
            }
        }
        self.placed[layer].extend(placed);
    }

    /// Writes what each row of `qkv` attends to into a row of `out`.
    pub(super) fn attend(
        &self,
        plan: &NaiveStep,
        layer: usize,
        rows: Range<usize>,
        shape: AttnShape,
        distances: Distances<'_, Weight>,
        (qkv, out): (&Rows, &mut Rows),
    ) {
        let (d, group) = (shape.head_dim, shape.heads / shape.kv_heads);
        let window = distances.window.map_or(usize::MAX, |w| w as usize);
        let window = match self.fault {
            Some(Fault::SeesBeyondItsWindow) => usize::MAX,
            Some(Fault::WindowIsOneWider) => window.saturating_add(1),
            _ => window,
        };
        let cap = shape.soft_cap.filter(|_| !self.has(Fault::ForgetsScoreCap));
        let shares = self.has(Fault::LayersShareBlocks);
        let pool_layer = if shares { 0 } else { layer };
        for (i, t) in rows.enumerate() {
            let token = &plan.tokens[t];
            // The index of a token in either list is its position: whole prompts begin at 0.
            let whole: Vec<KvOrigin> = token.segment.clone().map(KvOrigin::Token).collect();
            let context = match shape.attention {
                Attention::Full if !self.has(Fault::SeesNoLaterToken) => &whole,
                _ => &token.context,
            };
            let near = |&(position, _): &(usize, &KvOrigin)| {
                let distance: usize = token.position.abs_diff(position);
                distance <= window
            };
            let seen = context.iter().enumerate().filter(near);
            let seen: Vec<(usize, &KeyValue)> = seen
                .filter_map(|(position, source)| {
                    let kv = match *source {
                        KvOrigin::Token(t) => self.placed[layer].get(t),
                        KvOrigin::Pool(block, offset) => {
                            self.pool.get(&(pool_layer, block, offset))
                        }
                    };
                    Some((position, kv?))
                })
                .collect();
            for head in 0..shape.heads {
                let first = if self.has(Fault::KvHeadByRemainder) {
                    head % shape.kv_heads * d
                } else {
                    head / group * d
                };
                let at = first..first + d;
                let q = &qkv.row(i)[head * d..][..d];
                let score = |&(position, (key, _)): &(usize, &KeyValue)| {
                    let (mut from, mut to) = (token.position, position);
                    if self.has(Fault::BiasLooksTheOtherWay) {
                        std::mem::swap(&mut from, &mut to);
                    }
                    let bias = distances.bias.map_or(0.0, |bias| {
                        naive::distance_bias(&bias.values, shape.heads, head, from, to)
                    });
                    let score = naive::dot(q, &key[at.clone()]) * f64::from(shape.scale);
                    naive::soft_cap(score, cap) + bias
                };
                let scores: Vec<f64> = seen.iter().map(score).collect();
                let values: Vec<&[f64]> = seen.iter().map(|(_, kv)| &kv.1[at.clone()]).collect();
                let y = naive::average(&scores, &values);
                out.row_mut(i)[head * d..][..d].copy_from_slice(&y);
            }
        }
    }
}
