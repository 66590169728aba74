use half::bf16;
use prelude_kernels::{
    DevicePtr,
    emu::Device,
    families::{Gate, SiluMulParams},
};

use crate::support::{
    U16, U32, Values, assert_untouched, assert_within, erf, launch, room_bf16, under_all_schedules,
    upload, wide,
};

/// Computes the gate in f64: GELU as its definition reads.
fn gate_of(gate: Gate, g: f64) -> f64 {
    match gate {
        Gate::Silu => g / (1.0 + (-g).exp()),
        Gate::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g.powi(3));
            // 1 + tanh y = 2 / (1 + e^-2y), which does not cancel.
            g / (1.0 + (-2.0 * inner).exp())
        }
        Gate::GeluErf => g / 2.0 * (1.0 + erf(g * std::f64::consts::FRAC_1_SQRT_2)),
        Gate::Relu => g.max(0.0),
    }
}

fn check(device: &Device, gate: Gate, rows: usize, width: usize, gap: usize, live: Option<u32>) {
    let what = format!("{gate:?} [{rows}, {width}] gap {gap} live {live:?}");
    let mut values = Values::new(2);
    let (in_stride, out_stride) = (2 * width + gap, width + gap);
    let mut gate_up = values.bf16s(rows * in_stride, -6.0, 6.0);
    // Where the exponential over- and underflows, the product must not.
    for (i, special) in [0.0, 20.0, -20.0, 88.0, -88.0, 120.0, -1e4]
        .into_iter()
        .enumerate()
    {
        gate_up[i] = bf16::from_f32(special);
    }
    let a = room_bf16(device, rows * out_stride);
    let params = SiluMulParams {
        gate_up: upload(device, &gate_up),
        a,
        live: live.map_or(DevicePtr::NULL, |n| upload(device, &[n])),
        rows: rows as u32,
        width: width as u32,
        gate_up_stride: in_stride as u32,
        a_stride: out_stride as u32,
    };
    launch(device, params.launch(gate), &params);
    let got: Vec<bf16> = device.download(a, rows * out_stride).unwrap();
    let mut end = 0;
    for row in 0..live.map_or(rows, |n| n as usize) {
        assert_untouched(&what, &got[end..row * out_stride]);
        end = row * out_stride + width;
        let (gates, up) = gate_up[row * in_stride..][..2 * width].split_at(width);
        let gates = wide(gates);
        let expected: Vec<(f64, f64)> = gates
            .into_iter()
            .zip(wide(up))
            // The error function is within 1.5e-7 of itself.
            .map(|(g, u)| match gate {
                Gate::GeluErf => (gate_of(gate, g) * u, 4.0 * U32 * (g * u).abs()),
                _ => (gate_of(gate, g) * u, 0.0),
            })
            .collect();
        // silu and the product are rounded; below 1e-30 silu is flushed to 0.
        // Exponents of GELU grow with g³, and with them the error of the exponential.
        let bound = 2.02 * U16 + 64.0 * U32;
        let within = expected
            .iter()
            .map(|&(y, of_gate)| (y, bound * y.abs() + 1e-27 + of_gate));
        assert_within(
            &format!("{what} row {row}"),
            &wide(&got[row * out_stride..end]),
            within,
        );
    }
    assert_untouched(&what, &got[end..]);
}

#[test]
fn products() {
    under_all_schedules(|device| {
        for width in [8, 56, 200, 1024] {
            for rows in [1, 3, 17] {
                let gap = if rows == 3 { 8 } else { 0 };
                for gate in [Gate::Silu, Gate::GeluTanh, Gate::GeluErf, Gate::Relu] {
                    check(device, gate, rows, width, gap, (rows == 17).then_some(9));
                }
            }
        }
    });
}
