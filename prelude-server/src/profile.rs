//! The file of measured times that `prelude profile` writes and `prelude serve --profile` reads.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
};

use prelude_core::Profile;
use prelude_models::file;
use thiserror::Error;

/// Largest file that is read, in bytes: far more samples than a profile has.
const BYTES_MAX: u64 = 16 << 20;

/// The reason why a file of measured times cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot read the profile {file}: {error}")]
    File {
        /// The file.
        file: String,
        /// The reason.
        error: io::Error,
    },
    /// The file is no valid [`Profile`].
    #[error("cannot use the profile {file}: {error}")]
    Profile {
        /// The file.
        file: String,
        /// The mistake and its place.
        error: serde_json::Error,
    },
}

/// Reads a profile from a file, and checks it.
///
/// # Errors
/// [`ReadError`], which names the file.
pub fn read(path: &Path) -> Result<Profile, ReadError> {
    let of_file = |error| ReadError::File {
        file: path.display().to_string(),
        error,
    };
    let text = file::read(path, BYTES_MAX).map_err(of_file)?;
    serde_json::from_slice(&text).map_err(|error| ReadError::Profile {
        file: path.display().to_string(),
        error,
    })
}

/// Writes a profile to a file. A file that is there is replaced as a whole or stays as it is.
///
/// # Errors
/// The errors of the file system.
pub fn write(path: &Path, profile: &Profile) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(profile)?;
    text.push(b'\n');
    let mut draft = OsString::from(path);
    draft.push(format!(".{}.new", std::process::id()));
    let written = File::create(&draft)
        .and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        // The rest of the draft is of no use.
        let _ = fs::remove_file(&draft);
    }
    written
}

#[cfg(test)]
mod tests {
    use prelude_core::{Capacity, ServiceTime};

    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let folder = std::env::temp_dir().join(format!("prelude-profile-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("profile.json");
        let profile = Profile {
            version: Profile::VERSION,
            model: "m".to_owned(),
            executor: "cpu".to_owned(),
            capacity: Capacity {
                block_size: 16,
                num_blocks: 100,
                max_step_tokens: 2048,
                full_step_tokens: 2048,
                max_context_len: 1600,
                vocab_size: 9,
                pipeline_depth: 1,
                passes: None,
                attention: prelude_core::Attention::Causal,
                host_blocks: 0,
            },
            service: ServiceTime::default(),
            prefill: Vec::new(),
            decode: Vec::new(),
        };
        for model in ["m", "other"] {
            let profile = Profile {
                model: model.to_owned(),
                ..profile.clone()
            };
            write(&path, &profile).unwrap();
            assert_eq!(read(&path).unwrap(), profile);
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        let error = write(&folder.join("none/profile.json"), &profile);
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::NotFound);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() / 2]).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("profile.json: EOF"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.starts_with("cannot read the profile"), "{error}");
    }
}
