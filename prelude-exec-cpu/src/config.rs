//! Settings of the executor, and the choices that follow from them.

use std::path::PathBuf;

use prelude_core::Attention;
use prelude_models::{DType, ModelConfig};
use serde::{Deserialize, Serialize};

use crate::{
    Error,
    kernels::{Backend, CpuDtype, InputForm, Isa, Supported},
};

/// Rounding of a model's weights when they are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Quantization {
    /// All matrices that inputs are multiplied with, the output head and an embedding table that is
    /// also the head among them, in int8 with an f32 scale per output: half the bytes of bf16, so
    /// about half the time of a decode step. The inputs of products are rounded to int8 as well,
    /// with a scale per row and 128 inputs; sums are of integers within such a group and of f32
    /// across groups, with the same bits on every path. The README says what this costs in accuracy.
    Int8,
    /// The matrices of a decoder's layers, those of experts too, in fp8 (e4m3) with an f32 scale per
    /// output, and their inputs with one per row: the arithmetic that GPUs have, to see here what it does
    /// to answers. It saves neither memory nor time on the CPU. The embedding, the head and the matrices
    /// that choose experts are not rounded; encoders are refused. Matrices that a checkpoint stores in fp8 with a scale for each block of 128 ×
    /// 128 are multiplied as they are, with a scale for 128 inputs of a row.
    Fp8,
}

/// Settings of a [`crate::CpuExecutor`]. Programs set the fields that serde skips from settings of
/// their own, or leave the measured default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CpuConfig {
    /// Arithmetic. By default bf16 if the checkpoint is bf16, or float16 and the instructions multiply
    /// bf16; else f32, which takes twice the memory and time.
    pub dtype: Option<CpuDtype>,
    /// Rounding of the weights; none by default, since it changes answers. `dtype`
    /// then says how keys, values and tables are stored and how attention computes.
    pub quantization: Option<Quantization>,
    /// Instructions to use. By default [`Isa::best`]; others are slower, and give the
    /// bits that a lesser machine gives.
    pub path: Option<Isa>,
    /// The folder of packed weights; none by default. The first start with a model writes them there
    /// beside serving, as many bytes as the weights take in memory; later starts map the file, which
    /// takes milliseconds, and steps take up to 5 % longer, since a mapped file has small pages. The
    /// folder keeps at most 64 GiB. A user who can write to the folder decides the answers, and its
    /// files must not be truncated or rewritten while they are mapped: the folder should belong to
    /// the user that runs the program.
    pub packed_dir: Option<PathBuf>,
    /// KV blocks. By default as many as `kv_bytes` holds.
    #[serde(skip)]
    pub num_blocks: Option<u32>,
    /// Bytes of KV blocks, if `num_blocks` is not given. By default 1 GiB, but at most 64 times
    /// the longest sequence. Pages are taken from the system when first written.
    #[serde(skip)]
    pub kv_bytes: Option<u64>,
    /// Bytes of host memory for KV blocks that the prefix cache evicts; only 0, the default, is valid
    /// here, since the KV blocks themselves are in host memory.
    #[serde(skip)]
    pub host_bytes: u64,
    /// Token positions per KV block, a power of two; default 16. Smaller shares prefixes finer,
    /// larger keeps tables shorter.
    #[serde(skip)]
    pub block_size: u32,
    /// Most tokens of one step; default 8192. Memory for hidden states and for one layer's keys
    /// and values grows with it.
    pub max_step_tokens: u32,
    /// Most tokens of all passes in slices that have begun; by default the longest sequence, 0 for
    /// none. Memory for hidden states and for one layer's keys and values grows with it, and is
    /// taken when a pass begins.
    #[serde(skip)]
    pub max_pass_tokens: Option<u32>,
    /// Tokens that a layer works on at once; default 512. More gives products a little more
    /// speed and takes more cache and memory.
    #[serde(skip)]
    pub chunk_tokens: u32,
    /// Longest sequence in tokens. By default, and at most, what the model was made for. Memory
    /// for rotations grows with it.
    #[serde(skip)]
    pub max_context_len: Option<u32>,
    /// Refuse to load a model whose planned memory exceeds this. By default what the system
    /// says is available when the model is loaded (Linux: `MemAvailable` of `/proc/meminfo`, or
    /// the control group's limit if that is lower); unlimited where it does not say.
    pub memory_limit_bytes: Option<u64>,
}

impl Default for CpuConfig {
    fn default() -> Self {
        Self {
            dtype: None,
            quantization: None,
            path: None,
            packed_dir: None,
            num_blocks: None,
            kv_bytes: None,
            host_bytes: 0,
            block_size: 16,
            max_step_tokens: 8192,
            max_pass_tokens: None,
            chunk_tokens: 512,
            max_context_len: None,
            memory_limit_bytes: None,
        }
    }
}

/// Returns the arithmetic for weights that were saved in a type. Those in float16 take half the memory
/// and time in bf16 where there are units for it, and gain nothing elsewhere.
fn default_dtype(saved: Option<DType>, isa: Supported) -> CpuDtype {
    let has_units = InputForm::of(isa, CpuDtype::Bf16) != InputForm::F32;
    match saved {
        Some(DType::Bf16) => CpuDtype::Bf16,
        Some(DType::F16) if has_units => CpuDtype::Bf16,
        Some(DType::F16 | DType::F32) | None => CpuDtype::F32,
    }
}

impl CpuConfig {
    /// The arithmetic and the code for a model.
    pub(crate) fn choose(&self, model: &ModelConfig) -> Result<(CpuDtype, Backend), Error> {
        if self.quantization == Some(Quantization::Fp8) && model.encoder.is_some() {
            let what = "is fp8, which is for decoders: leave it out for this model";
            return Err(Error::config("quantization", what));
        }
        let isa = self.path.unwrap_or_else(Isa::best);
        let isa = Supported::new(isa).ok_or(Error::Instructions { isa: isa.as_str() })?;
        let dtype = self
            .dtype
            .unwrap_or_else(|| default_dtype(model.dtype, isa));
        let act = InputForm::of(isa, dtype);
        Ok((dtype, Backend { isa, act }))
    }

    /// Returns the settings that a model leaves free. One whose attention sees whole prompts keeps no
    /// keys and values, is computed in no slices, and needs chunks that hold its longest prompt.
    pub(crate) fn for_model(&self, model: &ModelConfig) -> Self {
        let mut config = self.clone();
        if model.attention == Attention::Full {
            let longest = u32::try_from(model.max_position_embeddings).unwrap_or(u32::MAX);
            let longest = self.max_context_len.unwrap_or(longest);
            config.chunk_tokens = self.chunk_tokens.max(longest).min(self.max_step_tokens);
            config.num_blocks = Some(1);
            config.max_pass_tokens = Some(0);
        }
        config
    }

    /// Refuses values that no machine could serve.
    pub(crate) fn check(&self, model: &ModelConfig) -> Result<(), Error> {
        if !self.block_size.is_power_of_two() || self.block_size > 1024 {
            return Err(Error::config(
                "block_size",
                "must be a power of two and at most 1024",
            ));
        }
        if self.host_bytes > 0 {
            let what = "must be 0 on the CPU: all KV blocks are in host memory already; raise \
                        `kv_bytes` to keep more prefixes";
            return Err(Error::config("host_bytes", what));
        }
        let counts = [
            ("max_step_tokens", self.max_step_tokens, 1 << 22),
            ("chunk_tokens", self.chunk_tokens, 1 << 16),
            ("num_blocks", self.num_blocks.unwrap_or(1), u32::MAX),
        ];
        for (field, value, max) in counts {
            if value == 0 || value > max {
                return Err(Error::config(field, format!("must be in 1..={max}")));
            }
        }
        // Slots of the pool are numbered in 32 bits.
        let blocks_max = u32::MAX / self.block_size - 1;
        if self.num_blocks.is_some_and(|blocks| blocks > blocks_max) {
            let what = format!("must be at most {blocks_max} with blocks of this size");
            return Err(Error::config("num_blocks", what));
        }
        let made_for = model.max_position_embeddings;
        if let Some(asked) = self.max_context_len
            && (asked == 0 || asked as usize > made_for)
        {
            return Err(Error::config(
                "max_context_len",
                format!("must be in 1..={made_for}, what the model was made for"),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_arithmetic_follows_the_checkpoint_and_the_units() {
        let default = |saved, isa| {
            let isa = Supported::new(isa)?;
            Some(default_dtype(saved, isa))
        };
        for isa in Isa::ALL {
            let has_units = matches!(isa, Isa::AmxBf16 | Isa::Avx512Bf16 | Isa::NeonBf16);
            let of_half = if has_units {
                CpuDtype::Bf16
            } else {
                CpuDtype::F32
            };
            for (saved, expected) in [
                (Some(DType::Bf16), CpuDtype::Bf16),
                (Some(DType::F16), of_half),
                (Some(DType::F32), CpuDtype::F32),
                (None, CpuDtype::F32),
            ] {
                let found = default(saved, isa).unwrap_or(expected);
                assert_eq!(found, expected, "{saved:?} {isa:?}");
            }
        }
    }

    #[test]
    fn reads_and_refuses_documents() {
        let read = serde_json::from_str::<CpuConfig>;
        let config = read(r#"{"dtype": "bf16", "path": "avx2"}"#).unwrap();
        assert_eq!(config.dtype, Some(CpuDtype::Bf16));
        assert_eq!(config.path, Some(Isa::Avx2));
        assert_eq!(config.quantization, None);
        let fp8 = read(r#"{"quantization": "fp8"}"#).unwrap();
        for (name, refused) in [
            ("demo-lm", false),
            ("rand-bert-embed", true),
            ("rand-qwen3-moe", false),
        ] {
            let chosen = fp8.choose(crate::testing::checkpoint(name).config());
            let error = chosen.map_or_else(|error| error.to_string(), |_| String::new());
            let found = error.contains("is for decoders");
            assert_eq!(found, refused, "{name}: {error}");
        }
        let int8 = read(r#"{"quantization": "int8"}"#).unwrap();
        assert_eq!(int8.quantization, Some(Quantization::Int8));
        assert!(read(r#"{"quantization": "int4"}"#).is_err());
        assert_eq!(config.block_size, 16);
        assert_eq!(read("{}").unwrap(), CpuConfig::default());
        assert!(read(r#"{"dtypo": "bf16"}"#).is_err());
    }
}
