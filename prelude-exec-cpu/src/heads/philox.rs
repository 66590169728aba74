//! Philox4x32-10, after Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011), §3.3.
//!
//! Counter-based: a draw is a function of key and counter, without state, so that a token depends
//! on its request's seed and its place alone.

const MULTIPLIERS: [u64; 2] = [0xd251_1f53, 0xcd9e_8d57];
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const ROUNDS: usize = 10;

/// Returns four random words for a key and a counter.
fn philox(mut key: [u32; 2], mut counter: [u32; 4]) -> [u32; 4] {
    for round in 0..ROUNDS {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let a = MULTIPLIERS[0] * u64::from(counter[0]);
        let b = MULTIPLIERS[1] * u64::from(counter[2]);
        let (low, high) = (|x: u64| x as u32, |x: u64| (x >> 32) as u32);
        counter = [
            high(b) ^ counter[1] ^ key[0],
            low(b),
            high(a) ^ counter[3] ^ key[1],
            low(a),
        ];
    }
    counter
}

/// Returns 64 random bits for a draw: key `seed`, counter `(output position, choice)`.
pub(crate) fn draw(seed: u64, output_position: u32, choice: u32) -> u64 {
    let key = [seed as u32, (seed >> 32) as u32];
    let words = philox(key, [output_position, choice, 0, 0]);
    u64::from(words[0]) | (u64::from(words[1]) << 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers published with Random123.
    #[test]
    fn known_answers() {
        let check = |key, counter, expected: [u32; 4]| assert_eq!(philox(key, counter), expected);
        check(
            [0; 2],
            [0; 4],
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
        );
        check(
            [u32::MAX; 2],
            [u32::MAX; 4],
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
        );
        check(
            [0xa409_3822, 0x299f_31d0],
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        );
    }
}
