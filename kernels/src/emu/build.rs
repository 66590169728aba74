//! Compiling the emulation: each source to an object, named by the hash of all it depends on.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use sha2::{Digest, Sha256};

use super::Error;

/// The compiler and its arguments.
#[derive(Clone, Debug)]
pub struct Build {
    /// The compiler: g++ from 9 on.
    pub compiler: String,
    /// The folder of this crate, with `emu`, `include` and `src`.
    pub sources: PathBuf,
    /// The folder in which objects and libraries are made and found again.
    pub cache: PathBuf,
    /// The faults that the compiler instruments for.
    pub sanitizer: Option<Sanitizer>,
    /// True if a warning is an error.
    pub strict: bool,
    /// Switch fibres by `swapcontext` instead of assembly, as on processors other than x86-64.
    pub portable_fibres: bool,
}

/// Checks that the compiler builds in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sanitizer {
    /// `-fsanitize=undefined`, which ends the process at the first finding.
    Undefined,
    /// `-fsanitize=address`: the process must have been started with its runtime preloaded.
    Address,
}

impl Default for Build {
    /// Returns the build of this checkout, with g++.
    fn default() -> Self {
        let sources = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let cache = sources.join("../target/kernels-emu");
        Self {
            compiler: "g++".to_owned(),
            sources,
            cache,
            sanitizer: None,
            strict: true,
            portable_fibres: false,
        }
    }
}

impl Build {
    /// Compiles what has changed, and returns the library's path.
    pub(super) fn run(&self) -> Result<PathBuf, Error> {
        let compiler = self.compiler_version()?;
        let sources = self.files(&["emu", "src"], &["cpp", "cu"])?;
        fs::create_dir_all(&self.cache).map_err(file("make the folder", &self.cache))?;
        let mut base = Sha256::new();
        base.update(&compiler);
        for flag in self.flags() {
            base.update(flag);
            base.update([0]);
        }
        let mut whole = base.clone();
        let mut objects = Vec::new();
        for source in &sources {
            let mut hash = base.clone();
            for path in self.included(source)? {
                add_file(&mut hash, &path)?;
            }
            whole.update(hash.clone().finalize());
            objects.push((source, self.cache.join(format!("{}.o", name(hash)))));
        }
        let library = self.cache.join(format!("emu-{}.so", name(whole)));
        if library.exists() {
            return Ok(library);
        }
        self.compile_all(&objects)?;
        let objects = objects.iter().map(|(_, object)| object.as_os_str());
        self.write_atomically(&library, |to| {
            let mut command = self.command();
            command.args(["-shared", "-o"]).arg(to).args(objects);
            command
        })?;
        Ok(library)
    }

    fn flags(&self) -> Vec<&'static str> {
        // No contraction: device code is compiled without it too. Line numbers for sanitizers.
        let mut flags = vec![
            "-std=c++17",
            "-O2",
            "-g1",
            "-fPIC",
            "-ffp-contract=off",
            "-fno-exceptions",
            "-fvisibility=default",
            "-Wall",
            "-Wextra",
            "-Wno-unknown-pragmas", // unroll
        ];
        if self.strict {
            flags.push("-Werror");
        }
        match self.sanitizer {
            None => {}
            Some(Sanitizer::Undefined) => {
                flags.extend(["-fsanitize=undefined", "-fno-sanitize-recover=all"]);
            }
            Some(Sanitizer::Address) => flags.push("-fsanitize=address"),
        }
        if self.portable_fibres {
            flags.push("-DPRELUDE_PORTABLE_FIBRES");
        }
        flags
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.compiler);
        command.args(self.flags());
        command
    }

    /// Returns the compiler's version, or an error if there is no compiler.
    fn compiler_version(&self) -> Result<Vec<u8>, Error> {
        let output = Command::new(&self.compiler).arg("--version").output();
        let output = output.map_err(|e| Error::NoCompiler {
            program: self.compiler.clone(),
            why: e.to_string(),
        })?;
        Ok(output.stdout)
    }

    fn files(&self, folders: &[&str], ends: &[&str]) -> Result<Vec<PathBuf>, Error> {
        let mut files = Vec::new();
        for folder in folders {
            let folder = self.sources.join(folder);
            let entries = fs::read_dir(&folder).map_err(file("list", &folder))?;
            for entry in entries {
                let path = entry.map_err(file("list", &folder))?.path();
                if path
                    .extension()
                    .is_some_and(|e| ends.iter().any(|end| e == *end))
                {
                    files.push(path);
                }
            }
        }
        files.sort();
        Ok(files)
    }

    /// Returns a source and what it includes in quotes, directly and through others, in a fixed
    /// order.
    fn included(&self, source: &Path) -> Result<Vec<PathBuf>, Error> {
        let mut found = vec![source.to_owned()];
        let mut next = 0;
        while let Some(path) = found.get(next) {
            let text = fs::read_to_string(path).map_err(file("read", path))?;
            for line in text.lines() {
                let Some(rest) = line.trim_start().strip_prefix("#include \"") else {
                    continue;
                };
                let name = rest.split('"').next().unwrap_or_default();
                let folders = ["include", "emu"].map(|folder| self.sources.join(folder).join(name));
                let header = folders.into_iter().find(|path| path.exists());
                if let Some(header) = header.filter(|header| !found.contains(header)) {
                    found.push(header);
                }
            }
            next += 1;
        }
        Ok(found)
    }

    fn compile_all(&self, objects: &[(&PathBuf, PathBuf)]) -> Result<(), Error> {
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some((source, object)) = objects.get(next.fetch_add(1, Ordering::Relaxed)) {
                if !object.exists() {
                    self.compile(source, object)?;
                }
            }
            Ok(())
        };
        let workers = thread::available_parallelism().map_or(1, |n| n.get().min(8));
        thread::scope(|scope| {
            let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            workers
                .into_iter()
                .try_for_each(|w| w.join().expect("a worker does not panic"))
        })
    }

    fn compile(&self, source: &Path, object: &Path) -> Result<(), Error> {
        self.write_atomically(object, |to| {
            let mut command = self.command();
            let include = |folder: &str| self.sources.join(folder);
            command.arg("-I").arg(include("include"));
            command.arg("-I").arg(include("emu"));
            command.args(["-x", "c++", "-c", "-o"]).arg(to).arg(source);
            command
        })
    }

    /// Runs a compiler that writes a file, which gets its name once it is whole: several tests
    /// may build at the same time.
    fn write_atomically(
        &self,
        path: &Path,
        command: impl FnOnce(&Path) -> Command,
    ) -> Result<(), Error> {
        static UNIQUE: AtomicUsize = AtomicUsize::new(0);
        let unique = UNIQUE.fetch_add(1, Ordering::Relaxed);
        let partial = path.with_extension(format!("{}-{unique}.partial", std::process::id()));
        let mut command = command(&partial);
        let output = command.output().map_err(|e| Error::NoCompiler {
            program: self.compiler.clone(),
            why: e.to_string(),
        })?;
        if !output.status.success() {
            let last = command.get_args().last().unwrap_or_default();
            return Err(Error::Compile {
                file: last.to_string_lossy().into_owned(),
                output: String::from_utf8_lossy(&output.stderr).into_owned(),
            });
        }
        fs::rename(&partial, path).map_err(file("rename", path))
    }
}

fn add_file(hash: &mut Sha256, path: &Path) -> Result<(), Error> {
    let text = fs::read(path).map_err(file("read", path))?;
    hash.update((text.len() as u64).to_le_bytes());
    hash.update(path.file_name().unwrap_or_default().as_encoded_bytes());
    hash.update(&text);
    Ok(())
}

/// Returns a file name: half of the hash is plenty.
fn name(hash: Sha256) -> String {
    let hash = hash.finalize();
    hash[..16].iter().map(|b| format!("{b:02x}")).collect()
}

fn file(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Error {
    let path = path.to_owned();
    move |e| Error::File {
        action,
        path: path.clone(),
        why: e.to_string(),
    }
}
