use super::*;

#[test]
fn a_library_that_cannot_be_used_says_why() {
    let check = |test: &str, options: &[&str], expected: &str| {
        let Some(folder) = fake(test, options) else {
            return;
        };
        let space = Space::Virtual(Arc::default());
        let error = lt(&folder, &space).unwrap_err().to_string();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(error.contains(expected), "{error}");
    };
    check(
        "old",
        &["-DVERSION=120800"],
        "version 12.8.0, but 13 is needed",
    );
    check("new", &["-DVERSION=140000"], "version 14.0.0");
    check(
        "without",
        &["-DVERSION=130100", "-DWITHOUT_MATMUL"],
        "libcublasLt.so.13 has no `cublasLtMatmul`",
    );
    check(
        "create",
        &["-DVERSION=130100", "-DNO_CREATE"],
        "cublasLtCreate: CUBLAS_STATUS_NOT_INITIALIZED",
    );
}

/// A missing library is an error, and none is opened in its place.
#[test]
fn a_missing_library_is_an_error() {
    match load(&[13, 12], &config(Path::new("/nowhere"))) {
        Err(Error::LibraryMissing { name, searched }) => {
            assert_eq!(name, "libcublasLt.so.13");
            assert!(searched.contains(&"/nowhere/nvidia/cu13/lib".into()));
        }
        // Where the system has it, it is found there.
        Ok((_, _, path)) => {
            assert!(path.starts_with("libcublasLt.so.13") || path.starts_with("libcublasLt.so.12"))
        }
        Err(other) => panic!("{other}"),
    }
}

/// A driver of CUDA 13 takes libraries of 12 too, one of 12 no newer ones.
#[test]
fn libraries_are_those_that_the_driver_takes() {
    let Some(folder) = fake_of(12, "older", &["-DVERSION=120900"]) else {
        return;
    };
    let of = |majors: &[i32]| {
        let (_, version, path) = load(majors, &config(&folder)).unwrap();
        (version, path)
    };
    let twelve = (120_900, folder.join("libcublasLt.so.12"));
    assert_eq!(of(&[12]), twelve);
    assert_eq!(of(&[13, 12]), twelve);
    let newer = fake("newer", &["-DVERSION=130100"]).unwrap();
    std::fs::rename(
        newer.join("libcublasLt.so.13"),
        folder.join("libcublasLt.so.13"),
    )
    .unwrap();
    let found = (of(&[12]), of(&[13, 12]));
    std::fs::remove_dir_all(&newer).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(found.0, twelve);
    assert_eq!(found.1, (130_100, folder.join("libcublasLt.so.13")));
}
