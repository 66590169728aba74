//! `--decide-format`: a wording of typed questions, by its name or as a file in TOML.

use std::path::Path;

use prelude_models::file;
use prelude_server::{AskWording, PROMPT_FORMAT, WordingFile};

/// The most bytes of a wording's file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A wording; `None` is that of `prelude-decide-1`.
pub(crate) type Wording = Box<Option<WordingFile>>;

/// Returns the wording of a name, or reads the file.
///
/// # Errors
/// A description of the file's fault.
pub(crate) fn read(name: &str) -> Result<Wording, String> {
    if name == PROMPT_FORMAT {
        return Ok(Box::new(None));
    }
    if let Some(built_in) = AskWording::named(name) {
        return Ok(Box::new(Some(built_in)));
    }
    let wrong = |e: &dyn std::fmt::Display| {
        format!("neither {PROMPT_FORMAT}, tev1 nor a file of a wording: {name}: {e}")
    };
    let bytes = file::read(Path::new(name), FILE_BYTES_MAX).map_err(|e| wrong(&e))?;
    let text = std::str::from_utf8(&bytes).map_err(|e| wrong(&e))?;
    let wording: WordingFile = toml::from_str(text).map_err(|e| wrong(&e))?;
    // Compiled here too, so that a mistake is told before a model is read.
    AskWording::new(wording.clone()).map_err(|e| wrong(&e))?;
    Ok(Box::new(Some(wording)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wordings_are_names_or_files() {
        assert_eq!(*read(PROMPT_FORMAT).unwrap(), None);
        assert_eq!(read("tev1").unwrap().unwrap().options_max, 24);
        let missing = read("no/such.toml").unwrap_err();
        assert!(
            missing.contains("tev1") && missing.contains("no/such.toml"),
            "{missing}"
        );
        let path = std::env::temp_dir().join(format!("prelude-wording-{}", std::process::id()));
        let check = |text: &str, expected: Result<&str, &str>| {
            std::fs::write(&path, text).unwrap();
            match (read(path.to_str().unwrap()), expected) {
                (Ok(found), Ok(name)) => assert_eq!(found.unwrap().name, name),
                (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
                (found, _) => panic!("{text}: {found:?}"),
            }
        };
        check(
            "name = 'own'\nuser = '{{ state }}'\nscore = 'letters'",
            Ok("own"),
        );
        check("user = '{{ state }}'", Err("name"));
        check("name = 'own'\nuser = '{{ state'", Err("neither"));
        check("name = 'own'\nuser = ''\ncolour = 1", Err("colour"));
        std::fs::remove_file(path).unwrap();
    }
}
