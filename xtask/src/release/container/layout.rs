//! An OCI image layout of one image with one layer: files that are named by their digests, and an
//! index that leads to them. The same folder has the `manifest.json` that older versions of Docker
//! read.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The files and folders of a layout.
pub(super) const PATHS: [&str; 4] = ["blobs", "index.json", "manifest.json", "oci-layout"];

const BLOBS: &str = "blobs/sha256";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// An image.
#[derive(Debug, PartialEq)]
pub(super) struct Image {
    /// The configuration. Its `rootfs` is that of the layer, whatever it says.
    pub(super) config: Value,
    /// The layer: a tar file.
    pub(super) layer: Vec<u8>,
    /// The name by which the image is run.
    pub(super) name: String,
    /// The tag of that name.
    pub(super) tag: String,
}

impl Image {
    /// Writes the image's files into a new folder.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder.join(BLOBS))
            .with_context(|| format!("cannot make {}", folder.display()))?;
        let layer = Blob::of(&self.layer, LAYER);
        layer.write(folder, &self.layer)?;
        let mut config = self.config.clone();
        config["rootfs"] = json!({ "type": "layers", "diff_ids": [layer.id()] });
        let text = config.to_string();
        let config = Blob::of(text.as_bytes(), CONFIG);
        config.write(folder, text.as_bytes())?;
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": config.descriptor(), "layers": [layer.descriptor()],
        });
        let text = manifest.to_string();
        let manifest = Blob::of(text.as_bytes(), MANIFEST);
        manifest.write(folder, text.as_bytes())?;
        let mut descriptor = manifest.descriptor();
        descriptor["annotations"] = json!({
            "io.containerd.image.name": format!("docker.io/library/{}:{}", self.name, self.tag),
            "org.opencontainers.image.ref.name": self.tag,
        });
        let index = json!({
            "schemaVersion": 2, "mediaType": INDEX, "manifests": [descriptor],
        });
        let of_docker = json!([{
            "Config": config.path(), "Layers": [layer.path()],
            "RepoTags": [format!("{}:{}", self.name, self.tag)],
        }]);
        for (name, document) in [
            ("oci-layout", json!({ "imageLayoutVersion": "1.0.0" })),
            ("index.json", index),
            ("manifest.json", of_docker),
        ] {
            let path = folder.join(name);
            fs::write(&path, document.to_string())
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    /// Reads an image and checks that each file is what its descriptor says, and that Docker's list
    /// leads to the same files.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let version = document(&folder.join("oci-layout"))?;
        ensure!(version["imageLayoutVersion"] == "1.0.0", "{version}");
        let index = document(&folder.join("index.json"))?;
        let manifest = blob(folder, only(&index["manifests"])?, MANIFEST)?;
        let manifest: Value = serde_json::from_slice(&manifest)?;
        let (config, layer) = (&manifest["config"], only(&manifest["layers"])?);
        let of_docker = document(&folder.join("manifest.json"))?;
        let of_docker = only(&of_docker)?;
        let layer_bytes = blob(folder, layer, LAYER)?;
        let config_bytes = blob(folder, config, CONFIG)?;
        for (listed, descriptor) in [
            (&of_docker["Config"], config),
            (only(&of_docker["Layers"])?, layer),
        ] {
            let path = path(descriptor)?;
            ensure!(listed == &*path, "manifest.json has {listed}, not {path}");
        }
        let config: Value = serde_json::from_slice(&config_bytes)?;
        let ids = &config["rootfs"]["diff_ids"];
        ensure!(
            only(ids)? == &layer["digest"],
            "the configuration has the layers {ids}"
        );
        let tags = only(&of_docker["RepoTags"])?;
        let tag = tags.as_str().and_then(|tag| tag.split_once(':'));
        let (name, tag) = tag.with_context(|| format!("{tags} is no tag"))?;
        Ok(Self {
            config,
            layer: layer_bytes,
            name: name.to_owned(),
            tag: tag.to_owned(),
        })
    }
}

/// A file that is named by its digest.
struct Blob {
    digest: String,
    size: usize,
    kind: &'static str,
}

impl Blob {
    fn of(bytes: &[u8], kind: &'static str) -> Self {
        let digest = digest(bytes);
        let size = bytes.len();
        Self { digest, size, kind }
    }

    fn id(&self) -> String {
        format!("sha256:{}", self.digest)
    }

    fn path(&self) -> String {
        format!("{BLOBS}/{}", self.digest)
    }

    fn descriptor(&self) -> Value {
        json!({ "mediaType": self.kind, "digest": self.id(), "size": self.size })
    }

    fn write(&self, folder: &Path, bytes: &[u8]) -> Result<()> {
        let path = folder.join(self.path());
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    }
}

fn digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn document(path: &Path) -> Result<Value> {
    let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is not JSON", path.display()))
}

/// Returns the only value of a list.
fn only(list: &Value) -> Result<&Value> {
    match list.as_array().map(Vec::as_slice) {
        Some([one]) => Ok(one),
        _ => anyhow::bail!("a list of one was expected: {list}"),
    }
}

/// Returns the path of the file that a descriptor names.
fn path(descriptor: &Value) -> Result<String> {
    let digest = descriptor["digest"].as_str();
    let digest = digest.and_then(|digest| digest.strip_prefix("sha256:"));
    let digest = digest.filter(|digest| digest.chars().all(|c| c.is_ascii_hexdigit()));
    let digest = digest.with_context(|| format!("no SHA-256 in {descriptor}"))?;
    Ok(format!("{BLOBS}/{digest}"))
}

/// Reads the file that a descriptor names, and checks its kind, its size and its digest.
fn blob(folder: &Path, descriptor: &Value, kind: &str) -> Result<Vec<u8>> {
    ensure!(descriptor["mediaType"] == kind, "{descriptor} is no {kind}");
    let path = path(descriptor)?;
    let bytes = fs::read(folder.join(&path)).with_context(|| format!("cannot read {path}"))?;
    ensure!(
        descriptor["size"] == bytes.len(),
        "{path} has {} bytes: {descriptor}",
        bytes.len()
    );
    let found = digest(&bytes);
    ensure!(
        path.ends_with(&found),
        "{path} has another digest, {found}: it was changed"
    );
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, change: impl Fn(&Path), expected: Result<(), &str>) {
        let folder =
            std::env::temp_dir().join(format!("prelude-oci-{name}-{}", std::process::id()));
        let image = Image {
            config: json!({ "os": "linux" }),
            layer: b"a layer".to_vec(),
            name: "prelude".to_owned(),
            tag: "1.2.3".to_owned(),
        };
        image.write(&folder).unwrap();
        change(&folder);
        let read = Image::read(&folder);
        fs::remove_dir_all(&folder).unwrap();
        match expected {
            Ok(()) => {
                let read = read.unwrap();
                let id = format!("sha256:{}", digest(b"a layer"));
                let rootfs = json!({ "type": "layers", "diff_ids": [id] });
                assert_eq!(read.config, json!({ "os": "linux", "rootfs": rootfs }));
                assert_eq!((read.layer, read.name), (image.layer, image.name));
                assert_eq!(read.tag, image.tag);
            }
            Err(part) => {
                let error = format!("{:#}", read.unwrap_err());
                assert!(error.contains(part), "{error}");
            }
        }
    }

    #[test]
    fn an_image_is_read_as_it_was_written() {
        check("whole", |_| (), Ok(()));
    }

    #[test]
    fn a_changed_or_missing_file_is_found() {
        let layer = |folder: &Path| folder.join(BLOBS).join(digest(b"a layer"));
        check(
            "changed",
            |folder| fs::write(layer(folder), b"A layer").unwrap(),
            Err("another digest"),
        );
        check(
            "longer",
            |folder| fs::write(layer(folder), b"a layer!").unwrap(),
            Err("has 8 bytes"),
        );
        check(
            "missing",
            |folder| fs::remove_file(layer(folder)).unwrap(),
            Err("cannot read"),
        );
    }
}
