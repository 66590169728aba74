use half::bf16;
use prelude_kernels::families::FP8_BLOCK;

use crate::{quant_fp8_row::Scaled, support::under_all_schedules};

const GROUP: usize = FP8_BLOCK as usize;

/// Few rows, and more, of which the last three are not in a four.
#[test]
fn groups_are_those_of_the_definition() {
    under_all_schedules(|device| {
        for (rows, width, gap) in [
            (1, 128, 0),
            (3, 384, 8),
            (4, 1024, 0),
            (2, 8320, 16),
            (19, 384, 0),
        ] {
            Scaled::Groups.check(device, (rows, width, gap), None);
        }
        Scaled::Groups.check(device, (5, 256, 8), Some(3));
        Scaled::Groups.check(device, (21, 256, 0), Some(18));
    });
}

/// An element that is not finite makes the scale of its own group not finite, and no other.
/// Groups of nothing have the least scale.
#[test]
fn groups_do_not_know_each_other() {
    under_all_schedules(|device| {
        let width = 3 * GROUP;
        let plain = vec![bf16::from_f32(0.5); width];
        let expected = Scaled::Groups.quantise(device, (1, width, width), &plain, None);
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0] {
            for at in [0, 1, 2] {
                let mut x = plain.clone();
                let group = &mut x[at * GROUP..][..GROUP];
                if value == 0.0 {
                    group.fill(bf16::ZERO);
                }
                group[77] = bf16::from_f32(value);
                let (q, scales) = Scaled::Groups.quantise(device, (1, width, width), &x, None);
                for other in (0..3).filter(|&other| other != at) {
                    let places = other * GROUP..(other + 1) * GROUP;
                    assert_eq!(q[places.clone()], expected.0[places], "{value}");
                    assert_eq!(scales[other], expected.1[other], "{value}");
                }
                let scale = f32::from_bits(scales[at]);
                match value == 0.0 {
                    true => assert_eq!(scale, 2f32.powi(-24) / 448.0),
                    false => assert!(!scale.is_finite(), "{value}"),
                }
            }
        }
    });
}

/// Gates of narrow rows, and of such as a thread has several parts of.
#[test]
fn gates_are_rounded_as_if_stored() {
    under_all_schedules(|device| {
        for (rows, width, gap) in [(1, 128, 0), (3, 384, 8), (1, 9728, 0)] {
            Scaled::Groups.check_gates(device, (rows, width, gap), None);
        }
        Scaled::Groups.check_gates(device, (5, 256, 16), Some(3));
    });
}

/// Norms of narrow rows and of such as a thread has several parts of, with an offset and without.
#[test]
fn norms_are_rounded_as_if_stored() {
    under_all_schedules(|device| {
        for (shape, live, offset) in [
            ((1, 128, 0), None, 0.0),
            ((3, 384, 8), None, 1.0),
            ((2, 8320, 16), None, 1.0),
            ((5, 256, 8), Some(3), 0.0),
        ] {
            Scaled::Groups.check_norms(device, shape, live, offset);
        }
    });
}
