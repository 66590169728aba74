//! The door: a model by its name, from the cache or from the Hub.

use std::{
    fs,
    path::{Path, PathBuf},
};

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};

use crate::{
    Error, HubConfig, Progress, Repo, Revision,
    cache::{Cache, has_size},
    client::Client,
    download::download,
    listing::{Listing, RemoteFile},
    progress::Meter,
    selection,
};

/// Files that are fetched at once.
const PARALLEL: usize = 4;

/// Judges a model by its folder, in which `config.json` and `modules.json` are by then, and by the
/// paths of all files that the Hub has of the model. An `Err` says why the model is not wanted.
pub type Check = fn(&Path, &[&str]) -> Result<(), String>;

/// A Hub and its cache.
#[derive(Clone, Debug)]
pub struct Hub {
    config: HubConfig,
    check: Option<Check>,
}

/// A model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The folder with the model's files.
    pub folder: PathBuf,
    /// The hash of the commit.
    pub commit: String,
    /// A reason why the files may be incomplete or old, for the operator.
    pub warning: Option<String>,
}

impl Hub {
    /// Returns a Hub with these settings. Opens nothing.
    ///
    /// # Errors
    /// [`Error::Config`] if the folder of the cache is not an absolute path and there is no current
    /// folder.
    pub fn new(mut config: HubConfig) -> Result<Self, Error> {
        // Links and folders that are handed out must not depend on the current folder.
        config.cache = std::path::absolute(&config.cache).map_err(|e| Error::Config {
            name: "HF_HUB_CACHE",
            why: e.to_string(),
        })?;
        Ok(Self {
            config,
            check: None,
        })
    }

    /// Returns the Hub with a check that a model must pass before its tokenizer and its weights are
    /// downloaded. A model that the cache has is not checked.
    #[must_use]
    pub fn with_check(self, check: Check) -> Self {
        Self {
            check: Some(check),
            ..self
        }
    }

    /// Returns the model from the cache if all of its files are there, without a connection; else
    /// downloads what is missing.
    ///
    /// A cache that another program filled may not say which files the model has. Then the Hub is
    /// asked; if that fails or is forbidden, the model is returned with a warning as long as it has
    /// `config.json` and weights.
    ///
    /// Blocks until the end. `report` is called on this thread for each change.
    ///
    /// # Errors
    /// [`Error`].
    ///
    /// # Panics
    /// If called by a task of a tokio runtime; call it by `spawn_blocking` there.
    pub fn open(
        &self,
        repo: &Repo,
        revision: &Revision,
        report: &dyn Fn(Progress),
    ) -> Result<Snapshot, Error> {
        let cache = Cache::new(&self.config.cache, repo);
        let cached = self.cached(&cache, revision)?;
        match cached {
            Some(snapshot) if snapshot.warning.is_none() || self.config.offline => Ok(snapshot),
            None => self.pull(repo, revision, report),
            Some(unlisted) => match self.pull(repo, revision, report) {
                Err(e) if e.is_outage() => Ok(Snapshot {
                    warning: Some(format!("{e}; the model is served as the cache has it")),
                    ..unlisted
                }),
                pulled => pulled,
            },
        }
    }

    /// Asks the Hub which commit the revision has now, and downloads what is missing of it.
    ///
    /// Where the network is switched off, or the revision is a commit, a complete model in the cache
    /// is returned without a connection.
    ///
    /// Blocks until the end. `report` is called on this thread for each change.
    ///
    /// # Errors
    /// [`Error`].
    ///
    /// # Panics
    /// If called by a task of a tokio runtime; call it by `spawn_blocking` there.
    pub fn pull(
        &self,
        repo: &Repo,
        revision: &Revision,
        report: &dyn Fn(Progress),
    ) -> Result<Snapshot, Error> {
        let cache = Cache::new(&self.config.cache, repo);
        if self.config.offline {
            let cached = self.cached(&cache, revision)?;
            return cached.ok_or_else(|| Error::Offline {
                repo: repo.clone(),
                revision: revision.clone(),
                cache: self.config.cache.clone(),
            });
        }
        if revision.is_commit()
            && let Some(cached) = self.cached(&cache, revision)?
            && cached.warning.is_none()
        {
            return Ok(cached);
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| Error::Io {
                path: self.config.cache.clone(),
                source,
            })?;
        let pulled = runtime.block_on(self.fetch_all(&cache, repo, revision, report));
        // A look-up of a name that hangs is left to itself.
        runtime.shutdown_background();
        pulled
    }

    /// Returns the model as the cache has it, with a warning if its list of files is not there.
    fn cached(&self, cache: &Cache, revision: &Revision) -> Result<Option<Snapshot>, Error> {
        let Some(commit) = cache.commit(revision) else {
            return Ok(None);
        };
        let folder = cache.snapshot(&commit);
        let configs = [selection::CONFIG, selection::ENCODER_CONFIG];
        if !configs.iter().any(|file| folder.join(file).is_file()) {
            return Ok(None);
        }
        let (is_complete, warning) = match cache.listing(&commit) {
            Some(listing) => (is_complete(cache, &commit, &listing)?, None),
            None => {
                let weights = [selection::WEIGHTS, selection::INDEX, selection::BACKBONE[1]];
                let has_weights = weights.iter().any(|file| folder.join(file).is_file());
                let warning = "the cache has no list of the model's files, so some may be missing; `prelude pull` completes it";
                (has_weights, Some(warning.to_owned()))
            }
        };
        Ok(is_complete.then_some(Snapshot {
            folder,
            commit,
            warning,
        }))
    }

    async fn fetch_all(
        &self,
        cache: &Cache,
        repo: &Repo,
        revision: &Revision,
        report: &dyn Fn(Progress),
    ) -> Result<Snapshot, Error> {
        let client = Client::new(&self.config)?;
        let description = client.describe(repo, revision).await?;
        let listing = Listing::from_hub(&description);
        let (commit, listing) = listing.map_err(|why| Error::Listing {
            what: format!("the description of {repo} by {}", self.config.endpoint),
            why,
        })?;
        let pull = Pull {
            client,
            cache,
            repo,
            revision,
            commit: &commit,
            meter: Meter::new(report),
        };
        let files = selection::first_files(repo, &listing)?;
        cache.prepare()?;
        let (judged, others): (Vec<_>, Vec<_>) = files
            .iter()
            .cloned()
            .partition(|file| selection::JUDGED.contains(&&*file.path));
        pull.fetch(&judged).await?;
        if let Some(check) = self.check {
            let paths: Vec<&str> = listing.paths().collect();
            check(&cache.snapshot(&commit), &paths).map_err(|why| Error::Unwanted {
                repo: repo.clone(),
                why,
            })?;
        }
        pull.fetch(&others).await?;
        if files.iter().any(|file| file.path == selection::INDEX) {
            let shards = selection::shards(&cache.index(&commit)?, &listing);
            pull.fetch(&shards.map_err(|why| Error::Listing {
                what: format!("{} of {repo}", selection::INDEX),
                why,
            })?)
            .await?;
        }
        // The order matters: a list without files is an unfinished download, and a branch moves
        // last.
        cache.set_listing(&commit, &listing)?;
        cache.set_commit(revision, &commit)?;
        Ok(Snapshot {
            folder: cache.snapshot(&commit),
            commit,
            warning: None,
        })
    }
}

/// Returns true if the snapshot has every file that is read.
fn is_complete(cache: &Cache, commit: &str, listing: &Listing) -> Result<bool, Error> {
    let any: Repo = "any/model".parse()?;
    // A model that cannot be served is not complete: asking the Hub says why.
    let Ok(files) = selection::first_files(&any, listing) else {
        return Ok(false);
    };
    let has = |file: &RemoteFile| cache.has(commit, file);
    if !files.iter().all(has) {
        return Ok(false);
    }
    if !files.iter().any(|file| file.path == selection::INDEX) {
        return Ok(true);
    }
    let shards = selection::shards(&cache.index(commit)?, listing);
    Ok(shards.is_ok_and(|shards| shards.iter().all(has)))
}

/// The download of one model at one commit.
struct Pull<'a> {
    client: Client,
    cache: &'a Cache,
    repo: &'a Repo,
    revision: &'a Revision,
    commit: &'a str,
    meter: Meter<'a>,
}

impl Pull<'_> {
    /// Fetches the files that are missing, several at once.
    async fn fetch(&self, files: &[RemoteFile]) -> Result<(), Error> {
        self.check_room(files)?;
        let bytes = files.iter().map(|file| file.size).sum();
        self.meter.expect(files.len() as u64, bytes);
        stream::iter(files)
            .map(|file| self.fetch_one(file))
            .buffer_unordered(PARALLEL)
            .try_collect()
            .await
    }

    async fn fetch_one(&self, file: &RemoteFile) -> Result<(), Error> {
        let blob = self.cache.blob(&file.checksum);
        let patience = self.client.timing().lock;
        if has_size(&blob, file.size) {
            self.meter.add_bytes(file.size);
        } else {
            let _lock = self.cache.lock(file, patience).await?;
            // Another process may have fetched the file meanwhile.
            if has_size(&blob, file.size) {
                self.meter.add_bytes(file.size);
            } else {
                let url = self.client.file_url(self.repo, self.commit, &file.path);
                let refused = |refusal| self.client.refused(refusal, self.repo, self.revision);
                download(&self.client, &url, file, &blob, &self.meter, refused).await?;
            }
        }
        self.cache.link(self.commit, file)?;
        self.meter.add_file();
        Ok(())
    }

    /// Checks that the disk has room for what is missing.
    fn check_room(&self, files: &[RemoteFile]) -> Result<(), Error> {
        let missing = |file: &RemoteFile| {
            let blob = self.cache.blob(&file.checksum);
            if has_size(&blob, file.size) {
                return 0;
            }
            let arrived = fs::metadata(blob.with_extension("incomplete"));
            file.size.saturating_sub(arrived.map_or(0, |m| m.len()))
        };
        let needed: u64 = files.iter().map(missing).fold(0, u64::saturating_add);
        match self.cache.free_bytes() {
            Some(free) if free < needed => Err(Error::DiskFull {
                folder: self.cache.folder(),
                needed,
                free,
            }),
            _ => Ok(()),
        }
    }
}
