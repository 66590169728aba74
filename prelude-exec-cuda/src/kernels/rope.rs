//! `qk_norm_rope_store`: normalise q and k, rotate them, place K and V.

use half::bf16;
use prelude_kernels::{DevicePtr, families::QkNormRopeStoreParams};
use prelude_models::AttnShape;

use super::{
    int,
    launch::{Launcher, access},
};
use crate::{Error, memory::view::View};

/// Arguments of one launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QkNormRopeStore {
    pub(crate) shape: AttnShape,
    /// `[n, (Hq + 2 Hkv) · D]`; q and k are rewritten in place.
    pub(crate) qkv: View<bf16>,
    /// `[1, n]`.
    pub(crate) positions: View<i32>,
    /// `[1, n]`, -1 for tokens that are not kept.
    pub(crate) slots: View<i32>,
    /// `[positions, D]`: D/2 cosines, then D/2 sines.
    pub(crate) rope: View<f32>,
    /// Weights of the norms of q and of k, `[1, D]` each, if heads are normalised.
    pub(crate) norms: Option<[View<bf16>; 2]>,
    pub(crate) eps: f32,
    /// Added to the weights of both norms.
    pub(crate) offset: f32,
    /// The layer's keys and values in the pool, a row for each block; none if no token is kept.
    pub(crate) pages: Option<(View<bf16>, View<bf16>)>,
    pub(crate) block_size: usize,
    /// Second copies of K and V of these rows, for steps of several chunks: `[n, Hkv · D]` each.
    pub(crate) step: Option<(View<bf16>, View<bf16>)>,
}

impl QkNormRopeStore {
    pub(crate) fn launch(&self, launcher: &mut Launcher) -> Result<(), Error> {
        const KERNEL: &str = "qk_norm_rope_store";
        let Self { shape, qkv, .. } = *self;
        let (n, dim) = (qkv.rows(), shape.head_dim);
        let kv_width = shape.kv_heads * dim;
        rules! {
            KERNEL;
            qkv.width() == shape.qkv_width() => "qkv has another width",
            dim.is_multiple_of(8) && dim <= 256 => "no such head_dim",
            self.positions.width() >= n && self.slots.width() >= n
                => "fewer positions or slots than rows",
            self.rope.width() == dim => "rotations of another width",
            self.norms.iter().flatten().all(|norm| norm.width() == dim)
                => "norms of another width",
        }
        let mut writes = vec![access("qkv", qkv)];
        if let Some((k, v)) = self.pages {
            let page = self.block_size * kv_width;
            rules! {
                KERNEL;
                k.width() == page && v.width() == page => "pages of another shape",
            }
            writes.extend([access("k_pages", k), access("v_pages", v)]);
        }
        let (k_pages, v_pages) = self.pages.unzip();
        if let Some((k, v)) = self.step {
            rules! {
                KERNEL;
                k.rows() == n && v.rows() == n && k.width() == kv_width && v.width() == kv_width
                    => "the step's K/V have another shape",
                k.stride() == v.stride() => "K and V differ in stride",
            }
            writes.extend([access("k_step", k), access("v_step", v)]);
        }
        let (k_step, v_step) = self.step.unzip();
        let mut reads = vec![
            access("positions", self.positions),
            access("slots", self.slots),
            access("rope", self.rope),
        ];
        if let Some([q, k]) = self.norms {
            reads.extend([access("q_norm", q), access("k_norm", k)]);
        }
        let norm_ptr = |which: usize| self.norms.map_or(DevicePtr::NULL, |n| n[which].ptr());
        let params = QkNormRopeStoreParams {
            qkv: qkv.ptr(),
            positions: self.positions.ptr(),
            slots: self.slots.ptr(),
            rope: self.rope.ptr(),
            q_norm: norm_ptr(0),
            k_norm: norm_ptr(1),
            k_pages: k_pages.map_or(DevicePtr::NULL, |k| k.ptr()),
            v_pages: v_pages.map_or(DevicePtr::NULL, |v| v.ptr()),
            k_step: k_step.map_or(DevicePtr::NULL, |k| k.ptr()),
            v_step: v_step.map_or(DevicePtr::NULL, |v| v.ptr()),
            live: DevicePtr::NULL,
            rows: int(n),
            heads: int(shape.heads),
            kv_heads: int(shape.kv_heads),
            head_dim: int(dim),
            qkv_stride: int(qkv.stride()),
            block_size: int(self.block_size),
            step_first: 0,
            step_stride: int(k_step.map_or(0, |k| k.stride())),
            rope_positions: int(self.rope.rows()),
            eps: self.eps,
            offset: self.offset,
            reserved: 0,
        };
        launcher.launch(&params.launch(), &params, &reads, &writes)
    }
}
