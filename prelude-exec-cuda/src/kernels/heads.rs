//! Heads: `pool`, `classify`, `label_dots`, `label_logits` and `label_merge`.

use half::bf16;
use prelude_kernels::{
    DevicePtr,
    families::{
        ClassifyParams, LabelDotsParams, LabelLogitsParams, LabelMergeParams, PoolParams, PoolRow,
    },
};

use super::{
    int,
    launch::{Launcher, access},
};
use crate::{Error, memory::view::View};

/// Rows of the head that one block of `label_logits` reads.
const SLAB_ROWS: usize = 256;

/// Returns the number of slabs of a vocabulary.
pub(crate) const fn label_slabs(vocab: usize) -> usize {
    vocab.div_ceil(SLAB_ROWS)
}

/// Pools the vectors of rows. `rows`: `[1, R]`, which read `index`; `index`: `[1, _]`, rows of
/// `hidden`; `out`: `[R, H]`.
pub(crate) fn pool(
    launcher: &mut Launcher,
    rows: View<PoolRow>,
    index: View<i32>,
    hidden: View<bf16>,
    out: View<f32>,
) -> Result<(), Error> {
    const KERNEL: &str = "pool";
    rules! {
        KERNEL;
        out.rows() == rows.width() => "not a row of out for each row",
        out.width() == hidden.width() => "out and hidden differ in width",
    }
    let params = PoolParams {
        out: out.ptr(),
        out_stride: int(out.stride()),
        ..pool_params(rows, index, hidden)
    };
    let reads = [
        access("rows", rows),
        access("index", index),
        access("hidden", hidden),
    ];
    launcher.launch(&params.launch(), &params, &reads, &[access("out", out)])
}

/// Pools the vectors of rows that products follow: in bf16, and not scaled to length 1. `out`:
/// `[R, H]`.
pub(crate) fn pool_bf16(
    launcher: &mut Launcher,
    rows: View<PoolRow>,
    index: View<i32>,
    hidden: View<bf16>,
    out: View<bf16>,
) -> Result<(), Error> {
    const KERNEL: &str = "pool_bf16";
    rules! {
        KERNEL;
        out.rows() == rows.width() => "not a row of out for each row",
        out.width() == hidden.width() => "out and hidden differ in width",
    }
    let params = PoolParams {
        out: out.ptr(),
        out_stride: int(out.stride()),
        ..pool_params(rows, index, hidden)
    };
    let reads = [
        access("rows", rows),
        access("index", index),
        access("hidden", hidden),
    ];
    let writes = [access("out", out)];
    launcher.launch(&params.launch_bf16(), &params, &reads, &writes)
}

/// Parameters but for the output.
fn pool_params(rows: View<PoolRow>, index: View<i32>, hidden: View<bf16>) -> PoolParams {
    PoolParams {
        row: rows.ptr(),
        index: index.ptr(),
        hidden: hidden.ptr(),
        out: DevicePtr::NULL,
        live: DevicePtr::NULL,
        rows: int(rows.width()),
        width: int(hidden.width()),
        hidden_stride: int(hidden.stride()),
        out_stride: 0,
    }
}

/// Class logits. `index`: `[1, R]`, rows of `hidden`; `score`: `[labels, H]`, with a bias
/// `[1, labels]` if there is one; `out`: `[R, labels]`.
pub(crate) fn classify(
    launcher: &mut Launcher,
    index: View<i32>,
    hidden: View<bf16>,
    (score, bias): (View<bf16>, Option<View<bf16>>),
    out: View<f32>,
) -> Result<(), Error> {
    const KERNEL: &str = "classify";
    rules! {
        KERNEL;
        hidden.width() == score.width() => "hidden and score differ in width",
        hidden.width().is_multiple_of(8) => "width is no multiple of 8",
        out.rows() == index.width() && out.width() == score.rows() && out.stride() == out.width()
            => "out has another shape",
        score.stride() == score.width() => "score has gaps",
        bias.is_none_or(|bias| bias.width() == score.rows()) => "the bias has another width",
    }
    let params = ClassifyParams {
        index: index.ptr(),
        hidden: hidden.ptr(),
        score: score.ptr(),
        bias: bias.map_or(DevicePtr::NULL, |bias| bias.ptr()),
        out: out.ptr(),
        live: DevicePtr::NULL,
        rows: int(out.rows()),
        labels: int(out.width()),
        width: int(hidden.width()),
        hidden_stride: int(hidden.stride()),
    };
    let mut reads = vec![
        access("index", index),
        access("hidden", hidden),
        access("score", score),
    ];
    reads.extend(bias.map(|bias| access("bias", bias)));
    launcher.launch(&params.launch(), &params, &reads, &[access("out", out)])
}

/// Computes single products, bounded by the cap of `table` if it is above 0. `rows`, of `hidden`, and
/// `ids`, of `table`: `[1, n]`; `out`: `[1, n]`.
pub(crate) fn label_dots(
    launcher: &mut Launcher,
    rows: View<u32>,
    ids: View<u32>,
    hidden: View<bf16>,
    (table, cap): (View<bf16>, f32),
    out: View<f32>,
) -> Result<(), Error> {
    const KERNEL: &str = "label_dots";
    rules! {
        KERNEL;
        hidden.width() == table.width() => "hidden and table differ in width",
        hidden.width().is_multiple_of(8) => "width is no multiple of 8",
        rows.width() == out.width() && ids.width() == out.width()
            => "not a row and an id for each product",
        table.stride() == table.width() => "the table has gaps",
    }
    let params = LabelDotsParams {
        row: rows.ptr(),
        id: ids.ptr(),
        hidden: hidden.ptr(),
        table: table.ptr(),
        out: out.ptr(),
        live: DevicePtr::NULL,
        products: int(out.width()),
        width: int(hidden.width()),
        hidden_stride: int(hidden.stride()),
        cap,
    };
    let reads = [
        access("rows", rows),
        access("ids", ids),
        access("hidden", hidden),
        access("table", table),
    ];
    launcher.launch(&params.launch(), &params, &reads, &[access("out", out)])
}

/// Logits of wanted pairs, and the log-sum-exp over the vocabulary of each row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LabelLogits {
    /// `[1, R]`: rows of `hidden`.
    pub(crate) index: View<u32>,
    /// `[1, pairs]`: row of `index`.
    pub(crate) pair_rows: View<u32>,
    /// `[1, pairs]`: row of `table`, ascending.
    pub(crate) pair_ids: View<u32>,
    /// `[1, pairs]`: column of `out`.
    pub(crate) pair_outs: View<u32>,
    pub(crate) hidden: View<bf16>,
    /// Bound of the logits, or 0.
    pub(crate) cap: f32,
    pub(crate) table: View<bf16>,
    /// `[1, pairs]`.
    pub(crate) out: View<f32>,
    /// `[slabs, R · 2]`.
    pub(crate) partial: View<f32>,
    /// `[1, R]`.
    pub(crate) log_sum_exp: View<f32>,
}

impl LabelLogits {
    pub(crate) fn launch(&self, launcher: &mut Launcher) -> Result<(), Error> {
        const KERNEL: &str = "label_logits";
        let (hidden, table) = (self.hidden, self.table);
        let (rows, pairs) = (self.index.width(), self.out.width());
        let slabs = label_slabs(table.rows());
        rules! {
            KERNEL;
            hidden.width() == table.width() => "hidden and table differ in width",
            hidden.width().is_multiple_of(8) => "width is no multiple of 8",
            table.stride() == table.width() => "the table has gaps",
        }
        let lists = [self.pair_rows, self.pair_ids, self.pair_outs];
        rules! {
            KERNEL;
            lists.iter().all(|l| l.width() == pairs) => "lists differ in length",
            self.partial.rows() == slabs
                && self.partial.width() == 2 * rows
                && self.log_sum_exp.width() == rows
                => "sums of another shape",
        }
        let params = LabelLogitsParams {
            index: self.index.ptr(),
            hidden: hidden.ptr(),
            table: table.ptr(),
            pair_row: self.pair_rows.ptr(),
            pair_id: self.pair_ids.ptr(),
            pair_out: self.pair_outs.ptr(),
            out: self.out.ptr(),
            partial: self.partial.ptr(),
            live: DevicePtr::NULL,
            rows: int(rows),
            pairs: int(pairs),
            width: int(hidden.width()),
            vocab: int(table.rows()),
            hidden_stride: int(hidden.stride()),
            cap: self.cap,
        };
        let reads = [
            access("index", self.index),
            access("hidden", hidden),
            access("table", table),
            access("pair_rows", self.pair_rows),
            access("pair_ids", self.pair_ids),
            access("pair_outs", self.pair_outs),
        ];
        let writes = [access("out", self.out), access("partial", self.partial)];
        launcher.launch(&params.launch(), &params, &reads, &writes)?;
        let params = LabelMergeParams {
            partial: self.partial.ptr(),
            lse: self.log_sum_exp.ptr(),
            live: DevicePtr::NULL,
            rows: int(rows),
            slabs: int(slabs),
        };
        let reads = [access("partial", self.partial)];
        let writes = [access("lse", self.log_sum_exp)];
        launcher.launch(&params.launch(), &params, &reads, &writes)
    }
}
