use super::*;

/// The real library, which needs no GPU for what it only describes: `cargo xtask kernels
/// cublaslt` names a folder that has it.
#[test]
fn the_real_library_takes_our_descriptions() {
    let Some(folder) = std::env::var_os("PRELUDE_TEST_CUBLASLT").map(PathBuf::from) else {
        say("SKIP: cuBLASLt is not tested: PRELUDE_TEST_CUBLASLT names no folder");
        return;
    };
    let (functions, version, path) = load(&[13, 12], &config(&folder)).unwrap();
    println!("{} {}", dotted(version), path.display());
    blas::describes(functions, version);
}

/// The numbers and sizes that the library's part is played with are those of NVIDIA's header.
#[test]
fn the_real_librarys_numbers_are_those_played() {
    let Some(folder) = std::env::var_os("PRELUDE_TEST_CUBLASLT").map(PathBuf::from) else {
        say("SKIP: cuBLASLt's header is not compared: PRELUDE_TEST_CUBLASLT names no folder");
        return;
    };
    let checked = Command::new("cc")
        .args(["-std=c11", "-fsyntax-only", "-DREAL_HEADER", "-I"])
        .arg(folder.join("nvidia/cu13/include"))
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/fake/cublaslt.c"
        ))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{errors}");
}
