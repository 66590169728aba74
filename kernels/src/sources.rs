//! The device code, embedded: releases carry it, so that NVRTC can compile what no image fits.

use sha2::{Digest, Sha256};

/// A header, by the name under which sources include it.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// The name in `#include "prelude/dev.h"`.
    pub name: &'static str,
    /// The header's text.
    pub text: &'static str,
}

/// A file of kernels.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Name of the source file without `.cu`, and of its images.
    pub name: &'static str,
    /// Text of the source file.
    pub source: &'static str,
    /// The names of the family's kernels.
    pub kernels: &'static [&'static str],
}

macro_rules! headers {
    ($($name:literal),* $(,)?) => {
        /// The headers that sources include.
        pub const HEADERS: &[Header] = &[
            $(Header {
                name: concat!("prelude/", $name),
                text: include_str!(concat!("../include/prelude/", $name)),
            },)*
        ];
    };
}

macro_rules! families {
    ($($name:literal: [$($kernel:literal),* $(,)?]),* $(,)?) => {
        /// The families, by name.
        pub const FAMILIES: &[Family] = &[
            $(Family {
                name: $name,
                source: include_str!(concat!($name, ".cu")),
                kernels: &[$($kernel),*],
            },)*
        ];
    };
}

headers![
    "activate.cuh",
    "attention.cuh",
    "attn_decode.cuh",
    "attn_decode_shared.cuh",
    "attn_varlen.cuh",
    "cap_logits.cuh",
    "cuda.h",
    "dev.h",
    "dots.cuh",
    "experts.cuh",
    "fp8_scales.cuh",
    "gemm_experts.cuh",
    "gemm_fp8.cuh",
    "gemm_fp8_block.cuh",
    "gemm_mma.cuh",
    "gemm_skinny.cuh",
    "hopper.h",
    "hopper_cuda.h",
    "label_logits.cuh",
    "layer_norm.cuh",
    "logprobs.cuh",
    "maths.h",
    "pool.cuh",
    "qk_norm_rope_store.cuh",
    "quant_fp8_group.cuh",
    "quant_fp8_row.cuh",
    "rms_norm.cuh",
    "rows.cuh",
    "sample.cuh",
    "select.cuh",
    "silu_mul.cuh",
    "sm90_attn.cuh",
    "sm90_gemm.cuh",
    "types.h",
];

families! {
    "activate": [
        "prelude_activate_gelu_erf",
        "prelude_activate_gelu",
        "prelude_activate_relu",
        "prelude_activate_tanh",
        "prelude_gelu_erf_mul",
        "prelude_relu_mul",
    ],
    "attn_decode": [
        "prelude_attn_decode_32",
        "prelude_attn_decode_64",
        "prelude_attn_decode_128",
        "prelude_attn_decode_near_32",
        "prelude_attn_decode_near_64",
        "prelude_attn_decode_near_128",
        "prelude_attn_decode_near_256",
        "prelude_attn_decode_shared_32",
        "prelude_attn_decode_shared_64",
        "prelude_attn_decode_shared_128",
        "prelude_attn_decode_shared_near_32",
        "prelude_attn_decode_shared_near_64",
        "prelude_attn_decode_shared_near_128",
        "prelude_attn_decode_shared_near_256",
        "prelude_attn_combine",
    ],
    "attn_varlen": [
        "prelude_attn_varlen_32",
        "prelude_attn_varlen_64",
        "prelude_attn_varlen_128",
        "prelude_attn_varlen_wide_32",
        "prelude_attn_varlen_wide_64",
        "prelude_attn_varlen_wide_128",
        "prelude_attn_varlen_near_32",
        "prelude_attn_varlen_near_64",
        "prelude_attn_varlen_near_128",
        "prelude_attn_varlen_near_256",
    ],
    "attn_whole": [
        "prelude_attn_whole_32",
        "prelude_attn_whole_64",
        "prelude_attn_whole_128",
        "prelude_attn_whole_256",
        "prelude_attn_whole_wide_32",
        "prelude_attn_whole_wide_64",
        "prelude_attn_biased_32",
        "prelude_attn_biased_64",
        "prelude_attn_biased_128",
    ],
    "cap_logits": ["prelude_cap_logits"],
    "dots": ["prelude_classify", "prelude_label_dots"],
    "experts": ["prelude_experts_route", "prelude_experts_order", "prelude_experts_sum"],
    "gemm_experts": [
        "prelude_gemm_experts_up",
        "prelude_gemm_experts_down",
        "prelude_gemm_experts_up_fp8",
        "prelude_gemm_experts_down_fp8",
        "prelude_gemm_experts_up_fp8_block",
        "prelude_gemm_experts_down_fp8_block",
    ],
    "gemm_fp8": [
        "prelude_gemm_fp8",
        "prelude_gemm_fp8_add",
        "prelude_gemm_fp8_few_8",
        "prelude_gemm_fp8_few_16",
        "prelude_gemm_fp8_few_add_8",
        "prelude_gemm_fp8_few_add_16",
    ],
    "gemm_fp8_block": [
        "prelude_gemm_fp8_block_128x128",
        "prelude_gemm_fp8_block_64x64",
        "prelude_gemm_fp8_block_add_128x128",
        "prelude_gemm_fp8_block_add_64x64",
        "prelude_gemm_fp8_block_few_8",
        "prelude_gemm_fp8_block_few_16",
        "prelude_gemm_fp8_block_few_add_8",
        "prelude_gemm_fp8_block_few_add_16",
    ],
    "gemm_mma": [
        "prelude_gemm_mma_128x256",
        "prelude_gemm_mma_128x64",
        "prelude_gemm_mma_64x64",
        "prelude_gemm_mma_32x32",
        "prelude_gemm_mma_add_128x256",
        "prelude_gemm_mma_add_128x64",
        "prelude_gemm_mma_add_64x64",
        "prelude_gemm_mma_add_32x32",
        "prelude_gemm_mma_f32_128x256",
        "prelude_gemm_mma_f32_128x64",
        "prelude_gemm_mma_f32_64x64",
        "prelude_gemm_mma_f32_32x32",
    ],
    "gemm_skinny": [
        "prelude_gemm_skinny_8",
        "prelude_gemm_skinny_16",
        "prelude_gemm_skinny_add_8",
        "prelude_gemm_skinny_add_16",
        "prelude_gemm_skinny_f32_8",
        "prelude_gemm_skinny_f32_16",
    ],
    "label_logits": ["prelude_label_logits", "prelude_label_merge"],
    "layer_norm": ["prelude_layer_norm"],
    "logprobs": ["prelude_logprobs"],
    "pool": ["prelude_pool", "prelude_pool_bf16", "prelude_segment_means"],
    "qk_norm_rope_store": ["prelude_qk_norm_rope_store", "prelude_qk_norm_rope_store_wide"],
    "quant_fp8_group": [
        "prelude_quant_fp8_group",
        "prelude_silu_mul_fp8_group",
        "prelude_rms_norm_fp8_group",
    ],
    "quant_fp8_row": [
        "prelude_quant_fp8_row",
        "prelude_silu_mul_fp8_row",
        "prelude_rms_norm_fp8_row",
    ],
    "rms_norm": ["prelude_rms_norm", "prelude_add_rms_norm", "prelude_rms_norm_add"],
    "rows": ["prelude_embed", "prelude_gather_rows", "prelude_embed_sum"],
    "sample": ["prelude_argmax", "prelude_adjust_logits", "prelude_sample"],
    "silu_mul": ["prelude_silu_mul", "prelude_gelu_mul"],
    "sm90_attn": ["prelude_sm90_attn_64", "prelude_sm90_attn_128"],
    "sm90_gemm": [
        "prelude_sm90_gemm",
        "prelude_sm90_gemm_add",
        "prelude_sm90_gemm_silu_mul",
        "prelude_sm90_gemm_apart",
        "prelude_sm90_gemm_apart_add",
        "prelude_sm90_gemm_apart_silu_mul",
    ],
}

/// Compiler options that change what kernels compute, for nvcc and NVRTC alike: no contraction,
/// so that host and device round alike (see `dev.h`).
pub(crate) const OPTIONS: &[&str] = &["-std=c++17", "-fmad=false"];

impl Family {
    /// Returns the family that defines a kernel.
    #[must_use]
    pub fn of(kernel: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|f| f.kernels.contains(&kernel))
    }

    /// Returns true if the family has instructions of Hopper that no other GPU has: it compiles for
    /// sm_90a alone, and is loaded on compute capability 9.0 alone.
    #[must_use]
    pub fn is_of_hopper(&self) -> bool {
        self.name.starts_with("sm90_")
    }

    /// Returns the options to compile the family with, beside those that name files and targets.
    #[must_use]
    pub const fn options() -> &'static [&'static str] {
        OPTIONS
    }

    /// Returns the headers that it includes, directly and through others, in the order of [`HEADERS`].
    pub fn headers(&self) -> impl Iterator<Item = &'static Header> {
        let mut texts = vec![self.source];
        let mut included = [false; HEADERS.len()];
        while let Some(text) = texts.pop() {
            for (header, included) in HEADERS.iter().zip(&mut included) {
                if !*included && text.contains(&format!("#include \"{}\"", header.name)) {
                    *included = true;
                    texts.push(header.text);
                }
            }
        }
        HEADERS
            .iter()
            .zip(included)
            .filter_map(|(h, there)| there.then_some(h))
    }

    /// Returns the SHA-256 of everything that decides what the family compiles to, in hexadecimal: the
    /// source, its headers, the options. Images carry it, so that a stale one is not used.
    #[must_use]
    pub fn hash(&self) -> String {
        let mut hash = Sha256::new();
        let mut add = |name: &str, text: &str| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(name);
            hash.update(text);
        };
        for option in OPTIONS {
            add("option", option);
        }
        for header in self.headers() {
            add(header.name, header.text);
        }
        add(self.name, self.source);
        hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    fn files(folder: &str, ends: &[&str]) -> BTreeSet<String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let names = fs::read_dir(folder).unwrap();
        names
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .filter(|name| ends.iter().any(|end| name.ends_with(end)))
            .collect()
    }

    #[test]
    fn every_file_is_listed() {
        let listed = |names: Vec<String>| names.into_iter().collect::<BTreeSet<_>>();
        let headers = HEADERS.iter().map(|h| h.name.replace("prelude/", ""));
        assert_eq!(
            listed(headers.collect()),
            files("include/prelude", &[".h", ".cuh"])
        );
        let sources = FAMILIES.iter().map(|f| format!("{}.cu", f.name));
        assert_eq!(listed(sources.collect()), files("src", &[".cu"]));
    }

    #[test]
    fn every_kernel_is_named() {
        for family in FAMILIES {
            let defined: Vec<_> = family
                .source
                .split("PRELUDE_KERNEL")
                .skip(1)
                .map(|rest| rest.split(['(', ',']).nth(1).unwrap())
                .collect();
            assert_eq!(defined, family.kernels, "{}", family.name);
            for kernel in family.kernels {
                assert_eq!(Family::of(kernel).unwrap().name, family.name);
            }
        }
    }

    #[test]
    fn kernels_hold_to_dev_h() {
        let files = HEADERS.iter().map(|h| (h.name, h.text));
        let sources = FAMILIES.iter().map(|f| (f.name, f.source));
        for (name, text) in files.chain(sources) {
            assert!(
                !text.contains("#include <"),
                "{name}: NVRTC has no system headers"
            );
            let special = text.contains("asm volatile") || text.contains("asm(");
            assert!(
                !special || ["prelude/cuda.h", "prelude/hopper_cuda.h"].contains(&name),
                "{name}: instructions belong there"
            );
        }
    }

    /// A family that needs Hopper's instructions says so by its name.
    #[test]
    fn families_of_hopper() {
        for family in FAMILIES {
            let has_header = family.headers().any(|h| h.name == "prelude/hopper.h");
            assert_eq!(family.is_of_hopper(), has_header, "{}", family.name);
        }
    }

    #[test]
    fn headers_are_those_included() {
        let family = Family::of("prelude_embed").unwrap();
        let names: Vec<_> = family.headers().map(|h| h.name).collect();
        let expected = ["cuda.h", "dev.h", "maths.h", "rows.cuh", "types.h"];
        assert_eq!(names, expected.map(|name| format!("prelude/{name}")));
    }

    #[test]
    fn hashes_differ() {
        let hashes: BTreeSet<_> = FAMILIES.iter().map(Family::hash).collect();
        assert_eq!(hashes.len(), FAMILIES.len());
        assert!(hashes.iter().all(|h| h.len() == 64));
    }
}
