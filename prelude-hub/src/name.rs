//! The names of models, revisions and files: they become addresses and paths, so they are checked.

use std::{fmt, str::FromStr};

use thiserror::Error as ThisError;

/// Upper bound of a name's part in bytes, as on the Hub.
const MAX_PART: usize = 96;
/// Upper bound of a revision in bytes.
const MAX_REVISION: usize = 255;
/// Upper bound of a file's path inside a model in bytes.
const MAX_PATH: usize = 512;

/// A text that is not the name of a model, or not a revision.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
#[error("{text:?} is not {what}: {why}; {advice}")]
pub struct BadName {
    text: String,
    what: &'static str,
    why: &'static str,
    advice: &'static str,
}

/// The name of a model on the Hub: `Qwen/Qwen3-0.6B`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Repo {
    text: String,
}

impl Repo {
    /// Returns the name of the model's folder in the cache.
    pub(crate) fn folder(&self) -> String {
        format!("models--{}", self.text.replace('/', "--"))
    }
}

impl fmt::Display for Repo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Repo {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let fault = match text.split_once('/') {
            None => Some("it has no owner"),
            Some((owner, name)) => part_fault(owner).or_else(|| part_fault(name)),
        };
        match fault {
            Some(why) => Err(BadName {
                text: shortened(text),
                what: "the name of a model on the Hub",
                why,
                advice: "a name is OWNER/MODEL, such as Qwen/Qwen3-0.6B",
            }),
            None => Ok(Self {
                text: text.to_owned(),
            }),
        }
    }
}

/// Returns the rule that the owner or the model's own name breaks.
fn part_fault(part: &str) -> Option<&'static str> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if part.is_empty() {
        Some("a part of it is empty")
    } else if part.len() > MAX_PART {
        Some("a part of it is longer than 96 characters")
    } else if !part.chars().all(is_allowed) {
        Some("only letters, digits, `-`, `_`, `.` and one `/` are allowed")
    } else if part.starts_with(['-', '.']) || part.ends_with(['-', '.']) {
        Some("a part of it begins or ends with `-` or `.`")
    } else if part.contains("..") || part.contains("--") {
        Some("it contains `..` or `--`")
    } else {
        None
    }
}

/// A branch, a tag or a commit of a model: `main`, `refs/pr/1`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Revision {
    text: String,
}

impl Revision {
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns true if this is the full hash of a commit, whose files never change.
    pub(crate) fn is_commit(&self) -> bool {
        is_hex(&self.text, 40)
    }
}

impl Default for Revision {
    /// Returns the branch `main`.
    fn default() -> Self {
        Self {
            text: "main".to_owned(),
        }
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Revision {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.+/@=".contains(c);
        let why = if text.len() > MAX_REVISION {
            "it is longer than 255 characters"
        } else if !text.chars().all(is_allowed) {
            "it contains a character that no revision has"
        } else if !is_relative(text) {
            "a part of it is empty, `.` or `..`"
        } else {
            return Ok(Self {
                text: text.to_owned(),
            });
        };
        Err(BadName {
            text: shortened(text),
            what: "a revision",
            why,
            advice: "give a branch, a tag or the 40 hexadecimal digits of a commit",
        })
    }
}

/// Returns true if `path` stays inside the folder that it is joined to, on every system.
pub(crate) fn is_safe_path(path: &str) -> bool {
    path.len() <= MAX_PATH
        && is_relative(path)
        && !path.contains(|c: char| c.is_control() || "\\:".contains(c))
}

/// Returns true if no part between slashes is empty, `.` or `..`.
fn is_relative(path: &str) -> bool {
    path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// Returns true if `text` has exactly `digits` lower-case hexadecimal digits.
pub(crate) fn is_hex(text: &str, digits: usize) -> bool {
    let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    text.len() == digits && text.bytes().all(is_digit)
}

/// Returns the path as the part of an address: all but unreserved characters and `/` in percents.
pub(crate) fn encoded(path: &str, keeps_slash: bool) -> String {
    let mut encoded = String::with_capacity(path.len());
    for byte in path.bytes() {
        let is_plain = byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
        if is_plain || (keeps_slash && byte == b'/') {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// Returns the beginning of a text that an error shows.
fn shortened(text: &str) -> String {
    text.chars().take(120).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_become_folders_or_are_refused() {
        let check = |text: &str, expected: Option<&str>| {
            let repo = text.parse::<Repo>();
            assert_eq!(repo.ok().map(|r| r.folder()).as_deref(), expected, "{text}");
        };
        check("Qwen/Qwen3-0.6B", Some("models--Qwen--Qwen3-0.6B"));
        check("a/b_c.d", Some("models--a--b_c.d"));
        for wrong in [
            "", "gpt2", "/", "a/", "/b", "a/b/c", "../b", "a/..", "a/.b", "a/b.", "a/b--c",
            "a\\b/c", "a/b c", "a/b?x", "a/b\n", "ä/b", "a/b%2e",
        ] {
            check(wrong, None);
        }
        check(&format!("a/{}", "b".repeat(97)), None);
    }

    #[test]
    fn revisions_are_accepted_or_refused() {
        let check =
            |text: &str, ok: bool| assert_eq!(text.parse::<Revision>().is_ok(), ok, "{text}");
        for right in ["main", "v1.0", "refs/pr/1", "feature/x_y", &"0".repeat(40)] {
            check(right, true);
        }
        for wrong in [
            "", "/", "a//b", "..", "a/../b", "a/", "/a", "a b", "a\nb", "a?b", "a\\b",
        ] {
            check(wrong, false);
        }
        assert!("0".repeat(40).parse::<Revision>().unwrap().is_commit());
        assert!(!Revision::default().is_commit());
    }

    #[test]
    fn parts_of_addresses_are_encoded() {
        assert_eq!(
            encoded("1_Pooling/config.json", true),
            "1_Pooling/config.json"
        );
        assert_eq!(encoded("refs/pr/1", false), "refs%2Fpr%2F1");
        assert_eq!(encoded("a b#?ä", true), "a%20b%23%3F%C3%A4");
    }

    proptest! {
        /// A path that passes never leaves its folder.
        #[test]
        fn safe_paths_stay_inside(path in "[a./\\\\:\\x00b]{0,12}") {
            if is_safe_path(&path) {
                let mut depth = 0_i32;
                for component in std::path::Path::new(&path).components() {
                    prop_assert!(matches!(component, std::path::Component::Normal(_)));
                    depth += 1;
                }
                prop_assert!(depth > 0);
            }
        }
    }
}
