//! `MODEL_MANIFEST.json`: the digests of a package's files, which are checked where there are any.

use std::{
    io::Read,
    path::{Component, Path},
};

use sha2::{Digest, Sha256};

use super::{document::document, wrong};
use crate::{Error, file, json::Fields};

const MANIFEST: &str = "MODEL_MANIFEST.json";
/// Schemas of manifests that are known.
const SCHEMAS: [&str; 2] = ["dev2-package-manifest/1", "d3-package-manifest/1"];
/// Bytes that are read of a file at once.
const PIECE_BYTES: usize = 1 << 20;

/// Compares the files of a folder with the digests of its manifest, if it has one.
pub(super) fn verify(folder: &Path) -> Result<(), Error> {
    if !folder.join(MANIFEST).exists() {
        return Ok(());
    }
    let map = document(folder, MANIFEST)?;
    let fields = Fields::new(MANIFEST, &map);
    match fields.text("schema")? {
        Some(schema) if SCHEMAS.contains(&schema) => {}
        Some(other) => return Err(fields.unsupported(format!("`schema` of {other:?}"))),
        None => return Err(fields.wrong("schema", "is missing")),
    }
    let profile = fields.text("profile")?.unwrap_or_default();
    if profile.contains("adapter") || profile.contains("lora") {
        return Err(fields.unsupported(format!("`profile` of {profile:?}: an adapter")));
    }
    let digests = fields.object("files_sha256")?;
    for (name, digest) in fields.required("files_sha256", digests)? {
        let path = Path::new(name);
        let stays = path
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        let digest = digest.as_str().filter(|_| stays);
        let wanted = fields.required(&format!("files_sha256.{name}"), digest)?;
        if digest_of(&folder.join(path))? != wanted.to_ascii_lowercase() {
            let what = format!("is not the file of {MANIFEST}: its SHA-256 is another one");
            return Err(wrong(name, what));
        }
    }
    Ok(())
}

fn digest_of(path: &Path) -> Result<String, Error> {
    let mut hash = Sha256::new();
    let mut read = || {
        let mut file = file::open(path)?;
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(()),
                n => hash.update(&piece[..n]),
            }
        }
    };
    let done: std::io::Result<()> = read();
    done.map_err(|source| Error::Io {
        path: path.to_owned(),
        source,
    })?;
    Ok(hash.finalize().iter().map(|b| format!("{b:02x}")).collect())
}
