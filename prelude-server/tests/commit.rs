//! The build script's reading of a checkout.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../build/commit.rs"]
mod commit;

use std::{fs, path::PathBuf};

const ONE: &str = "0123456789abcdef0123456789abcdef01234567";
const TWO: &str = "89abcdef0123456789abcdef0123456789abcdef";

/// A folder of the test's own with these files in it.
fn folder(name: &str, files: &[(&str, &str)]) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("commit-{name}"));
    let _ = fs::remove_dir_all(&root);
    for (path, text) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

fn check(name: &str, files: &[(&str, &str)], checkout: &str, expected: Option<&str>) {
    let found = commit::of_checkout(&folder(name, files).join(checkout));
    assert_eq!(found.as_ref().map(|c| &*c.id), expected, "{name}");
    // What does not exist would have the package built again and again.
    let paths = found.into_iter().flat_map(|c| c.depends_on);
    for path in paths {
        assert!(path.exists(), "{name}: {}", path.display());
    }
}

#[test]
fn commits_are_found_where_git_puts_them() {
    let head = (".git/HEAD", "ref: refs/heads/main\n");
    let loose = (".git/refs/heads/main", &*format!("{ONE}\n"));
    let packed = format!("# pack-refs with: peeled\n{TWO} refs/heads/main\n^{ONE}\n");
    let packed = (".git/packed-refs", &*packed);
    check("loose", &[head, loose, packed], "", Some(ONE));
    check("packed", &[head, packed], "", Some(TWO));
    check("detached", &[(".git/HEAD", ONE)], "", Some(ONE));
    let further = [
        ("main/.git/refs/heads/other", TWO),
        ("main/.git/worktrees/other/HEAD", "ref: refs/heads/other\n"),
        ("main/.git/worktrees/other/commondir", "../..\n"),
        ("other/.git", "gitdir: ../main/.git/worktrees/other\n"),
    ];
    check("further", &further, "other", Some(TWO));
}

#[test]
fn nothing_is_better_than_a_guess() {
    check("none", &[("src/main.rs", "")], "", None);
    check(
        "unborn",
        &[(".git/HEAD", "ref: refs/heads/main\n")],
        "",
        None,
    );
    check("torn", &[(".git/HEAD", &ONE[..20])], "", None);
    let other = format!("{ONE} refs/heads/mainly\n");
    let files = [
        (".git/HEAD", "ref: refs/heads/main"),
        (".git/packed-refs", &other),
    ];
    check("another", &files, "", None);
}
