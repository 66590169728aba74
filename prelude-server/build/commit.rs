//! The commit of a git checkout, read from its files: a build needs no git.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A commit and what says so.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Commit {
    /// 40 or 64 hex digits.
    pub(crate) id: String,
    /// Files and folders, all of which exist: if one changes, so may the commit.
    pub(crate) depends_on: Vec<PathBuf>,
}

/// Returns the commit that the checkout in `folder` is at; `None` if there is no checkout, no
/// commit, or something that is not understood.
pub(crate) fn of_checkout(folder: &Path) -> Option<Commit> {
    let own = git_folder(&folder.join(".git"))?;
    // Further checkouts of one repository share its branches.
    let shared = match fs::read_to_string(own.join("commondir")) {
        Ok(path) => own.join(path.trim()),
        Err(_) => own.clone(),
    };
    let head = own.join("HEAD");
    let text = fs::read_to_string(&head).ok()?;
    let mut depends_on = vec![head];
    let Some(branch) = text.trim().strip_prefix("ref: ") else {
        let id = checked(text.trim())?;
        return Some(Commit { id, depends_on });
    };
    let loose = shared.join(branch);
    if let Ok(id) = fs::read_to_string(&loose) {
        depends_on.push(loose);
        let id = checked(id.trim())?;
        return Some(Commit { id, depends_on });
    }
    let packed = shared.join("packed-refs");
    let id = of_packed(&fs::read_to_string(&packed).ok()?, branch)?;
    depends_on.push(packed);
    // The next commit makes a file of the branch's own.
    depends_on.extend(Some(shared.join("refs/heads")).filter(|path| path.is_dir()));
    Some(Commit { id, depends_on })
}

/// Returns the folder of a checkout's history: `.git` is that folder, or a file that names it.
fn git_folder(path: &Path) -> Option<PathBuf> {
    if path.is_dir() {
        return Some(path.to_owned());
    }
    let text = fs::read_to_string(path).ok()?;
    let named = text.trim().strip_prefix("gitdir: ")?;
    Some(path.parent()?.join(named))
}

/// Finds a branch's commit in a `packed-refs` file, where a line is an id, a blank and a branch's
/// whole name.
fn of_packed(text: &str, branch: &str) -> Option<String> {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.find_map(|(id, name)| (name == branch).then(|| checked(id))?)
}

fn checked(id: &str) -> Option<String> {
    let is_hex = id.bytes().all(|b| b.is_ascii_hexdigit());
    (is_hex && matches!(id.len(), 40 | 64)).then(|| id.to_owned())
}
