//! The vector instructions of this machine, found at run time.

use serde::{Deserialize, Serialize};

use super::native;

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
    /// NEON with the instructions of `bf16`, which multiply four or eight pairs at a time. Its speed
    /// was never measured, so it is used only if it is asked for. Little-endian ARM only.
    NeonBf16,
    /// NEON: the vectors of every 64-bit ARM processor, in f32. Little-endian ARM only.
    Neon,
    /// Portable code.
    Scalar,
}

impl Isa {
    /// The families, the most demanding first.
    pub const ALL: [Self; 7] = [
        Self::AmxBf16,
        Self::Avx512Bf16,
        Self::Avx512f,
        Self::Avx2,
        Self::NeonBf16,
        Self::Neon,
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
            Self::NeonBf16 => "neonbf16",
            Self::Neon => "neon",
            Self::Scalar => "scalar",
        }
    }

    /// Returns true if this machine has the instructions. For [`Self::AmxBf16`] this asks the
    /// system for permission to use tiles, once per process.
    #[must_use]
    pub fn is_available(self) -> bool {
        self == Self::Scalar || native::is_available(self)
    }

    /// Returns the fastest family of instructions on this machine.
    ///
    /// Decided by what the processor is and the system permits, not by a measurement, so that a
    /// machine computes the same bits after every start. A sandbox that denies tiles makes it
    /// another machine in this sense.
    #[must_use]
    pub fn best() -> Self {
        Self::ALL
            .into_iter()
            .filter(|isa| match isa {
                Self::Avx512Bf16 | Self::NeonBf16 => native::has_fast_bf16(),
                _ => true,
            })
            .find(|isa| isa.is_available())
            .expect("portable code runs everywhere")
    }
}

/// An [`Isa`] that was seen to be available: holding one makes its kernels safe to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Supported {
    isa: Isa,
    byte_products: bool,
}

impl Supported {
    /// Returns the family if the machine has it, else `None`.
    pub(crate) fn new(isa: Isa) -> Option<Self> {
        isa.is_available().then(|| Self {
            isa,
            byte_products: native::has_byte_products(isa),
        })
    }

    /// Returns the family of instructions.
    pub(crate) const fn isa(self) -> Isa {
        self.isa
    }

    /// Returns true if the machine multiplies bytes with instructions that not every machine of the
    /// family has: AVX-512 VNNI, or `dotprod` of ARM. No result depends on this.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(crate) const fn byte_products(self) -> bool {
        self.byte_products
    }

    /// Returns the same family on a machine without byte products.
    #[cfg(test)]
    pub(crate) const fn without_byte_products(self) -> Self {
        Self {
            byte_products: false,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_configurations() {
        for isa in Isa::ALL {
            let name = serde_json::to_value(isa).unwrap();
            assert_eq!(name, isa.as_str());
        }
    }

    /// Other tests run what is available: here a path that is missing is seen.
    #[test]
    fn paths_of_the_machine_are_found() {
        assert!(Isa::Scalar.is_available() && Isa::best().is_available());
        let arm = cfg!(all(target_arch = "aarch64", target_endian = "little"));
        assert_eq!(Isa::Neon.is_available(), arm);
        // Set where a processor with all instructions is emulated.
        if arm && std::env::var_os("PRELUDE_TEST_ALL_PATHS").is_some() {
            let neon = Supported::new(Isa::Neon).unwrap();
            assert!(neon.byte_products, "no products of bytes");
            assert!(Isa::NeonBf16.is_available(), "no products of bf16");
        }
    }
}
