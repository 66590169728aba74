//! The files of `run-batch`: what is read, what is written, and what an earlier run wrote.

use std::{
    collections::HashMap,
    fs::{File, Metadata, OpenOptions},
    io::{self, BufRead, BufReader, Seek as _, SeekFrom, Write},
    os::{fd::AsFd as _, unix::fs::MetadataExt as _},
    path::Path,
};

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::super::{Code, Failure};

/// Ids that need not be asked again, and whether each was answered 200.
pub(super) type Done = HashMap<String, bool>;

/// A line that an earlier run wrote.
#[derive(Deserialize)]
struct Written {
    custom_id: Option<String>,
    response: Option<Status>,
    #[expect(dead_code, reason = "its presence tells an answer from other JSON")]
    id: IgnoredAny,
}

#[derive(Deserialize)]
struct Status {
    status_code: u16,
}

fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn unusable(path: &Path, why: &dyn std::fmt::Display) -> Failure {
    Failure::new(
        Code::Failed,
        format_args!("cannot use {}: {why}", path.display()),
    )
}

/// Returns the input, and what the system says of its file.
pub(super) fn open_input(path: &Path) -> Result<(Box<dyn BufRead>, Option<Metadata>), Failure> {
    if is_standard(path) {
        let file = io::stdin().as_fd().try_clone_to_owned().map(File::from);
        let metadata = file.and_then(|file| file.metadata());
        return Ok((Box::new(BufReader::new(io::stdin())), metadata.ok()));
    }
    let file = File::open(path).map_err(|e| unusable(path, &e))?;
    let metadata = file.metadata().map_err(|e| unusable(path, &e))?;
    Ok((Box::new(BufReader::new(file)), Some(metadata)))
}

/// An output that is open but not yet touched.
pub(super) struct OutputFile<'a> {
    path: &'a Path,
    /// `None` is standard output.
    file: Option<File>,
    /// Bytes of it that stay; `None` where it is no file that keeps anything, such as a pipe.
    whole: Option<u64>,
}

impl<'a> OutputFile<'a> {
    /// Opens the output, and reads from it what need not be asked again if this run resumes.
    ///
    /// # Errors
    /// It cannot be used, is the input, or holds a line that no run wrote.
    pub(super) fn open(
        path: &'a Path,
        input: Option<&Metadata>,
        resume: bool,
    ) -> Result<(Self, Done), Failure> {
        let mut done = Done::new();
        if is_standard(path) {
            if resume {
                let message = "--resume needs an output file: standard output cannot be read";
                return Err(Failure::new(Code::Usage, message));
            }
            let (file, whole) = (None, None);
            return Ok((Self { path, file, whole }, done));
        }
        let wrong = |e: io::Error| unusable(path, &e);
        let mut options = OpenOptions::new();
        options
            .read(resume)
            .write(true)
            .create(true)
            .truncate(false);
        let file = options.open(path).map_err(wrong)?;
        let metadata = file.metadata().map_err(wrong)?;
        let mut whole = None;
        if metadata.is_file() {
            let place = |of: &Metadata| (of.dev(), of.ino());
            if input.is_some_and(|input| place(input) == place(&metadata)) {
                return Err(unusable(
                    path,
                    &"it is the input, which would be overwritten",
                ));
            }
            whole = Some(match resume {
                true => read_done(&file, &mut done).map_err(wrong)?,
                false => 0,
            });
        }
        let file = Some(file);
        Ok((Self { path, file, whole }, done))
    }

    /// Drops what does not stay. From here lines are written.
    ///
    /// # Errors
    /// The file cannot be cut.
    pub(super) fn start(self) -> Result<Box<dyn Write>, Failure> {
        let Some(mut file) = self.file else {
            return Ok(Box::new(io::stdout()));
        };
        if let Some(whole) = self.whole {
            let cut = file.set_len(whole);
            let cut = cut.and_then(|()| file.seek(SeekFrom::End(0)));
            cut.map_err(|e| unusable(self.path, &e))?;
        }
        Ok(Box::new(file))
    }
}

/// Collects what need not be asked again and returns how many bytes whole lines are: a last line
/// that a crash tore has no line break, and is written again.
///
/// Requests that never ran are asked again, and so are those that failed for a reason that passes
/// (429 and 5xx).
fn read_done(file: impl io::Read, done: &mut Done) -> io::Result<u64> {
    let mut reader = BufReader::new(file);
    let mut whole = 0;
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        let len = reader.read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            break;
        }
        whole += len as u64;
        if line.trim_ascii().is_empty() {
            continue;
        }
        let written: Written = serde_json::from_slice(&line).map_err(|e| {
            let why = format!("line {number} is no answer of run-batch ({e}); nothing was changed");
            io::Error::new(io::ErrorKind::InvalidData, why)
        })?;
        if let (Some(id), Some(Status { status_code })) = (written.custom_id, written.response)
            && status_code != 429
            && status_code < 500
        {
            done.insert(id, status_code == 200);
        }
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(id: &str, status: Option<u16>) -> String {
        let response = status.map(|s| serde_json::json!({"status_code": s, "body": {}}));
        format!(
            "{}\n",
            serde_json::json!({"id": "batch_req_1", "custom_id": id, "response": response})
        )
    }

    #[test]
    fn answers_and_lasting_refusals_are_done() {
        let text = [
            line("answered", Some(200)),
            line("refused", Some(400)),
            line("busy", Some(429)),
            line("lost", Some(503)),
            line("failed", Some(500)),
            // Refused as a second line of that name, while the first was not yet answered.
            line("twice", None),
            line("late", Some(503)),
            line("late", Some(200)),
        ]
        .concat();
        let mut done = Done::new();
        // Torn in the last line, though what is there of it is JSON.
        let torn = format!("{text}{{}}");
        let whole = read_done(torn.as_bytes(), &mut done).unwrap();
        assert_eq!(whole, text.len() as u64);
        let mut done: Vec<_> = done.into_iter().collect();
        done.sort();
        let expected = [("answered", true), ("late", true), ("refused", false)];
        assert_eq!(done, expected.map(|(id, ok)| (id.to_owned(), ok)));
    }

    #[test]
    fn a_foreign_line_is_said_and_not_cut() {
        for foreign in ["not json\n", "{\"custom_id\":\"a\"}\n"] {
            let text = format!("{}{foreign}{}", line("a", Some(200)), line("b", Some(200)));
            let wrong = read_done(text.as_bytes(), &mut Done::new()).unwrap_err();
            assert!(wrong.to_string().contains("line 2"), "{wrong}");
        }
    }
}
