//! Settings of the executor.

use std::path::PathBuf;

use prelude_core::{Attention, PassCapacity};
use prelude_kernels::families::{AttnDecodeParams, EXPERTS_MAX, EXPERTS_PER_TOKEN_MAX};
use prelude_models::{ExpertsConfig, ModelConfig, step::pass_capacity};
use serde::{Deserialize, Serialize};

use crate::Error;

/// Tokens of a tile of keys, and what `chunk_tokens` must divide into.
const TILE: u32 = 64;
/// Largest head that the attention kernels hold in registers.
const HEAD_DIM_MAX: usize = 256;
/// The same for attention with a number for each distance.
const BIASED_HEAD_DIM_MAX: usize = 128;
/// Elements that rows of e4m3 are multiples of: 16 bytes, what kernels and cuBLASLt read at once.
pub(crate) const FP8_ROW_MULTIPLE: usize = 16;
/// Rows and columns of a block of a matrix in e4m3 that has a scale.
pub(crate) const FP8_BLOCK: usize = prelude_kernels::families::FP8_BLOCK as usize;
/// Milliseconds of a slice of a pass: tens of times what its launches take, and no longer than a step
/// of many rows.
const SLICE_MS: u32 = 5;

/// Settings of a [`crate::CudaExecutor`]. Programs set the fields that serde skips from
/// settings of their own, or leave the measured default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CudaConfig {
    /// Number of the GPU, as the driver counts them.
    #[serde(skip)]
    pub device: u32,
    /// Folders in which NVIDIA's libraries are looked for before anywhere else. By default those
    /// of the variable `PRELUDE_CUDA_LIBS`.
    pub library_dirs: Vec<PathBuf>,
    /// Folders in which they are looked for when the system's loader does not find them: where
    /// a Python's site-packages or a toolkit has them. Such a folder may hold them itself or in `nvidia/cu13/lib`, `nvidia/cublas/lib`, `lib64`.
    #[serde(skip)]
    pub fallback_dirs: Vec<PathBuf>,
    /// Folder where kernels compiled at run time are kept. By default the user's cache folder;
    /// without one they are compiled at every start.
    pub cache_dir: Option<PathBuf>,
    /// Folder of compiled kernels, as `cargo xtask kernels build` writes it. By default the
    /// program's own images.
    pub image_dir: Option<PathBuf>,
    /// KV blocks. By default as many as `kv_bytes` holds.
    #[serde(skip)]
    pub num_blocks: Option<u32>,
    /// Bytes of KV blocks, if `num_blocks` is not given. By default all that is free after
    /// everything else, less `reserve_bytes`.
    #[serde(skip)]
    pub kv_bytes: Option<u64>,
    /// Bytes of host memory, locked at start, for KV blocks that the prefix cache evicts; default 0,
    /// none. A later prompt gets them back by a copy, which for a model of 4 billion parameters and
    /// more takes less time than to compute them.
    #[serde(skip)]
    pub host_bytes: u64,
    /// Bytes of GPU memory left to other programs if the KV blocks take the rest; default 1 GiB.
    /// Less keeps more prefixes, and fails if another program then needs the memory.
    pub reserve_bytes: u64,
    /// Token positions per KV block: 16, 32 or 64; default 16. Smaller shares prefixes finer.
    #[serde(skip)]
    pub block_size: u32,
    /// Most tokens of one step; default 8192. Memory for hidden states grows with it.
    #[serde(skip)]
    pub max_step_tokens: u32,
    /// Most tokens of all passes in slices that have begun; by default the longest sequence, 0 for
    /// none. Memory for hidden states and for one layer's keys and values is taken for them at start:
    /// 9 KiB a token in Qwen3-4B.
    #[serde(skip)]
    pub max_pass_tokens: Option<u32>,
    /// Tokens that a layer works on at once, a multiple of 64; default 4096. Memory for a layer's
    /// intermediates grows with it.
    #[serde(skip)]
    pub chunk_tokens: u32,
    /// Longest sequence in tokens. By default, and at most, what the model was made for. Memory
    /// for rotations grows with it.
    #[serde(skip)]
    pub max_context_len: Option<u32>,
    /// Rows of logits over the whole vocabulary held at once; default 256, 156 MB in Qwen3.
    #[serde(skip)]
    pub logits_rows_max: u32,
    /// Bytes of a step's metadata: ids, block tables, spans, tiles, sampling parameters; default
    /// 32 MiB, 8 million block-table entries. Taken twice, on the host and on the GPU. A step
    /// that needs more is refused; one-shot rows whose lists of labels, positions, past, biased,
    /// allowed and masked tokens do not fit are computed again in a step of fewer rows, and others
    /// fail alone.
    #[serde(skip)]
    pub metadata_bytes: u64,
    /// Bytes of a step's results; default 64 MiB. Taken twice, on the host and on the GPU. Rows
    /// that do not fit are computed again in a step of fewer rows. A row that asks for more than 64 of the likeliest tokens takes a
    /// whole row of logits, 0.6 MB in Qwen3. Beside it there is room for a vector, or for logits of
    /// classes, of each token of a step: 32 MiB for 8,192 tokens of a model 1,024 wide.
    #[serde(skip)]
    pub results_bytes: u64,
    /// Steps that may be with the GPU at once: 1 (default), or 2, so that it finds the next one when it ends
    /// one. A request that comes meanwhile waits for both. Host memory for metadata and results is
    /// taken once for each.
    pub pipeline_depth: u32,
    /// Steps of up to so many tokens are padded to one of a few shapes, whose launches are captured
    /// as CUDA graphs between steps; default 1024, 0 for none. Beyond, launching costs less than
    /// computing.
    pub graph_tokens: u32,
    /// Milliseconds at start for graphs of steps that will probably come: those of a token for each of
    /// up to 64 sequences, then those of one prompt; default 250. What is left is captured while the
    /// engine is idle. 0: shapes are captured after their first use alone.
    #[serde(skip)]
    pub graph_start_ms: u32,
    /// Milliseconds at start in which matrix products are measured, of shapes without a measured plan for
    /// this GPU; default 1500, 0 for none. The results are kept in `cache_dir`, so that the next start
    /// measures nothing. Other shapes run on the library's own guess, which is some percent slower.
    pub tune_budget_ms: u32,
    /// GPU memory that captured graphs may take; default 512 MiB, of what `reserve_bytes` leaves.
    /// The least recently used ones go first.
    #[serde(skip)]
    pub graph_bytes: u64,
    /// Milliseconds after which a GPU that has not ended a step counts as lost; default 10,000. The
    /// time that a very slow GPU would take for the step's work is added. 0 waits for ever, as a
    /// debugger needs.
    #[serde(skip)]
    pub step_limit_ms: u32,
    /// True if a row has equal bits in every batch, products included: one algorithm for every
    /// number of rows (default false). Products of many rows take about 1.6 times as long on an H200.
    pub deterministic: bool,
    /// True if products run by the kernel for Hopper (wgmma, tensor copies): in deterministic mode those
    /// of layers' matrices without biases, of every number of rows; else gates with the product before
    /// them, of many rows. Default false, and set by `gpu-check` alone: the kernel was emulated and has
    /// not run on a GPU yet. Refused on other GPUs than those of compute capability 9.0. Bits of answers
    /// are other than without it, and in deterministic mode the same in every batch.
    #[serde(skip)]
    pub hopper_products: bool,
    /// True if the matrices of layers are rounded to fp8 (e4m3, a scale for each row) when they are
    /// loaded, and the rows that they multiply in each step likewise; default false, since it changes
    /// answers. Half the memory of these matrices, and about 0.6 times the time of their products, those of
    /// experts not measured. For decoders, and GPUs of compute capability 8.9 and up. The embedding, the
    /// head, norms, the matrices that choose experts, keys and values stay bf16. Matrices that a checkpoint stores in fp8 with scales of blocks of
    /// 128 × 128 are not rounded again: they are multiplied as they are, with rows that are rounded 128
    /// elements at a time.
    #[serde(skip)]
    pub fp8: bool,
    /// True if products of many rows with matrices whose scales are of blocks run on cuBLASLt, on
    /// compute capability 9.0. Default false, and set by `gpu-check` alone: the order in which cuBLASLt
    /// reads scales is known from its documentation and has not been seen on a GPU yet.
    #[serde(skip)]
    pub fp8_blocks_by_library: bool,
    /// The kernel that computes attention of prompts. For measurements, and for what an emulation
    /// stands for.
    #[serde(skip)]
    pub prompt_attention: PromptAttention,
}

/// A kernel for attention of prompts. Bits of answers differ between the two, and are the same in every
/// batch by each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromptAttention {
    /// That of the GPU: on compute capability 9.0 `sm90_attn`, by wgmma and tensor copies, for models that
    /// it takes (causal, heads of 64 or 128 elements, no windows and bounds of scores), else
    /// `attn_varlen`. An emulation stands for an older GPU. Not the default before `sm90_attn` has run on
    /// a GPU as it is now.
    OfGpu,
    /// `attn_varlen` on every GPU.
    #[default]
    Varlen,
    /// `sm90_attn` for models that it takes. Refused on GPUs of other compute capabilities; an emulation
    /// stands for one of 9.0.
    Hopper,
}

impl Default for CudaConfig {
    fn default() -> Self {
        Self {
            device: 0,
            library_dirs: Vec::new(),
            fallback_dirs: Vec::new(),
            cache_dir: None,
            image_dir: None,
            num_blocks: None,
            kv_bytes: None,
            host_bytes: 0,
            reserve_bytes: 1 << 30,
            block_size: 16,
            max_step_tokens: 8192,
            max_pass_tokens: None,
            chunk_tokens: 4096,
            max_context_len: None,
            logits_rows_max: 256,
            metadata_bytes: 32 << 20,
            results_bytes: 64 << 20,
            pipeline_depth: 1,
            graph_tokens: 1024,
            graph_start_ms: 250,
            tune_budget_ms: 1500,
            graph_bytes: 512 << 20,
            step_limit_ms: 10_000,
            deterministic: false,
            hopper_products: false,
            fp8: false,
            fp8_blocks_by_library: false,
            prompt_attention: PromptAttention::Varlen,
        }
    }
}

impl CudaConfig {
    /// Refuses settings that no GPU could serve.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !matches!(self.block_size, 16 | 32 | 64) {
            return Err(Error::config("block_size", "must be 16, 32 or 64"));
        }
        if !self.chunk_tokens.is_multiple_of(TILE) || !(TILE..=1 << 16).contains(&self.chunk_tokens)
        {
            let what = format!("must be a multiple of {TILE} in {TILE}..={}", 1 << 16);
            return Err(Error::config("chunk_tokens", what));
        }
        if !matches!(self.pipeline_depth, 1 | 2) {
            return Err(Error::config("pipeline_depth", "must be 1 or 2"));
        }
        let counts = [
            ("max_step_tokens", u64::from(self.max_step_tokens), 1 << 22),
            ("logits_rows_max", u64::from(self.logits_rows_max), 4096),
            (
                "num_blocks",
                u64::from(self.num_blocks.unwrap_or(1)),
                1 << 31,
            ),
            // Offsets within them are 32-bit numbers of elements.
            ("metadata_bytes", self.metadata_bytes, 1 << 31),
            ("results_bytes", self.results_bytes, 1 << 31),
        ];
        for (field, value, max) in counts {
            if value == 0 || value > max {
                return Err(Error::config(field, format!("must be in 1..={max}")));
            }
        }
        // Slots of the pool are numbered in 31 bits, the trash block included.
        let blocks_max = i32::MAX as u32 / self.block_size - 1;
        if self.num_blocks.is_some_and(|blocks| blocks > blocks_max) {
            let what = format!("must be at most {blocks_max} with blocks of this size");
            return Err(Error::config("num_blocks", what));
        }
        Ok(())
    }

    /// Room for one pass of the longest sequence, or several shorter ones, if nothing else is said.
    pub(crate) fn passes(&self, model: &ModelConfig, max_context_len: u32) -> Option<PassCapacity> {
        let tokens = self.max_pass_tokens.unwrap_or(max_context_len);
        pass_capacity(model, tokens, SLICE_MS)
    }

    /// Returns the settings that a model leaves free. One whose attention sees whole prompts keeps no
    /// keys and values, on the GPU or on the host, is computed in no slices, and needs chunks that
    /// hold its longest prompt; an encoder has no logits over the vocabulary.
    pub(crate) fn for_model(&self, model: &ModelConfig) -> Self {
        let mut config = self.clone();
        if model.attention == Attention::Full {
            let longest = u32::try_from(model.max_position_embeddings).unwrap_or(u32::MAX);
            let longest = self.max_context_len.unwrap_or(longest);
            config.chunk_tokens = self.chunk_tokens.max(longest).min(self.max_step_tokens);
            config.num_blocks = Some(1);
            config.host_bytes = 0;
            config.max_pass_tokens = Some(0);
        }
        if model.encoder.is_some() {
            config.logits_rows_max = 1;
        }
        config
    }

    /// Refuses what the kernels cannot run of a model; gives its longest context.
    pub(crate) fn check_model(&self, model: &ModelConfig) -> Result<u32, Error> {
        if model.attention == Attention::Full && model.attn_shape().soft_cap.is_some() {
            let what = "bounds of scores where a token sees the whole text";
            return Err(Error::no_kernels(what));
        }
        let dim = model.head_dim;
        let encoder = model.encoder.as_ref();
        let most = match encoder.is_some_and(|encoder| encoder.relative_buckets > 0) {
            true => BIASED_HEAD_DIM_MAX,
            false => HEAD_DIM_MAX,
        };
        if dim > most || !dim.is_multiple_of(8) || dim == 0 {
            return Err(Error::Model(format!(
                "head_dim {dim} has no kernels: it must be a multiple of 8 and at most {most}"
            )));
        }
        let (heads, kv_heads) = (model.num_attention_heads, model.num_key_value_heads);
        if !heads.is_multiple_of(kv_heads) || heads / kv_heads > TILE as usize {
            return Err(Error::Model(format!(
                "{heads} heads over {kv_heads} key-value heads have no kernels: at most {TILE} \
                 may share one"
            )));
        }
        for (name, width) in [
            ("hidden_size", model.hidden_size),
            ("intermediate_size", model.intermediate_size),
        ] {
            if !width.is_multiple_of(8) {
                return Err(Error::Model(format!(
                    "{name} {width} has no kernels: it must be a multiple of 8"
                )));
            }
        }
        model.experts.as_ref().map_or(Ok(()), check_experts)?;
        if self.fp8 {
            check_fp8(model)?;
        }
        let made_for = u32::try_from(model.max_position_embeddings).unwrap_or(u32::MAX);
        match self.max_context_len {
            Some(asked) if asked == 0 || asked > made_for => Err(Error::config(
                "max_context_len",
                format!("must be in 1..={made_for}, what the model was made for"),
            )),
            asked => Ok(asked.unwrap_or(made_for)),
        }
    }
}

/// The widths of the matrices of a model's layers, those of experts included.
pub(crate) fn fp8_widths(model: &ModelConfig) -> Vec<(&'static str, usize)> {
    let heads = model.num_attention_heads * model.head_dim;
    let mut widths = vec![
        ("hidden_size", model.hidden_size),
        ("num_attention_heads · head_dim", heads),
    ];
    // A mixture may have no layer with one MLP.
    if (0..model.num_hidden_layers).any(|layer| model.experts_of(layer).is_none()) {
        widths.push(("intermediate_size", model.intermediate_size));
    }
    let experts = model.experts.as_ref();
    widths.extend(experts.map(|of| ("moe_intermediate_size", of.intermediate_size)));
    widths
}

/// Refuses models whose layers are not computed in fp8.
fn check_fp8(model: &ModelConfig) -> Result<(), Error> {
    let refused = |what: String| Err(Error::config("quantization", what));
    if model.encoder.is_some() {
        let what = "fp8 is for decoders: leave it out for this model";
        return refused(what.to_owned());
    }
    for (name, width) in fp8_widths(model) {
        if !width.is_multiple_of(FP8_ROW_MULTIPLE) {
            return refused(format!(
                "fp8 takes rows of a multiple of {FP8_ROW_MULTIPLE} elements, and {name} is {width}"
            ));
        }
    }
    Ok(())
}

/// Oldest compute capability that products of e4m3 are offered on: the first that has them in hardware.
const FP8_COMPUTE_MIN: (i32, i32) = (8, 9);

/// Refuses fp8 on GPUs that have no products of it.
pub(crate) fn check_fp8_device(config: &CudaConfig, has: (i32, i32)) -> Result<(), Error> {
    if config.fp8 && has < FP8_COMPUTE_MIN {
        let (major, minor) = has;
        let what = format!(
            "fp8 needs a GPU of compute capability 8.9 or higher, and this one has {major}.{minor}"
        );
        return Err(Error::config("quantization", what));
    }
    Ok(())
}

/// Compute capability of GPUs that have the instructions of kernels for Hopper.
pub(crate) const HOPPER: (i32, i32) = (9, 0);

/// Refuses kernels for Hopper on other GPUs, if they are asked for.
pub(crate) fn check_hopper_device(config: &CudaConfig, has: (i32, i32)) -> Result<(), Error> {
    let attention = config.prompt_attention == PromptAttention::Hopper;
    for (field, is_set) in [
        ("prompt_attention", attention),
        ("hopper_products", config.hopper_products),
    ] {
        if is_set && has != HOPPER {
            let (major, minor) = has;
            let what =
                format!("it is for compute capability 9.0, and this GPU has {major}.{minor}");
            return Err(Error::config(field, what));
        }
    }
    Ok(())
}

/// Refuses mixtures that the kernels do not take.
fn check_experts(experts: &ExpertsConfig) -> Result<(), Error> {
    let limits = [
        ("num_experts", experts.count, EXPERTS_MAX),
        (
            "num_experts_per_tok",
            experts.routing.per_token,
            EXPERTS_PER_TOKEN_MAX,
        ),
    ];
    for (name, value, most) in limits {
        if value > most as usize {
            return Err(Error::Model(format!(
                "{name} {value} has no kernels: it must be at most {most}"
            )));
        }
    }
    let width = experts.intermediate_size;
    if !width.is_multiple_of(8) {
        return Err(Error::Model(format!(
            "moe_intermediate_size {width} has no kernels: it must be a multiple of 8"
        )));
    }
    Ok(())
}

/// Refuses heads whose kernels take more shared memory than a block of the GPU can have.
pub(crate) fn check_shared_memory(model: &ModelConfig, has: u32) -> Result<(), Error> {
    let dim = model.head_dim;
    let takes = u32::try_from(dim)
        .ok()
        .and_then(AttnDecodeParams::shared_bytes);
    match takes {
        Some(takes) if takes > has => Err(Error::Model(format!(
            "head_dim {dim} takes {takes} bytes of shared memory in a block, and a block of this \
             GPU has at most {has}: GPUs of compute capability 8.0 and 9.0 have enough, the CPU \
             needs none"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl FnOnce(&mut CudaConfig), expected: Option<&str>) {
        let mut config = CudaConfig::default();
        change(&mut config);
        let field = match config.check() {
            Ok(()) => None,
            Err(Error::Config { field, .. }) => Some(field),
            Err(other) => panic!("{other}"),
        };
        assert_eq!(field, expected);
    }

    #[test]
    fn heads_without_room_in_shared_memory_are_refused() {
        let mut model = crate::testing::checkpoint("demo-lm").config().clone();
        // What blocks of sm_89 and sm_120, and of sm_80, can have.
        let (small, large) = (99 << 10, 163 << 10);
        for dim in [32, 64, 128] {
            model.head_dim = dim;
            check_shared_memory(&model, small).unwrap();
        }
        for dim in [136, 256] {
            model.head_dim = dim;
            check_shared_memory(&model, large).unwrap();
            let error = check_shared_memory(&model, small).unwrap_err();
            let Error::Model(what) = error else {
                panic!("{error}")
            };
            assert!(what.contains(&format!("head_dim {dim} takes 143616 bytes")));
        }
    }

    #[test]
    fn names_the_setting_out_of_range() {
        check(|_| (), None);
        check(|c| c.block_size = 8, Some("block_size"));
        check(|c| c.pipeline_depth = 3, Some("pipeline_depth"));
        check(|c| c.chunk_tokens = 100, Some("chunk_tokens"));
        check(|c| c.chunk_tokens = 0, Some("chunk_tokens"));
        check(|c| c.max_step_tokens = 0, Some("max_step_tokens"));
        check(|c| c.num_blocks = Some(1 << 28), Some("num_blocks"));
        check(|c| c.num_blocks = Some((1 << 27) - 2), None);
    }

    /// Encoders and decoders that look ahead, by the size of their heads.
    #[test]
    fn heads_without_kernels_are_refused() {
        let refused = |name: &str, dim| {
            let checkpoint = crate::testing::checkpoint(name);
            let mut model = checkpoint.config().clone();
            model.head_dim = dim;
            let checked = CudaConfig::default().check_model(&model);
            checked.err().map(|error| error.to_string())
        };
        for (name, largest) in [
            ("rand-bert-rank", 256),
            ("rand-modernbert-rank", 256),
            ("rand-mpnet-cls2", 128),
            ("rand-qwen2-whole", 256),
        ] {
            assert_eq!(refused(name, 64), None, "{name}");
            assert_eq!(refused(name, largest), None, "{name}");
            for none in [12, largest + 8] {
                let error = refused(name, none).unwrap();
                let says = format!("head_dim {none} has no kernels");
                assert!(error.contains(&says), "{name}: {error}");
            }
        }
    }

    #[test]
    fn bounds_of_scores_over_whole_texts_are_refused() {
        let checkpoint = crate::testing::checkpoint("rand-gemma2");
        let mut model = checkpoint.config().clone();
        let config = CudaConfig::default();
        config.check_model(&model).unwrap();
        model.attention = Attention::Full;
        let error = config.check_model(&model).unwrap_err();
        assert!(matches!(error, Error::NoKernels { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("bounds of scores") && text.contains("--device cpu"),
            "{text}"
        );
    }

    /// A chunk holds the longest text, as far as a step does.
    #[test]
    fn settings_follow_the_model() {
        let config = CudaConfig {
            chunk_tokens: 64,
            max_step_tokens: 128,
            host_bytes: 1 << 30,
            kv_bytes: Some(1 << 30),
            ..CudaConfig::default()
        };
        let decoder = crate::testing::checkpoint("demo-lm");
        assert_eq!(config.for_model(decoder.config()), config);
        let encoder = crate::testing::checkpoint("rand-bert-rank");
        let of_encoder = config.for_model(encoder.config());
        let CudaConfig {
            chunk_tokens,
            num_blocks,
            host_bytes,
            max_pass_tokens,
            logits_rows_max,
            ..
        } = of_encoder;
        assert_eq!(
            (
                chunk_tokens,
                num_blocks,
                host_bytes,
                max_pass_tokens,
                logits_rows_max
            ),
            (128, Some(1), 0, Some(0), 1)
        );
        let all = CudaConfig {
            max_step_tokens: 8192,
            ..config
        };
        assert_eq!(all.for_model(encoder.config()).chunk_tokens, 160);
    }

    #[test]
    fn mixtures_beyond_the_kernels_limits_are_refused() {
        let model = crate::testing::checkpoint("rand-qwen3-moe")
            .config()
            .clone();
        CudaConfig::default().check_model(&model).unwrap();
        let refused = |change: fn(&mut ExpertsConfig), what: &str| {
            let mut model = model.clone();
            change(model.experts.as_mut().unwrap());
            let refused = CudaConfig::default().check_model(&model);
            let Err(Error::Model(why)) = refused else {
                panic!("{refused:?}")
            };
            assert!(why.contains(what), "{why}");
        };
        refused(|of| of.count = 5000, "num_experts 5000");
        refused(|of| of.routing.per_token = 33, "num_experts_per_tok 33");
        refused(|of| of.intermediate_size = 44, "moe_intermediate_size 44");
    }

    #[test]
    fn fp8_is_refused_where_it_is_not_computed() {
        let config = CudaConfig {
            fp8: true,
            ..CudaConfig::default()
        };
        let check = |name: &str, change: fn(&mut ModelConfig), what: Option<&str>| {
            let mut model = crate::testing::checkpoint(name).config().clone();
            change(&mut model);
            let refused = config.check_model(&model).err().map(|e| e.to_string());
            match (&refused, what) {
                (None, None) => {}
                (Some(why), Some(what)) => assert!(why.contains(what), "{why}"),
                _ => panic!("{name}: {refused:?}"),
            }
        };
        check("demo-lm", |_| (), None);
        check("demo-lm", |m| m.hidden_size = 72, Some("hidden_size is 72"));
        check("rand-gemma2", |_| (), Some("intermediate_size is 88"));
        check("rand-bert-rank", |_| (), Some("fp8 is for decoders"));
        let name = crate::testing::FP8_MIXTURE;
        check(name, |_| (), None);
        let narrow = |m: &mut ModelConfig| {
            m.experts.as_mut().unwrap().intermediate_size = 40;
        };
        check(name, narrow, Some("moe_intermediate_size is 40"));
        // No layer of it is as wide.
        let no_mlp = |m: &mut ModelConfig| {
            m.intermediate_size = 88;
            m.experts.as_mut().unwrap().layers.fill(true);
        };
        check(name, no_mlp, None);
        check("rand-qwen3-moe", |_| (), Some("intermediate_size is 88"));
        for (has, allowed) in [
            ((8, 0), false),
            ((8, 6), false),
            ((8, 9), true),
            ((9, 0), true),
        ] {
            assert_eq!(check_fp8_device(&config, has).is_ok(), allowed, "{has:?}");
        }
        check_fp8_device(&CudaConfig::default(), (8, 0)).unwrap();
    }

    #[test]
    fn the_kernel_for_hopper_is_refused_elsewhere() {
        let config = CudaConfig {
            prompt_attention: PromptAttention::Hopper,
            ..CudaConfig::default()
        };
        for (has, allowed) in [((8, 9), false), ((9, 0), true), ((10, 0), false)] {
            assert_eq!(
                check_hopper_device(&config, has).is_ok(),
                allowed,
                "{has:?}"
            );
        }
        check_hopper_device(&CudaConfig::default(), (8, 0)).unwrap();
        let config = CudaConfig {
            hopper_products: true,
            ..CudaConfig::default()
        };
        let refused = check_hopper_device(&config, (8, 0)).unwrap_err();
        assert!(refused.to_string().contains("hopper_products"), "{refused}");
    }

    #[test]
    fn reads_and_refuses_documents() {
        let read = serde_json::from_str::<CudaConfig>;
        assert!(read(r#"{"deterministic": true}"#).unwrap().deterministic);
        assert_eq!(read("{}").unwrap(), CudaConfig::default());
        assert!(read(r#"{"devise": 1}"#).is_err());
    }
}
