//! Kernels on full rows of logits: `cap_logits`, `adjust`, `sample`, `prompt_logprobs`.

use prelude_kernels::{
    DevicePtr,
    families::{
        AdjustParams, AdjustRow, ArgmaxParams, CapLogitsParams, LogprobRow, LogprobsParams,
        SampleParams, SampleRow,
    },
};

use super::{
    int,
    launch::{Launcher, access},
};
use crate::{Error, memory::view::View};

/// Penalties, bias and masks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Adjust {
    /// `[1, R]`: each reads a row of `logits` and writes a row of `out`.
    pub(crate) rows: View<AdjustRow>,
    /// `[1, _]`: pairs of an id and its occurrences in the output.
    pub(crate) seen: View<u32>,
    /// `[1, _]`: pairs of an id and the bits of an f32.
    pub(crate) bias: View<u32>,
    /// `[1, _]`: ids.
    pub(crate) allowed: View<u32>,
    /// `[1, _]`: ids.
    pub(crate) masked: View<u32>,
    pub(crate) logits: View<f32>,
    pub(crate) out: View<f32>,
    pub(crate) vocab: usize,
}

impl Adjust {
    pub(crate) fn launch(&self, launcher: &mut Launcher) -> Result<(), Error> {
        rules! {
            "adjust";
            self.logits.width() >= self.vocab => "logits are too narrow",
            self.out.rows() >= self.rows.width() => "no row of out for each row",
        }
        let params = AdjustParams {
            row: self.rows.ptr(),
            seen: self.seen.ptr(),
            bias: self.bias.ptr(),
            allowed: self.allowed.ptr(),
            masked: self.masked.ptr(),
            rows: int(self.rows.width()),
            vocab: int(self.vocab),
        };
        let reads = [
            access("rows", self.rows),
            access("seen", self.seen),
            access("bias", self.bias),
            access("allowed", self.allowed),
            access("masked", self.masked),
            access("logits", self.logits),
        ];
        launcher.launch(
            &params.launch(),
            &params,
            &reads,
            &[access("out", self.out)],
        )
    }
}

/// Finds the id of the largest number in each row of `logits`, ties to the smaller id. `ids`,
/// `status`: `[1, rows]`.
pub(crate) fn argmax(
    launcher: &mut Launcher,
    logits: View<f32>,
    ids: View<i32>,
    status: View<u32>,
) -> Result<(), Error> {
    let rows = logits.rows();
    rules! {
        "argmax";
        ids.width() == rows && status.width() == rows => "not an id and a status for each row",
    }
    let params = ArgmaxParams {
        logits: logits.ptr(),
        ids: ids.ptr(),
        status: status.ptr(),
        live: DevicePtr::NULL,
        rows: int(rows),
        vocab: int(logits.width()),
        logits_stride: int(logits.stride()),
        reserved: 0,
    };
    let reads = [access("logits", logits)];
    let writes = [access("ids", ids), access("status", status)];
    launcher.launch(&params.launch(), &params, &reads, &writes)
}

/// Choosing tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// `[1, R]`: each reads a row of `logits` or of `adjusted`.
    pub(crate) rows: View<SampleRow>,
    pub(crate) logits: View<f32>,
    pub(crate) adjusted: View<f32>,
    /// `[1, draws]`.
    pub(crate) ids: View<i32>,
    /// `[1, R]`.
    pub(crate) status: View<u32>,
    pub(crate) vocab: usize,
}

impl Sample {
    pub(crate) fn launch(&self, launcher: &mut Launcher) -> Result<(), Error> {
        rules! {
            "sample";
            self.logits.width() >= self.vocab => "logits are too narrow",
            self.status.width() == self.rows.width() => "not a status for each row",
        }
        let params = SampleParams {
            row: self.rows.ptr(),
            ids: self.ids.ptr(),
            status: self.status.ptr(),
            live: DevicePtr::NULL,
            rows: int(self.rows.width()),
            vocab: int(self.vocab),
        };
        let reads = [
            access("rows", self.rows),
            access("logits", self.logits),
            access("adjusted", self.adjusted),
        ];
        let writes = [access("ids", self.ids), access("status", self.status)];
        launcher.launch(&params.launch(), &params, &reads, &writes)
    }
}

/// Scores of tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Logprobs {
    /// `[1, R]`: each reads a row of `logits`.
    pub(crate) rows: View<LogprobRow>,
    /// `[1, n]`.
    pub(crate) targets: View<i32>,
    pub(crate) logits: View<f32>,
    /// `[1, n]`, as the targets.
    pub(crate) lp: View<f32>,
    /// `[1, n]`.
    pub(crate) rank: View<u32>,
    /// `[1, _]`: the likeliest tokens of all rows.
    pub(crate) top_id: View<i32>,
    /// `[1, _]`: log-probabilities of `top_id`.
    pub(crate) top_lp: View<f32>,
    /// `[1, R]`.
    pub(crate) log_sum_exp: View<f32>,
    pub(crate) vocab: usize,
}

/// Launches [`Logprobs`].
pub(crate) fn logprobs(launcher: &mut Launcher, on: Logprobs) -> Result<(), Error> {
    rules! {
        "prompt_logprobs";
        on.logits.width() >= on.vocab => "logits are too narrow",
        on.log_sum_exp.width() == on.rows.width() && on.lp.width() == on.rank.width()
            => "results of another shape",
    }
    let params = LogprobsParams {
        row: on.rows.ptr(),
        target: on.targets.ptr(),
        lp: on.lp.ptr(),
        rank: on.rank.ptr(),
        top_id: on.top_id.ptr(),
        top_lp: on.top_lp.ptr(),
        lse: on.log_sum_exp.ptr(),
        live: DevicePtr::NULL,
        rows: int(on.rows.width()),
        vocab: int(on.vocab),
    };
    let reads = [
        access("rows", on.rows),
        access("targets", on.targets),
        access("logits", on.logits),
    ];
    let writes = [
        access("lp", on.lp),
        access("rank", on.rank),
        access("top_id", on.top_id),
        access("top_lp", on.top_lp),
        access("lse", on.log_sum_exp),
    ];
    launcher.launch(&params.launch(), &params, &reads, &writes)
}

/// `x = cap · tanh(x / cap)`, in place. `x`: rows of logits.
pub(crate) fn cap_logits(launcher: &mut Launcher, x: View<f32>, cap: f32) -> Result<(), Error> {
    const KERNEL: &str = "cap_logits";
    rules! {
        KERNEL;
        cap > 0.0 => "no bound",
    }
    let params = CapLogitsParams {
        x: x.ptr(),
        live: DevicePtr::NULL,
        rows: int(x.rows()),
        width: int(x.width()),
        stride: int(x.stride()),
        cap,
    };
    launcher.launch(&params.launch(), &params, &[], &[access("x", x)])
}
