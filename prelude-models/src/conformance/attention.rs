//! Attention over everything a batch can express.

use std::collections::HashMap;

use prelude_core::{
    Attention, BlockId, BlockSpan, DecodeBatch, DecodeRow, ForwardBatch, OneShotBatch, Residency,
    Segment, SegmentIdx, SeqId, TokenSource,
};

use super::{
    BLOCK_SIZE, ConformanceDevice, Demands, EPS, MAX_POSITIONS, Precision, Spec, VOCAB,
    batches::greedy,
    spec,
    values::{Values, assert_within, vector, wide},
};
use crate::{
    AttnShape, Distances, Ops, QkNorm, WeightLoader,
    naive::{
        self,
        layout::{KvOrigin, Token, lay_out},
    },
};

/// `(heads, kv_heads, head_dim)`: 1, 2, 3, 4 and 8 queries per key, head sizes with and without
/// remainders to every vector width.
const SHAPES: [(usize, usize, usize); 8] = [
    (3, 3, 40),
    (4, 2, 16),
    (6, 2, 32),
    (8, 2, 24),
    (8, 1, 64),
    (2, 1, 128),
    (1, 1, 64),
    (2, 2, 24),
];

/// Shapes that run without norms of queries and keys, too.
const WITHOUT_NORMS: [(usize, usize, usize); 2] = [(4, 2, 16), (1, 1, 64)];

/// `(heads, kv_heads, head_dim, window, soft cap)`.
type Near = (usize, usize, usize, Option<u32>, Option<f32>);

/// Layers that do not see or weigh all tokens alike:
/// a window of the token alone, inside a tile, of a tile, of more than one; caps with and without.
const NEAR: [Near; 6] = [
    (4, 2, 16, Some(0), None),
    (3, 3, 40, Some(9), None),
    (4, 1, 32, Some(63), Some(2.0)),
    (2, 1, 64, Some(64), None),
    (2, 2, 24, Some(70), Some(5.0)),
    (2, 1, 128, None, Some(1.5)),
];

/// Steps of more tokens run in one chunk and for narrow shapes only: the twin needs time in the
/// square of them, and shorter steps have edges enough.
const LONG: usize = 256;
const NARROW: usize = 128;

/// Layers are run one after the other over the same tokens with different values, since K/V of
/// one must not be seen by the other.
const LAYERS: usize = 2;

/// Bound on an output, relative to the largest value in the context. Scores here reach about 12,
/// as sums of up to 128 products of magnitude 1 times `D^-0.5`. In f32 such a score is off by some
/// 1e-6, and so is a weight; in bf16 q, k and the weights are each rounded to 2^-9 on average, and
/// the output again.
const OUTPUT_F32: f64 = 2e-5;
const OUTPUT_BF16: f64 = 0.04;

/// Checks `qk_norm_rope_store` and `attention`: single prompts around tile and block edges, trees,
/// cached prefixes that end inside blocks, chunks that continue in their own block, decode rows, all of
/// them in one step; and, if demanded, the same bits for the same tokens in all of these.
///
/// # Panics
/// If the device is wrong.
pub fn attention<D: ConformanceDevice>(demands: Demands, open: impl Fn(&Spec) -> D) {
    attention_of_heads(demands, |_| true, open);
}

/// Checks attention of the heads whose size `takes` says yes to, for devices that have a way of their
/// own for such heads.
///
/// # Panics
/// If the device is wrong, or if there are no such heads.
pub fn attention_of_heads<D: ConformanceDevice>(
    demands: Demands,
    takes: impl Fn(usize) -> bool,
    open: impl Fn(&Spec) -> D,
) {
    let normed = SHAPES.map(|shape| (shape, true));
    let plain = WITHOUT_NORMS.map(|shape| (shape, false));
    let shapes = normed.into_iter().chain(plain);
    let shapes: Vec<_> = shapes.filter(|((.., dim), _)| takes(*dim)).collect();
    assert!(!shapes.is_empty(), "no such heads");
    for (heads, has_norm) in shapes {
        let sight = Sight {
            has_norm,
            ..Sight::default()
        };
        all_cases(demands, (shape(heads, Attention::Causal), sight), &open);
    }
}

/// Checks attention with windows and with bounded scores.
///
/// # Panics
/// If the device is wrong.
pub(super) fn near<D: ConformanceDevice>(demands: Demands, open: &impl Fn(&Spec) -> D) {
    for (heads, kv_heads, head_dim, window, soft_cap) in NEAR {
        let plain = shape((heads, kv_heads, head_dim), Attention::Causal);
        let shape = AttnShape {
            scale: 0.5 * plain.scale,
            soft_cap,
            ..plain
        };
        let sight = Sight {
            has_norm: true,
            window,
            reach: None,
        };
        all_cases(demands, (shape, sight), open);
    }
}

/// Checks prompts around the edges of tiles whose tokens see later ones: each query sees its own prompt,
/// or what is near in it, and nothing else.
///
/// # Panics
/// If the device is wrong.
pub(super) fn whole<D: ConformanceDevice>(demands: Demands, open: &impl Fn(&Spec) -> D) {
    // The longest prompt has a chunk alone; others hold several.
    const LONGEST: u32 = 130;
    let mut forest = Forest::default();
    for len in [1, 2, 63, 64, 65, 17, LONGEST] {
        forest.root(len);
    }
    let steps = [forest.oneshot()];
    let windows = [None, Some(0), Some(5), Some(64)].map(|window| (window, None));
    for heads in [(3, 3, 40), (2, 2, 16), (1, 1, 64), (2, 2, 128)] {
        for (window, reach) in windows.into_iter().chain([(None, Some(9))]) {
            let sight = Sight {
                has_norm: false,
                window,
                reach,
            };
            let run = (shape(heads, Attention::Full), sight);
            let name = format!("whole prompts, {run:?}");
            LayerRun::new(demands.precision, run, name).steps(&steps, LONGEST as usize, open);
        }
    }
}

/// Returns the shape of `(heads, kv_heads, head_dim)`.
fn shape((heads, kv_heads, head_dim): (usize, usize, usize), attention: Attention) -> AttnShape {
    AttnShape {
        attention,
        heads,
        kv_heads,
        head_dim,
        scale: (head_dim as f32).powf(-0.5),
        soft_cap: None,
    }
}

/// The settings of a layer's attention beside its shape: the norms of heads, and what distances do.
#[derive(Clone, Copy, Debug, Default)]
struct Sight {
    /// True if heads of queries and keys are normalised.
    has_norm: bool,
    /// Tokens before it, and behind it if it sees later ones, that a token sees, if not all.
    window: Option<u32>,
    /// The distance up to which each has a number of its own that is added to scores, if any has.
    reach: Option<usize>,
}

/// Runs every case in one shape.
fn all_cases<D: ConformanceDevice>(
    demands: Demands,
    (shape, sight): (AttnShape, Sight),
    open: &impl Fn(&Spec) -> D,
) {
    for (name, steps) in cases() {
        let tokens = steps.iter().map(ForwardBatch::num_tokens).max();
        let long = tokens > Some(LONG);
        if long && shape.out_width() > NARROW {
            continue;
        }
        for chunk in [16, 4096] {
            if long && chunk == 16 {
                continue;
            }
            let name = format!("{name}, {shape:?}, {sight:?}, chunk {chunk}");
            LayerRun::new(demands.precision, (shape, sight), name).steps(&steps, chunk, open);
        }
    }
    if demands.batch_invariant {
        same_bits(demands.precision, (shape, sight), open);
    }
}

fn cases() -> Vec<(String, Vec<ForwardBatch>)> {
    let roots = |lens: &[u32]| {
        let mut forest = Forest::default();
        for &len in lens {
            forest.root(len);
        }
        vec![forest.oneshot()]
    };
    let alone = [1, 15, 16, 17, 31, 33, 63, 64, 65, 129, 300]
        .map(|len| (format!("{len} tokens"), roots(&[len])));
    let others = [
        ("three levels", vec![three_levels()]),
        ("roots of many lengths", roots(&[1, 2, 40, 3, 17, 1, 64])),
        ("cached blocks", cached_steps()),
        ("rows over one prompt", shared_steps()),
    ];
    let others = others.map(|(name, steps)| (name.to_owned(), steps));
    alone.into_iter().chain(others).collect()
}

/// Step 1 keeps 272 positions. Step 2 decodes behind all of them, and three times behind the first 256.
fn shared_steps() -> Vec<ForwardBatch> {
    let prompt: Vec<_> = (0..17).map(|i| BlockId(i * 5 % 17 + 3)).collect();
    let mut first = Forest::default();
    first.kept_root(272, &prompt);
    let table = |shared, own| [&prompt[..shared], &[BlockId(own)]].concat();
    let tables = [(16, 40), (16, 41), (17, 42), (16, 43)].map(|(n, own)| table(n, own));
    let [a, b, c, d] = &tables;
    vec![
        first.oneshot(),
        ForwardBatch::Decode(decode(&[(256, a), (256, b), (272, c), (256, d)])),
    ]
}

/// Returns a long root, children that end at and beside tile edges, grandchildren, two children deep.
fn three_levels() -> ForwardBatch {
    let mut forest = Forest::default();
    let root = forest.root(52);
    let (a, b) = (forest.child(root, 12), forest.child(root, 33));
    forest.child(a, 1);
    let c = forest.child(a, 20);
    forest.child(b, 5);
    forest.child(c, 66);
    let other = forest.root(3);
    forest.child(other, 1);
    forest.child(other, 2);
    forest.oneshot()
}

/// Step 1 keeps 40 positions in 3 blocks, the last half full. Step 2 goes on from position 40 in
/// that same block and keeps 30 more, beside a one-shot tree over the first 37 positions. Step 3
/// decodes at positions 70 and 50 (inside a block) and 32 (the first of a block), beside a prefill
/// chunk and a one-shot prompt. Step 4 decodes again over what step 3 wrote.
fn cached_steps() -> Vec<ForwardBatch> {
    let blocks = |ids: &[u32]| ids.iter().map(|&b| BlockId(b)).collect::<Vec<_>>();
    let mut first = Forest::default();
    first.kept_root(40, &blocks(&[9, 4, 30]));
    // A second sequence, whose table is not in order either.
    first.kept_root(32, &blocks(&[12, 3]));
    let mut tree = Forest::default();
    let root = tree.cached_root(37, &blocks(&[9, 4, 30]), 17);
    tree.child(root, 3);
    tree.child(root, 12);
    let mut chunk = Forest::default();
    chunk.next_chunk(40, 30, &blocks(&[9, 4, 30]), &blocks(&[30, 21, 8]));
    // Whole blocks cached and the next one begun.
    chunk.next_chunk(32, 18, &blocks(&[12, 3]), &blocks(&[40, 41]));
    let mut another = Forest::default();
    another.kept_root(20, &blocks(&[50, 51]));
    let mut alone = Forest::default();
    alone.root(21);
    let long = blocks(&[9, 4, 30, 21, 8]);
    let copied = blocks(&[12, 3, 60]);
    vec![
        first.oneshot(),
        ForwardBatch::Mixed {
            oneshot: tree.batch,
            prefill: chunk.batch,
            decode: DecodeBatch::EMPTY,
        },
        ForwardBatch::Mixed {
            oneshot: alone.batch,
            prefill: another.batch,
            decode: decode(&[(70, &long), (50, &blocks(&[12, 3, 40, 41])), (32, &copied)]),
        },
        ForwardBatch::Decode(decode(&[
            (71, &long),
            (33, &copied),
            (16, &blocks(&[50, 52])),
            (4, &blocks(&[51])),
        ])),
    ]
}

/// Returns rows of one new token each, given as (context length, block table).
fn decode(rows: &[(u32, &[BlockId])]) -> DecodeBatch {
    let mut batch = DecodeBatch::default();
    for &(context_len, table) in rows {
        let start = count(batch.block_ids.len());
        batch.block_ids.extend_from_slice(table);
        batch.rows.push(DecodeRow {
            seq: SeqId(u64::from(start)),
            token: TokenSource::Known(id(batch.rows.len(), context_len)),
            context_len,
            blocks: BlockSpan {
                start,
                len: context_len / BLOCK_SIZE + 1,
            },
            sample: greedy(None),
        });
    }
    batch
}

/// Returns a token id; rows of q, k and v follow from it.
fn id(salt: usize, position: u32) -> u32 {
    (count(salt) * 131 + position * 17) % count(VOCAB)
}

fn count(n: usize) -> u32 {
    u32::try_from(n).expect("cases are small")
}

/// Builds forests.
#[derive(Default)]
struct Forest {
    batch: OneShotBatch,
}

impl Forest {
    fn add(
        &mut self,
        parent: Option<SegmentIdx>,
        context_len: u32,
        len: u32,
        cached: &[BlockId],
        kept: &[BlockId],
    ) -> SegmentIdx {
        let index = self.batch.segments.len();
        let start = count(self.batch.tokens.len());
        for position in context_len..context_len + len {
            self.batch.tokens.push(id(index, position));
        }
        let mut span = |blocks: &[BlockId]| {
            let start = count(self.batch.block_ids.len());
            self.batch.block_ids.extend_from_slice(blocks);
            BlockSpan {
                start,
                len: count(blocks.len()),
            }
        };
        let cached = span(cached);
        let residency = if kept.is_empty() {
            Residency::Transient
        } else {
            Residency::Keep(span(kept))
        };
        self.batch.segments.push(Segment {
            tokens: start..start + len,
            parent,
            context_len,
            cached,
            residency,
        });
        SegmentIdx(count(index))
    }

    fn root(&mut self, len: u32) -> SegmentIdx {
        self.add(None, 0, len, &[], &[])
    }

    fn kept_root(&mut self, len: u32, kept: &[BlockId]) -> SegmentIdx {
        self.add(None, 0, len, &[], kept)
    }

    fn cached_root(&mut self, context_len: u32, cached: &[BlockId], len: u32) -> SegmentIdx {
        self.add(None, context_len, len, cached, &[])
    }

    fn next_chunk(&mut self, context_len: u32, len: u32, cached: &[BlockId], kept: &[BlockId]) {
        self.add(None, context_len, len, cached, kept);
    }

    fn child(&mut self, parent: SegmentIdx, len: u32) -> SegmentIdx {
        let context_len = self.batch.segments[parent.index()].end();
        self.add(Some(parent), context_len, len, &[], &[])
    }

    fn oneshot(self) -> ForwardBatch {
        ForwardBatch::OneShot(self.batch)
    }
}

/// Keys and values of one position, all heads.
type KeyValue = (Vec<f64>, Vec<f64>);

/// A case on a device, with the twin's own pool.
struct LayerRun {
    precision: Precision,
    shape: AttnShape,
    name: String,
    window: Option<u32>,
    /// The frequencies of rotations; none where tokens see later ones.
    inv_freq: Vec<f32>,
    /// The numbers that are added to scores, by head and distance.
    bias: Vec<f32>,
    /// Weights of the norms of q and of k, if there are any.
    norms: Option<[Vec<f32>; 2]>,
    pool: HashMap<(usize, BlockId, u32), KeyValue>,
}

/// A factor that is not 1, so that leaving it out shows.
const SCALING: f32 = 1.125;

impl LayerRun {
    fn new(precision: Precision, (shape, sight): (AttnShape, Sight), name: String) -> Self {
        let half = match shape.attention {
            Attention::Causal => shape.head_dim / 2,
            Attention::Full => 0,
        };
        let mut values = Values::new(precision, 20);
        let norms = [(); 2].map(|()| values.many(shape.head_dim, 0.5, 1.5));
        Self {
            precision,
            shape,
            name,
            window: sight.window,
            inv_freq: (0..half)
                .map(|i| 1e4f32.powf(-(i as f32) / half as f32))
                .collect(),
            bias: sight.reach.map_or_else(Vec::new, |reach| {
                values.many(shape.heads * (2 * reach + 1), -2.0, 2.0)
            }),
            norms: sight.has_norm.then_some(norms),
            pool: HashMap::new(),
        }
    }

    /// Returns the fused row of a token: a function of its id, position and layer, so that the same
    /// token in another batch has the same row.
    fn row(&self, token: &Token, layer: usize) -> Vec<f32> {
        let seed = (token.id as usize * MAX_POSITIONS + token.position) * LAYERS + layer;
        let mut values = Values::new(self.precision, 1000 + seed as u64);
        values.many(self.shape.qkv_width(), -2.0, 2.0)
    }

    /// Runs all steps and compares each.
    fn steps<D: ConformanceDevice>(
        &mut self,
        steps: &[ForwardBatch],
        chunk: usize,
        open: &impl Fn(&Spec) -> D,
    ) {
        let mut device = self.open(steps, chunk, open);
        for (s, step) in steps.iter().enumerate() {
            let tokens = lay_out(step, BLOCK_SIZE);
            let got = self.device_step(&mut device, step, &tokens);
            for (layer, got) in got.iter().enumerate() {
                self.check(&tokens, layer, got, &format!("step {s}"));
            }
        }
    }

    fn open<D: ConformanceDevice>(
        &self,
        steps: &[ForwardBatch],
        chunk: usize,
        open: &impl Fn(&Spec) -> D,
    ) -> D {
        let tokens = steps.iter().map(ForwardBatch::num_tokens).max();
        let tokens = tokens.expect("a case has a step");
        let width = self.shape.qkv_width() + self.shape.out_width();
        let mut spec = spec(64, self.shape, tokens, tokens * width);
        spec.chunk_tokens = chunk;
        spec.capacity.attention = self.shape.attention;
        for step in steps {
            let valid = step.validate(&spec.capacity);
            assert_eq!(valid, Ok(()), "{}: a malformed case", self.name);
        }
        open(&spec)
    }

    /// Returns the rows of q after rotation and of outputs, per layer.
    fn device_step<D: ConformanceDevice>(
        &self,
        device: &mut D,
        step: &ForwardBatch,
        tokens: &[Token],
    ) -> Vec<Got> {
        let shape = self.shape;
        let (width, out_width) = (shape.qkv_width(), shape.out_width());
        let mut loader = device.loader();
        let norms = self.norms.as_ref();
        let norms = norms.map(|norms| norms.each_ref().map(|norm| vector(&mut loader, norm)));
        let bias = (!self.bias.is_empty()).then(|| vector(&mut loader, &self.bias));
        let rope = (!self.inv_freq.is_empty()).then(|| {
            let loaded = loader.rope(&self.inv_freq, SCALING, MAX_POSITIONS);
            loaded.expect("a table loads")
        });
        let mut layers = Vec::new();
        device.step(step.clone(), &mut |ops, inputs| {
            let room = tokens.len().min(ops.chunk_tokens());
            let mut qkv = ops.alloc(room, width).expect("room");
            let mut out = ops.alloc(room, out_width).expect("room");
            for layer in 0..LAYERS {
                let mut got = Got::default();
                let mut start = 0;
                while start < tokens.len() {
                    let rows = start..match shape.attention {
                        Attention::Causal => tokens.len().min(start + room),
                        Attention::Full => ops.whole_segments(inputs, start),
                    };
                    start = rows.end;
                    let n = rows.len();
                    assert!(n <= room, "a chunk of {rows:?}");
                    let mut values: Vec<f32> = tokens[rows.clone()]
                        .iter()
                        .flat_map(|token| self.row(token, layer))
                        .collect();
                    values.resize(room * width, f32::NAN);
                    D::write(ops, &mut qkv, &values);
                    ops.qk_norm_rope_store(
                        inputs,
                        layer,
                        rows.clone(),
                        shape,
                        norms.as_ref().map(|[q, k]| QkNorm { q, k, eps: EPS }),
                        rope.as_ref(),
                        &mut qkv,
                    )
                    .expect("qk_norm_rope_store runs");
                    let turned = D::read(ops, &qkv);
                    for row in turned.chunks_exact(width).take(n) {
                        got.q.extend_from_slice(&row[..out_width]);
                    }
                    match (self.window, &bias) {
                        (None, None) => ops.attention(inputs, layer, rows, shape, &qkv, &mut out),
                        (window, bias) => {
                            let bias = bias.as_ref();
                            let near = Distances { window, bias };
                            let (qkv, out) = (&qkv, &mut out);
                            ops.attention_by_distance(inputs, layer, rows, shape, near, qkv, out)
                        }
                    }
                    .expect("attention runs");
                    got.out
                        .extend_from_slice(&D::read(ops, &out)[..n * out_width]);
                }
                layers.push(got);
            }
        });
        layers
    }

    /// Compares one layer of one step with the twin, and keeps the twin's K/V.
    fn check(&mut self, tokens: &[Token], layer: usize, got: &Got, step: &str) {
        let width = self.shape.out_width();
        let placed: Vec<KeyValue> = tokens.iter().map(|t| self.key_value(t, layer)).collect();
        for (t, token) in tokens.iter().enumerate() {
            let what = |op: &str| {
                format!(
                    "{op}: {}, {step}, layer {layer}, token {t} at position {}",
                    self.name, token.position
                )
            };
            let (q, magnitudes) = self.query(token, layer);
            // Quotient, product with the weight, cos and sin, two products and their sum.
            let bound = super::SUM + self.precision.stored(6.0);
            let bounds = magnitudes.iter().map(|m| bound * m);
            assert_within(
                || what("qk_norm_rope_store"),
                &got.q[t * width..][..width],
                q.iter().copied().zip(bounds),
            );
            let (out, bound) = self.attend(&q, token, layer, &placed);
            assert_within(
                || what("attention"),
                &got.out[t * width..][..width],
                out.iter().map(|&o| (o, bound)),
            );
        }
        for (token, kv) in tokens.iter().zip(placed) {
            if let Some((block, offset)) = token.kept {
                self.pool.insert((layer, block, offset), kv);
            }
        }
    }

    /// Returns a head after its norm: the first, of q, or the second, of k.
    fn normed(&self, head: &[f32], which: usize) -> Vec<f64> {
        match &self.norms {
            Some(norms) => naive::rms_norm(&wide(head), &wide(&norms[which]), f64::from(EPS)),
            None => wide(head),
        }
    }

    fn head(&self, head: &[f32], which: usize, position: usize) -> Vec<f64> {
        let head = self.normed(head, which);
        match self.inv_freq.is_empty() {
            true => head,
            false => naive::rotate(&head, position, &self.inv_freq, SCALING),
        }
    }

    fn key_value(&self, token: &Token, layer: usize) -> KeyValue {
        let row = self.row(token, layer);
        let (k, v) =
            row[self.shape.out_width()..].split_at(self.shape.kv_heads * self.shape.head_dim);
        let heads = k.chunks_exact(self.shape.head_dim);
        let k = heads.flat_map(|head| self.head(head, 1, token.position));
        (k.collect(), wide(v))
    }

    /// Returns all query heads of a token, and the magnitudes that each element is made of.
    fn query(&self, token: &Token, layer: usize) -> (Vec<f64>, Vec<f64>) {
        let row = self.row(token, layer);
        let d = self.shape.head_dim;
        let (mut q, mut magnitudes) = (Vec::new(), Vec::new());
        for head in row[..self.shape.out_width()].chunks_exact(d) {
            q.extend(self.head(head, 0, token.position));
            let normed = self.normed(head, 0);
            let pair = |i: usize| normed[i % (d / 2)].abs() + normed[i % (d / 2) + d / 2].abs();
            magnitudes.extend((0..d).map(|i| f64::from(SCALING) * pair(i)));
        }
        (q, magnitudes)
    }

    /// Computes the output row of a token and the bound on its elements' errors.
    fn attend(
        &self,
        q: &[f64],
        token: &Token,
        layer: usize,
        placed: &[KeyValue],
    ) -> (Vec<f64>, f64) {
        let d = self.shape.head_dim;
        let group = self.shape.heads / self.shape.kv_heads;
        let window = self.window.map_or(usize::MAX, |window| window as usize);
        // The index of a source in either list is its position: whole prompts begin at 0.
        let sources = match self.shape.attention {
            Attention::Causal => token.context.clone(),
            Attention::Full => token.segment.clone().map(KvOrigin::Token).collect(),
        };
        let seen = sources.iter().enumerate();
        let seen = seen.filter(|(position, _)| token.position.abs_diff(*position) <= window);
        let context: Vec<(usize, &KeyValue)> = seen
            .map(|(position, source)| match *source {
                KvOrigin::Token(t) => (position, &placed[t]),
                // What no step wrote would be a malformed case.
                KvOrigin::Pool(block, offset) => (position, &self.pool[&(layer, block, offset)]),
            })
            .collect();
        let (heads, bias) = (self.shape.heads, wide(&self.bias));
        let mut out = Vec::new();
        for (j, q) in q.chunks_exact(d).enumerate() {
            let at = j / group * d;
            let score = |&(position, kv): &(usize, &KeyValue)| {
                let score = naive::dot(q, &kv.0[at..at + d]) * f64::from(self.shape.scale);
                let score = naive::soft_cap(score, self.shape.soft_cap);
                match bias.is_empty() {
                    true => score,
                    false => {
                        score + naive::distance_bias(&bias, heads, j, token.position, position)
                    }
                }
            };
            let scores: Vec<f64> = context.iter().map(score).collect();
            let values: Vec<&[f64]> = context.iter().map(|(_, kv)| &kv.1[at..at + d]).collect();
            out.extend(naive::average(&scores, &values));
        }
        (out, self.bound(&context))
    }

    /// Returns the bound on the errors of a row of outputs.
    fn bound(&self, context: &[(usize, &KeyValue)]) -> f64 {
        if self.shape.attention == Attention::Full {
            // Weights are off by the rounding of scores; values are at most 2.
            return 2.0 * (64.0 * super::SUM + self.precision.stored(4.0));
        }
        let values = context.iter().flat_map(|(_, kv)| &kv.1);
        let largest = values.fold(0.0, |m: f64, v| m.max(v.abs()));
        let relative = match self.precision {
            Precision::F32 => OUTPUT_F32,
            Precision::Bf16 => OUTPUT_BF16,
        };
        relative * largest
    }
}

/// A device's results of one layer: rows of rotated q and of outputs.
#[derive(Default)]
struct Got {
    q: Vec<f32>,
    out: Vec<f32>,
}

/// Runs 90 tokens alone, in chunks, as a tree beside others, over a cached prefix that ends
/// inside a block, and decoded at the end: the same bits every time.
fn same_bits<D: ConformanceDevice>(
    precision: Precision,
    (shape, sight): (AttnShape, Sight),
    open: &impl Fn(&Spec) -> D,
) {
    const LEN: u32 = 90;
    let table: Vec<BlockId> = [7, 2, 33, 5, 19, 11].map(BlockId).to_vec();
    let mut whole = Forest::default();
    whole.root(LEN);
    let ids = whole.batch.tokens.clone();
    let whole = vec![whole.oneshot()];
    let rename = |forest: &mut Forest, segments: &[usize]| {
        for &s in segments {
            let segment = forest.batch.segments[s].clone();
            for (at, p) in segment.tokens.clone().zip(segment.context_len..) {
                forest.batch.tokens[at as usize] = ids[p as usize];
            }
        }
    };
    let mut tree = Forest::default();
    tree.root(30);
    let root = tree.root(21);
    let child = tree.child(root, 44);
    tree.child(root, 70);
    tree.child(child, LEN - 65);
    rename(&mut tree, &[1, 2, 4]);
    let mut prefix = Forest::default();
    prefix.kept_root(53, &table[..4]);
    rename(&mut prefix, &[0]);
    let mut rest = Forest::default();
    rest.root(2);
    rest.next_chunk(53, LEN - 54, &table[..4], &table[3..]);
    rename(&mut rest, &[1]);
    let mut last = decode(&[(LEN - 1, &table)]);
    last.rows[0].token = TokenSource::Known(ids[LEN as usize - 1]);
    let cached = vec![prefix.oneshot(), rest.oneshot(), ForwardBatch::Decode(last)];
    let outputs = |steps: &[ForwardBatch], chunk| {
        let name = format!("same bits, {shape:?}, {sight:?}");
        let run = LayerRun::new(precision, (shape, sight), name);
        let mut device = run.open(steps, chunk, open);
        let mut outputs = HashMap::new();
        for step in steps {
            let tokens = lay_out(step, BLOCK_SIZE);
            let got = run.device_step(&mut device, step, &tokens);
            for (layer, got) in got.iter().enumerate() {
                let rows = got.out.chunks_exact(shape.out_width());
                for (token, row) in tokens.iter().zip(rows) {
                    let bits: Vec<u32> = row.iter().map(|v| v.to_bits()).collect();
                    outputs.insert((layer, token.id, token.position), bits);
                }
            }
        }
        outputs
    };
    let expected = outputs(&whole, 4096);
    for (how, steps, chunk) in [
        ("in chunks", &whole, 16),
        ("as a tree", &vec![tree.oneshot()], 4096),
        ("cached and decoded", &cached, 4096),
    ] {
        let got = outputs(steps, chunk);
        for (p, &id) in ids.iter().enumerate() {
            for layer in 0..LAYERS {
                let key = (layer, id, p);
                assert!(
                    got[&key] == expected[&key],
                    "attention {how}, {shape:?}: layer {layer}, position {p} has other bits"
                );
            }
        }
    }
}
