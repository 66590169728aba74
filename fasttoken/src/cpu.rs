//! Detection of the instructions that vectorized loops need besides vectors.

/// Returns true if this machine has the bit instructions that every function compiled for AVX2 or
/// AVX-512 uses: `bmi1,bmi2,lzcnt,popcnt`. Machines with AVX2 have them, but a virtual machine may
/// hide some.
#[inline]
pub(crate) fn has_bit_instructions() -> bool {
    // Each answer is a load from a table that the standard library fills once.
    is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
}
