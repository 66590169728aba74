//! Measured plans that every program carries, by kind of GPU.
//!
//! A table is a plan file as part `gemm` of `gpu-check` leaves it, in the folder `plans`. It is for
//! GPUs with as many multiprocessors of the same compute capability as the one it was measured on:
//! on those depends which tiles fill a GPU. Driver and build do not matter, since the library is
//! asked about an algorithm before it is used; its version does, since the bytes of an algorithm
//! mean something to that version alone.

use super::plans::{self, Plans};

/// A measured GPU.
#[derive(Debug)]
struct Table {
    /// The GPU's name, as the driver says it and the text too.
    device: &'static str,
    chip: Chip,
    text: &'static str,
}

/// The properties of a GPU that the fastest algorithm depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chip {
    /// Major and minor.
    pub(super) compute_capability: (i32, i32),
    pub(super) multiprocessors: u32,
}

const HOPPER: Chip = Chip {
    compute_capability: (9, 0),
    multiprocessors: 132,
};

const TABLES: [Table; 2] = [
    Table {
        device: "NVIDIA H100 80GB HBM3",
        chip: HOPPER,
        text: include_str!("../../../plans/nvidia-h100-80gb-hbm3.json"),
    },
    Table {
        device: "NVIDIA H200",
        chip: HOPPER,
        text: include_str!("../../../plans/nvidia-h200.json"),
    },
];

/// Returns the plans for a GPU and a version of the library, and a line about them: those measured
/// on a GPU of the same name, else on one of the same kind.
pub(super) fn plans_for(
    device: &str,
    chip: Chip,
    version: u64,
    workspace_bytes_max: u64,
) -> (Plans, String) {
    let fits = || TABLES.iter().filter(|table| table.chip == chip);
    let named = fits().find(|table| table.device == device);
    let Some(table) = named.or_else(|| fits().next()) else {
        return (Plans::new(), format!("no table for {device}"));
    };
    let name = table.device;
    match plans::parse(table.text.as_bytes(), workspace_bytes_max) {
        Ok((machine, plans)) if minor(machine.cublaslt) == minor(version) => {
            (plans, format!("the table of {name}"))
        }
        Ok((machine, _)) => {
            let of = minor(machine.cublaslt);
            let why = format!("it is for cuBLASLt {}.{}", of / 100, of % 100);
            (
                Plans::new(),
                format!("the table of {name} is not used: {why}"),
            )
        }
        Err(why) => (
            Plans::new(),
            format!("the table of {name} is not used: {why}"),
        ),
    }
}

/// Returns a version without its last part, as `cublasLtGetVersion` counts: 1301 for 13.1.0.
const fn minor(version: u64) -> u64 {
    version / 100
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::lt::WORKSPACE_BYTES;

    #[test]
    fn every_table_is_of_the_gpu_that_it_names() {
        for table in TABLES {
            let parsed = plans::parse(table.text.as_bytes(), WORKSPACE_BYTES);
            let (machine, plans) = parsed.unwrap();
            assert_eq!(machine.device, table.device);
            assert!(plans.len() >= 120 && plans.values().all(|plan| plan.us.is_some()));
        }
    }

    #[test]
    fn tables_are_used_on_gpus_of_their_kind_alone() {
        let check = |device, chip, version, expected: (usize, &str)| {
            let (plans, line) = plans_for(device, chip, version, WORKSPACE_BYTES);
            assert_eq!((plans.len(), line.as_str()), expected);
        };
        let fewer = Chip {
            multiprocessors: 114,
            ..HOPPER
        };
        let older = Chip {
            compute_capability: (8, 0),
            ..HOPPER
        };
        let [h100, h200] = [
            "the table of NVIDIA H100 80GB HBM3",
            "the table of NVIDIA H200",
        ];
        check("NVIDIA H200", HOPPER, 130_100, (120, h200));
        check("NVIDIA H100 80GB HBM3", HOPPER, 130_105, (120, h100));
        check("NVIDIA GH200 480GB", HOPPER, 130_100, (120, h100));
        let none = (0, "no table for NVIDIA H100 PCIe");
        check("NVIDIA H100 PCIe", fewer, 130_100, none);
        check(
            "NVIDIA H200",
            older,
            130_100,
            (0, "no table for NVIDIA H200"),
        );
        let other = "the table of NVIDIA H200 is not used: it is for cuBLASLt 13.1";
        check("NVIDIA H200", HOPPER, 130_200, (0, other));
    }
}
