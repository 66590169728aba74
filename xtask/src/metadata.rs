//! The output of `cargo metadata`.

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::run;

#[derive(Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
    pub(crate) workspace_members: Vec<String>,
}

#[derive(Deserialize)]
pub(crate) struct Package {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) license: Option<String>,
    pub(crate) repository: Option<String>,
    /// The registries that the package may be published to: `None` for any, empty for none.
    publish: Option<Vec<String>>,
    pub(crate) description: Option<String>,
    pub(crate) manifest_path: std::path::PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
}

impl Package {
    /// Returns the folder of a package of ours, from the workspace's root.
    pub(crate) fn folder(&self) -> &str {
        let folder = self.manifest_path.parent();
        let folder = folder.and_then(|f| f.strip_prefix(run::root()).ok()?.to_str());
        folder.unwrap_or_default()
    }

    /// Returns true if the package may be published.
    pub(crate) fn is_published(&self) -> bool {
        self.publish.as_ref().is_none_or(|to| !to.is_empty())
    }
}

#[derive(Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// `None` for normal dependencies, else `"dev"` or `"build"`.
    pub(crate) kind: Option<String>,
}

impl Metadata {
    pub(crate) fn load() -> Result<Self> {
        let json = run::cargo(["metadata", "--format-version", "1", "--locked"]).output()?;
        serde_json::from_str(&json).context("cannot read the output of cargo metadata")
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages
            .iter()
            .filter(|p| self.workspace_members.contains(&p.id))
    }
}
