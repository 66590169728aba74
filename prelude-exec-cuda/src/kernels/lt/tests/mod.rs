//! The library's side is played by `tests/fake/cublaslt.c`, built here where there is a C
//! compiler: it multiplies in the emulation's memory, which is the host's.
//!
//! | file | |
//! | --- | --- |
//! | `opening` | which library is opened, and the errors of one that cannot be used |
//! | `products` | products in bf16 against those of our kernel |
//! | `products_fp8` | products in fp8 against those of our kernels |
//! | `choices` | which plan runs a product: files, tables, the heuristic |
//! | `measured` | algorithms that are measured, and the file of their plans |
//! | `models` | steps of whole models |
//! | `real` | NVIDIA's own library, where there is one |

mod choices;
mod measured;
mod models;
mod opening;
mod products;
mod products_fp8;
mod real;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use half::bf16;

use super::*;
use crate::{
    kernels::{
        gemm::{ProductOutput, Products},
        launch::Launcher,
    },
    testing::{emulation, say, small},
};

/// A folder with a library of CUDA 13, of this name and with these options; `None`, said aloud, without
/// a C compiler. Each test's folder is its own, since a path that was opened stays that library.
fn fake(test: &str, options: &[&str]) -> Option<PathBuf> {
    fake_of(13, test, options)
}

/// As [`fake`], for this major version of CUDA.
fn fake_of(major: i32, test: &str, options: &[&str]) -> Option<PathBuf> {
    let file = Library::CublasLt.file(major);
    let folder = std::env::temp_dir().join(format!("prelude-lt-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake/cublaslt.c");
    // A name of its own for the loader, or it would give the library of another test.
    let soname = format!("-Wl,-soname,{test}-{file}");
    let built = Command::new("cc")
        .args([
            "-std=c11", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror",
        ])
        .args(options)
        .args([soname.as_str(), source, "-o"])
        .arg(folder.join(file))
        .output();
    match built {
        Ok(output) if output.status.success() => Some(folder),
        Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
        Err(why) => {
            say(&format!(
                "SKIP: no C compiler `cc` ({why}): cuBLASLt is not played"
            ));
            None
        }
    }
}

fn config(folder: &Path) -> CudaConfig {
    CudaConfig {
        library_dirs: vec![folder.to_owned()],
        ..small()
    }
}

/// The fake library over an emulated device.
fn lt(folder: &Path, space: &Space) -> Result<Lt, Error> {
    let (functions, version, library) = load(libs::majors(), &config(folder))?;
    let workspace = workspace(space)?;
    let address = workspace.view::<u8>(0, 1, 1).ptr().0;
    let blas = CublasLt::new(functions, None, address)?;
    let engine = ProductEngine::CublasLt {
        version: dotted(version),
        library,
        plans: String::new(),
        counts: PlanCounts::default(),
    };
    let measured = Measured::default();
    Ok(Lt::new(Box::new(blas), workspace, engine, measured))
}

/// Returns rows of small numbers, exact in bf16.
fn rows(space: &Space, rows: usize, width: usize, gap: usize, seed: usize) -> Buffer {
    let stride = width + gap;
    let value = |i: usize| ((i * 7 + seed * 13) % 31) as f32 / 8.0 - 1.75;
    let values: Vec<bf16> = (0..rows * stride)
        .map(|i| bf16::from_f32(value(i)))
        .collect();
    let mut buffer = space.alloc("rows", rows * stride * 2).unwrap();
    buffer.write(0, bytemuck::cast_slice(&values)).unwrap();
    buffer
}
