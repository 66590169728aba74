//! The vector instructions of this machine, found at run time.

use serde::{Deserialize, Serialize};

/// A family of kernels, named by the instructions it needs.
///
/// Families differ in speed and in the last bits of results; within one, results are equal bit
/// for bit however rows are batched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Isa {
    /// Intel AMX: tiles of bf16, beside AVX-512 with bf16. Ten times the rate of f32. Linux only.
    AmxBf16,
    /// AVX-512 with bf16 dot products: twice the rate of f32 on AMD Zen 4 and later, half of it
    /// on Intel.
    Avx512Bf16,
    /// AVX-512.
    Avx512f,
    /// AVX2 and FMA.
    Avx2,
    /// Portable code.
    Scalar,
}

impl Isa {
    /// All, the most demanding first.
    pub const ALL: [Self; 5] = [
        Self::AmxBf16,
        Self::Avx512Bf16,
        Self::Avx512f,
        Self::Avx2,
        Self::Scalar,
    ];

    /// Returns the name in configurations.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AmxBf16 => "amxbf16",
            Self::Avx512Bf16 => "avx512bf16",
            Self::Avx512f => "avx512f",
            Self::Avx2 => "avx2",
            Self::Scalar => "scalar",
        }
    }

    /// Returns true if this machine has the instructions. For [`Self::AmxBf16`] this asks the
    /// system for permission to use tiles, once per process.
    #[must_use]
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx512 = avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            let bf16 = avx512 && is_x86_feature_detected!("avx512bf16");
            match self {
                Self::AmxBf16 => bf16 && super::x86::has_amx(),
                Self::Avx512Bf16 => bf16,
                Self::Avx512f => avx512,
                Self::Avx2 => avx2,
                Self::Scalar => true,
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Self::Scalar
        }
    }

    /// The fastest on this machine.
    ///
    /// Decided by what the processor is and the system permits, not by a measurement, so that a
    /// machine computes the same bits after every start. A sandbox that denies tiles makes it
    /// another machine in this sense.
    #[must_use]
    pub fn best() -> Self {
        Self::ALL
            .into_iter()
            .filter(|&isa| isa != Self::Avx512Bf16 || has_fast_bf16())
            .find(|isa| isa.is_available())
            .expect("portable code runs everywhere")
    }
}

/// Returns true if bf16 dot products beat f32 multiply-adds. On Intel's server cores since Cooper
/// Lake a
/// 512-bit `vdpbf16ps` starts every second cycle, while two f32 multiply-adds start every cycle:
/// 32 against 64 operations (measured on a Xeon of family 6, model 207: 87 against 178 GFLOP/s).
fn has_fast_bf16() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let vendor = std::arch::x86_64::__cpuid(0);
        let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
        name.as_flattened() != b"GenuineIntel"
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// An [`Isa`] that was seen to be available: holding one makes its kernels safe to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Supported {
    isa: Isa,
    vnni: bool,
}

impl Supported {
    /// `None` if the machine lacks it.
    pub(crate) fn new(isa: Isa) -> Option<Self> {
        isa.is_available().then(|| Self {
            isa,
            vnni: has_vnni(isa),
        })
    }

    /// The family of instructions.
    pub(crate) const fn isa(self) -> Isa {
        self.isa
    }

    /// Returns true if the family has AVX-512 and the machine multiplies bytes with it (VNNI). No
    /// result depends on this.
    #[cfg(target_arch = "x86_64")]
    pub(crate) const fn vnni(self) -> bool {
        self.vnni
    }

    /// The same family on a machine without byte products.
    #[cfg(test)]
    pub(crate) const fn without_vnni(self) -> Self {
        Self {
            vnni: false,
            ..self
        }
    }
}

fn has_vnni(isa: Isa) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        matches!(isa, Isa::AmxBf16 | Isa::Avx512Bf16 | Isa::Avx512f)
            && is_x86_feature_detected!("avx512vnni")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = isa;
        false
    }
}
