//! Recorded traffic: when requests came, how long they were, and what they shared.
//!
//! The files are their authors' and not part of this project. Prompts are made up, with what the
//! file says of their length and of what they share: no text is kept of those that have any.

mod azure;
mod chat;
mod mooncake;

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};

use super::{Arrival, Workload};

/// Reads a trace, by the file's extension: Azure's CSV, Mooncake's JSON lines, or conversations: a
/// JSON array in `ShareGPT`'s form, or JSON lines in that of LMSYS-Chat-1M.
///
/// # Errors
/// If there is no such file, or a line is not what it is to be: the message has both.
pub fn read(path: &Path) -> Result<Workload> {
    let open = || {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok::<_, anyhow::Error>(BufReader::new(file))
    };
    let arrivals = match path.extension().and_then(|e| e.to_str()) {
        Some("csv") => azure::arrivals(&mut Lines::new(path, open()?))?,
        Some("jsonl") => {
            let first = Lines::new(path, open()?).next()?;
            let lines = &mut Lines::new(path, open()?);
            match first.is_some_and(|line| chat::is_conversation(&line)) {
                true => chat::arrivals(lines)?,
                false => mooncake::arrivals(lines)?,
            }
        }
        Some("json") => {
            chat::arrivals_of_array(open()?).with_context(|| path.display().to_string())?
        }
        _ => bail!(
            "{}: a trace is a .csv (Azure), a .jsonl (Mooncake, LMSYS-Chat-1M) or a .json (ShareGPT)",
            path.display()
        ),
    };
    ensure!(!arrivals.is_empty(), "{} has no requests", path.display());
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    Ok(Workload::new(name, arrivals))
}

/// Returns the time between each request of a workload and the next.
#[must_use]
pub fn gaps(workload: &Workload) -> Vec<Duration> {
    let pairs = workload.arrivals.windows(2);
    pairs.map(|w| w[1].at.saturating_since(w[0].at)).collect()
}

type Arrivals = Result<Vec<Arrival>>;

/// Lines of a file, numbered for messages.
struct Lines<'a> {
    path: &'a Path,
    lines: Box<dyn Iterator<Item = std::io::Result<String>> + 'a>,
    number: usize,
}

impl<'a> Lines<'a> {
    fn new(path: &'a Path, from: impl BufRead + 'a) -> Self {
        Self {
            path,
            lines: Box::new(from.lines()),
            number: 0,
        }
    }

    /// Returns the next line that is not empty.
    fn next(&mut self) -> Result<Option<String>> {
        while let Some(line) = self.lines.next() {
            self.number += 1;
            let line = line.with_context(|| self.place())?;
            if !line.trim().is_empty() {
                return Ok(Some(line));
            }
        }
        Ok(None)
    }

    /// Reads something off a line, or says where it could not.
    fn parse<T>(&self, line: &str, parse: impl FnOnce(&str) -> Result<T>) -> Result<T> {
        parse(line).with_context(|| self.place())
    }

    fn place(&self) -> String {
        format!("{}, line {}", self.path.display(), self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a trace read from memory.
    pub(super) fn from(name: &str, text: &str, format: fn(&mut Lines<'_>) -> Arrivals) -> Arrivals {
        format(&mut Lines::new(Path::new(name), text.as_bytes()))
    }

    /// Returns the error of a file, with its causes.
    pub(super) fn error(name: &str, text: &str, format: fn(&mut Lines<'_>) -> Arrivals) -> String {
        format!("{:#}", from(name, text, format).unwrap_err())
    }

    #[test]
    fn a_file_is_read_by_its_extension() {
        let folder = std::env::temp_dir().join(format!("prelude-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            read(&path)
        };
        let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
                     2023-11-16 18:17:03.5,48,10\n2023-11-16 18:17:04.0,31,8\n";
        let workload = write("azure.csv", azure).unwrap();
        assert_eq!((&*workload.name, workload.arrivals.len()), ("azure", 2));
        assert_eq!(gaps(&workload), [Duration::from_millis(500)]);
        let line = r#"{"timestamp": 0, "input_length": 3, "output_length": 5, "hash_ids": [0]}"#;
        assert_eq!(write("mooncake.jsonl", line).unwrap().arrivals.len(), 1);
        let chat = r#"{"conversation": [{"role": "user", "content": "Hello"},
                       {"role": "assistant", "content": "Hi"}]}"#
            .replace('\n', "");
        assert_eq!(write("lmsys.jsonl", &chat).unwrap().arrivals.len(), 1);
        assert_eq!(
            write("sharegpt.json", &format!("[{chat}]"))
                .unwrap()
                .arrivals
                .len(),
            1
        );
        let message = |result: Result<Workload>| format!("{:#}", result.unwrap_err());
        assert!(message(write("empty.jsonl", "\n")).ends_with("empty.jsonl has no requests"));
        assert!(message(write("trace.txt", "")).contains("a trace is a .csv"));
        let missing = message(read(&folder.join("no.csv")));
        assert!(missing.starts_with("cannot read "), "{missing}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
