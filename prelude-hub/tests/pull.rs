//! Downloads from a stand-in of the Hub that cuts, refuses, redirects and lies.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    cell::Cell,
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use prelude_hub::{Error, Hub, HubConfig, Progress, Proxies, Repo, Revision, Snapshot, Timing};
use rustls::{
    ServerConnection, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use stand_in::{Fault, Model, StandIn, checksum};

mod stand_in;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const WEIGHTS: &str = "/o/m/resolve/0123456789abcdef0123456789abcdef01234567/model.safetensors";
const DESCRIPTION: &str = "GET /api/models/o/m/revision/main?blobs=true";

/// A stand-in with the model `o/m`, and an empty cache that is removed in the end.
struct World {
    stand_in: StandIn,
    cache: PathBuf,
    weights: Vec<u8>,
}

impl Drop for World {
    fn drop(&mut self) {
        // What cannot be removed lies in the system's folder for such things.
        let _ = fs::remove_dir_all(&self.cache);
    }
}

impl World {
    fn new() -> Self {
        static WORLDS: AtomicU32 = AtomicU32::new(0);
        let number = WORLDS.fetch_add(1, Ordering::Relaxed);
        let name = format!("prelude-hub-{}-{number}", std::process::id());
        let weights: Vec<u8> = (0..3_000_000_u32)
            .map(|i| (i.wrapping_mul(i) >> 7) as u8)
            .collect();
        let world = Self {
            stand_in: StandIn::start(),
            cache: std::env::temp_dir().join(name),
            weights,
        };
        world.serve(None);
        world
    }

    fn serve(&self, token: Option<&str>) {
        let file = |path: &str, bytes: &[u8]| (path.to_owned(), bytes.to_vec());
        self.stand_in.serve(Model {
            name: "o/m".to_owned(),
            commit: COMMIT.to_owned(),
            files: BTreeMap::from([
                file("config.json", b"{}"),
                file("tokenizer.json", b"{\"model\":{}}"),
                file("1_Pooling/config.json", b"{ }"),
                file("model.safetensors", &self.weights),
                file("pytorch_model.bin", b"never read"),
                file("original/model.safetensors", b"never read"),
            ]),
            token: token.map(str::to_owned),
        });
    }

    fn hub(&self, change: impl FnOnce(&mut HubConfig)) -> Hub {
        let mut config = HubConfig {
            endpoint: self.stand_in.endpoint(),
            cache: self.cache.clone(),
            token: None,
            offline: false,
            proxies: Proxies::default(),
            authorities: None,
            timing: Timing {
                read: Duration::from_secs(20),
                retry: Duration::from_millis(1),
                ..Timing::default()
            },
        };
        change(&mut config);
        Hub::new(config).unwrap()
    }

    fn open(&self) -> Result<Snapshot, Error> {
        self.hub(|_| ())
            .open(&repo(), &Revision::default(), &|_| ())
    }

    /// Returns the requests so far, each with its range.
    fn asked(&self) -> Vec<String> {
        let text = |asked: stand_in::Asked| match asked.range {
            Some(range) => format!("{} {range}", asked.what),
            None => asked.what,
        };
        let mut asked: Vec<String> = self.stand_in.log().into_iter().map(text).collect();
        asked.sort();
        asked
    }

    /// Checks that the model is there, whole and right.
    fn check(&self, snapshot: &Snapshot) {
        assert_eq!(snapshot.commit, COMMIT);
        assert_eq!(snapshot.warning, None);
        let read = |path: &str| fs::read(snapshot.folder.join(path)).unwrap();
        assert!(read("model.safetensors") == self.weights);
        assert_eq!(read("config.json"), b"{}");
        assert_eq!(read("1_Pooling/config.json"), b"{ }");
        assert_eq!(files_ending(&self.cache, ".incomplete"), [""; 0]);
        assert_eq!(files_ending(&self.cache, ".tmp"), [""; 0]);
    }
}

fn repo() -> Repo {
    "o/m".parse().unwrap()
}

fn file(path: &str) -> String {
    format!("GET /o/m/resolve/{COMMIT}/{path}")
}

/// The requests of a download without faults.
fn all_files() -> Vec<String> {
    let files = [
        "1_Pooling/config.json",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ];
    let mut all = vec![DESCRIPTION.to_owned()];
    all.extend(files.map(file));
    all
}

fn files_ending(folder: &Path, ending: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files_ending(&entry.path(), ending));
        } else if entry.file_name().to_string_lossy().ends_with(ending) {
            found.push(entry.path().display().to_string());
        }
    }
    found
}

#[test]
fn each_file_is_asked_for_once_and_then_none() {
    let world = World::new();
    let last = Cell::new(Progress::default());
    let hub = world.hub(|_| ());
    let snapshot = hub
        .open(&repo(), &Revision::default(), &|p| last.set(p))
        .unwrap();
    world.check(&snapshot);
    assert_eq!(world.asked(), all_files());
    let total = (world.weights.len() + 2 + 12 + 3) as u64;
    let expected = Progress {
        files: 4,
        files_total: 4,
        bytes: total,
        bytes_total: total,
    };
    assert_eq!(last.get(), expected);
    // The layout of Python's library.
    let model = world.cache.join("models--o--m");
    assert_eq!(fs::read_to_string(model.join("refs/main")).unwrap(), COMMIT);
    let link = |path: &str| fs::read_link(model.join("snapshots").join(COMMIT).join(path)).unwrap();
    let sha256 = checksum("model.safetensors", &world.weights);
    assert_eq!(
        link("model.safetensors"),
        Path::new(&format!("../../blobs/{sha256}"))
    );
    let git = checksum("config.json", b"{ }");
    assert_eq!(
        link("1_Pooling/config.json"),
        Path::new(&format!("../../../blobs/{git}"))
    );

    let connections = world.stand_in.connections();
    world.check(&world.open().unwrap());
    let offline = world.hub(|c| c.offline = true);
    world.check(
        &offline
            .open(&repo(), &Revision::default(), &|_| ())
            .unwrap(),
    );
    world.check(
        &offline
            .pull(&repo(), &COMMIT.parse().unwrap(), &|_| ())
            .unwrap(),
    );
    assert_eq!(world.stand_in.connections(), connections);
    // A pull asks for the commit, and finds nothing to fetch.
    let pulled = world
        .hub(|_| ())
        .pull(&repo(), &Revision::default(), &|p| last.set(p));
    world.check(&pulled.unwrap());
    assert_eq!(last.get(), expected);
    assert_eq!(world.asked().len(), all_files().len() + 1);
}

#[test]
fn cut_connections_are_resumed() {
    let world = World::new();
    world.stand_in.fail(
        WEIGHTS,
        [Fault::Cut(1_000), Fault::Cut(2_000_000), Fault::Cut(0)],
    );
    let last = Cell::new(Progress::default());
    let hub = world.hub(|_| ());
    let snapshot = hub
        .open(&repo(), &Revision::default(), &|p| last.set(p))
        .unwrap();
    world.check(&snapshot);
    assert_eq!(last.get().bytes, last.get().bytes_total);
    let weights: Vec<String> = world
        .asked()
        .into_iter()
        .filter(|a| a.contains("model.s"))
        .collect();
    // How much of what was sent before a cut arrives is the network's choice, so ranges begin at
    // what is there, which is never less than before.
    assert_eq!(weights.len(), 4);
    assert_eq!(weights[0], file("model.safetensors"));
    let mut starts: Vec<u64> = weights[1..]
        .iter()
        .map(|w| {
            w.split_once("bytes=")
                .unwrap()
                .1
                .trim_end_matches('-')
                .parse()
                .unwrap()
        })
        .collect();
    starts.sort_unstable();
    assert!(starts[0] > 0 && starts[0] <= 1_000, "{starts:?}");
    assert!(starts[1] > 1_000 && starts[1] == starts[2], "{starts:?}");
}

#[test]
fn another_process_resumes_what_was_left() {
    let world = World::new();
    // More cuts than attempts: the download fails.
    world.stand_in.fail(
        WEIGHTS,
        [
            Fault::Cut(500_000),
            Fault::Cut(0),
            Fault::Cut(0),
            Fault::Cut(0),
            Fault::Cut(0),
        ],
    );
    let error = world.open().unwrap_err();
    assert!(matches!(&error, Error::Network { .. }), "{error}");
    assert!(
        error.to_string().contains("goes on from what has arrived"),
        "{error}"
    );
    let left = files_ending(&world.cache, ".incomplete");
    // Another file may have begun as well.
    let lens = { left.iter() }.map(|path| fs::metadata(path).unwrap().len());
    let len = lens.max().unwrap();
    assert!(len > 0 && len <= 500_000);
    let offline = world.hub(|c| c.offline = true);
    let error = offline.open(&repo(), &Revision::default(), &|_| ());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("HF_HUB_OFFLINE"), "{error}");
    world.check(&world.open().unwrap());
    let asked = world.asked();
    let of = |path: &str| asked.iter().filter(|a| a.contains(path)).count();
    // A file that was under way when the first download failed is asked for once more.
    assert!((1..=2).contains(&of("tokenizer.json")), "{asked:?}");
    assert!((2..=4).contains(&of("/config.json")), "{asked:?}");
    assert!(
        asked.contains(&format!("{} bytes={len}-", file("model.safetensors"))),
        "{asked:?}"
    );
}

#[test]
fn a_damaged_beginning_is_fetched_again() {
    let world = World::new();
    let blobs = world.cache.join("models--o--m/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let sha256 = checksum("model.safetensors", &world.weights);
    for left in [
        vec![7; 1_000],
        vec![7; 4_000_000],
        vec![7; world.weights.len()],
    ] {
        fs::write(blobs.join(format!("{sha256}.incomplete")), &left).unwrap();
        world.check(&world.open().unwrap());
        fs::remove_file(blobs.join(&sha256)).unwrap();
    }
    // A blob of the wrong size is none.
    fs::write(blobs.join(&sha256), [7; 1_000]).unwrap();
    world.check(&world.open().unwrap());
}

#[test]
fn damage_is_found() {
    let world = World::new();
    world.stand_in.fail(WEIGHTS, [Fault::Damage]);
    world.check(&world.open().unwrap());
    for path in ["model.safetensors", "config.json"] {
        let world = World::new();
        let address = format!("/o/m/resolve/{COMMIT}/{path}");
        world
            .stand_in
            .fail(&address, [Fault::Damage, Fault::Damage]);
        let error = world.open().unwrap_err();
        assert!(
            matches!(&error, Error::Checksum { file, .. } if file == path),
            "{error}"
        );
        assert!(!world.cache.join("models--o--m/refs/main").exists());
        world.check(&world.open().unwrap());
    }
}

#[test]
fn wrong_sizes_are_found() {
    let check = |fault: Fault, got: u64| {
        let world = World::new();
        world.stand_in.fail(WEIGHTS, [fault]);
        let error = world.open().unwrap_err();
        let is_right = matches!(error, Error::Size { expected: 3_000_000, got: g, .. } if g == got);
        assert!(is_right, "{error}");
        world.check(&world.open().unwrap());
    };
    check(Fault::Announce(2_999_999), 2_999_999);
    check(Fault::Announce(3_000_001), 3_000_001);
    check(Fault::Longer, 3_000_001);
}

#[test]
fn servers_that_cannot_resume_send_all_again() {
    let world = World::new();
    world
        .stand_in
        .fail(WEIGHTS, [Fault::Cut(1_000_000), Fault::Whole]);
    world.check(&world.open().unwrap());
    let world = World::new();
    let unsatisfiable = Fault::Status(416, String::new());
    world
        .stand_in
        .fail(WEIGHTS, [Fault::Cut(1_000_000), unsatisfiable]);
    world.check(&world.open().unwrap());
}

#[test]
fn the_token_stays_with_the_hub_when_it_redirects() {
    let world = World::new();
    world.serve(Some("hf_secret"));
    let elsewhere = StandIn::start();
    elsewhere.put("/blob?signature=%2F", &world.weights);
    let to = format!("{}/blob?signature=%2F", elsewhere.endpoint());
    world.stand_in.fail(
        WEIGHTS,
        [
            Fault::Redirect("/o/m/there".to_owned()),
            Fault::Redirect(to.clone()),
        ],
    );
    world
        .stand_in
        .fail("/o/m/there", [Fault::Redirect(to.clone())]);
    elsewhere.fail("/blob?signature=%2F", [Fault::Cut(1_000_000)]);
    let hub = world.hub(|c| c.token = Some("hf_secret".to_owned()));
    world.check(&hub.open(&repo(), &Revision::default(), &|_| ()).unwrap());
    let own = world.stand_in.log();
    assert!(
        own.iter()
            .all(|asked| asked.authorization.as_deref() == Some("Bearer hf_secret"))
    );
    let foreign = elsewhere.log();
    assert_eq!(foreign.len(), 2);
    assert!(foreign.iter().all(|asked| asked.authorization.is_none()));
    assert!(foreign[0].range.is_none() && foreign[1].range.is_some());

    let world = World::new();
    world
        .stand_in
        .fail(WEIGHTS, vec![Fault::Redirect(WEIGHTS.to_owned()); 20]);
    let error = world.open().unwrap_err();
    assert!(matches!(&error, Error::Redirect { .. }), "{error}");
}

#[test]
fn refusals_say_what_to_do() {
    let world = World::new();
    let check = |name: &str, revision: &str, token: Option<&str>, expected: &[&str]| {
        let hub = world.hub(|c| c.token = token.map(str::to_owned));
        let opened = hub.open(&name.parse().unwrap(), &revision.parse().unwrap(), &|_| ());
        let error = opened.unwrap_err().to_string();
        for part in expected {
            assert!(error.contains(part), "{error}");
        }
    };
    let endpoint = world.stand_in.endpoint();
    let page = format!("{endpoint}/o/m");
    check(
        "o/none",
        "main",
        None,
        &[
            "status 401",
            "set HF_TOKEN",
            "Check the name",
            &format!("{endpoint}/settings/tokens"),
        ],
    );
    check(
        "o/none",
        "main",
        Some("hf_x"),
        &["has no model o/none", "check the spelling"],
    );
    check(
        "o/m",
        "v9",
        None,
        &["o/m has no revision v9", &format!("{page}/tree/main")],
    );
    world.serve(Some("hf_secret"));
    check(
        "o/m",
        "main",
        None,
        &[
            "status 401",
            &format!("accept the licence at {page}"),
            "HF_TOKEN",
        ],
    );
    check(
        "o/m",
        "main",
        Some("hf_x"),
        &[
            "status 403",
            &format!("accept the licence at {page}"),
            "account of your token",
        ],
    );
    // None of these is worth a second request.
    assert_eq!(world.stand_in.log().len(), 5);
    assert!(!world.cache.exists());
}

#[test]
fn overloaded_servers_are_asked_again_and_not_for_ever() {
    let busy = || Fault::Status(503, "X-Error-Message: busy\r\n".to_owned());
    let late = || Fault::Status(429, "Retry-After: 0\r\n".to_owned());
    let world = World::new();
    world.stand_in.fail(WEIGHTS, [busy(), late()]);
    world
        .stand_in
        .fail("/api/models/o/m/revision/main?blobs=true", [busy(), late()]);
    world.check(&world.open().unwrap());
    let world = World::new();
    world.stand_in.fail(WEIGHTS, vec![busy(); 99]);
    let error = world.open().unwrap_err().to_string();
    assert!(error.contains("status 503: busy"), "{error}");
    assert_eq!(
        world
            .asked()
            .iter()
            .filter(|a| a.contains("model.s"))
            .count(),
        5
    );
    let world = World::new();
    let hub = world.hub(|c| c.endpoint = "http://127.0.0.1:1".to_owned());
    let error = hub
        .open(&repo(), &Revision::default(), &|_| ())
        .unwrap_err();
    assert!(matches!(&error, Error::Network { .. }), "{error}");
}

#[test]
fn silence_has_a_bound() {
    let world = World::new();
    world
        .stand_in
        .fail(WEIGHTS, [Fault::Silence, Fault::Hold(1_000)]);
    let hub = world.hub(|c| {
        c.timing.read = Duration::from_millis(200);
        c.timing.connect = Duration::from_millis(200);
    });
    world.check(&hub.open(&repo(), &Revision::default(), &|_| ()).unwrap());
    let weights = file("model.safetensors");
    let asked: Vec<String> = world
        .asked()
        .into_iter()
        .filter(|a| a.starts_with(&weights))
        .collect();
    assert_eq!(
        asked,
        [
            weights.clone(),
            weights.clone(),
            format!("{weights} bytes=1000-")
        ]
    );
}

#[test]
fn processes_that_want_the_same_file_share_one_download() {
    let world = World::new();
    world.stand_in.fail(WEIGHTS, [Fault::Hold(1_000)]);
    let snapshots = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| world.open().unwrap()))
            .collect();
        // All of them have asked for the list, so the two that come later wait for the lock.
        while world.asked().iter().filter(|a| *a == DESCRIPTION).count() < 3 {
            std::thread::yield_now();
        }
        world.stand_in.release();
        threads
            .into_iter()
            .map(|t| t.join().unwrap())
            .collect::<Vec<_>>()
    });
    snapshots.iter().for_each(|snapshot| world.check(snapshot));
    let mut expected = all_files();
    expected.extend([DESCRIPTION.to_owned(), DESCRIPTION.to_owned()]);
    expected.sort();
    assert_eq!(world.asked(), expected);
}

#[test]
fn a_lock_whose_holder_hangs_is_an_error() {
    let world = World::new();
    let locks = world.cache.join(".locks/models--o--m");
    fs::create_dir_all(&locks).unwrap();
    let name = format!("{}.lock", checksum("model.safetensors", &world.weights));
    let held = fs::File::create(locks.join(name)).unwrap();
    held.lock().unwrap();
    let hub = world.hub(|c| c.timing.lock = Duration::from_millis(100));
    let error = hub
        .open(&repo(), &Revision::default(), &|_| ())
        .unwrap_err();
    assert!(matches!(&error, Error::Locked { .. }), "{error}");
    drop(held);
    world.check(&world.open().unwrap());
}

#[test]
fn shards_are_those_of_the_index() {
    let world = World::new();
    let file = |path: &str, bytes: &[u8]| (path.to_owned(), bytes.to_vec());
    let index = br#"{"weight_map":{"a":"x-1.safetensors","b":"x-2.safetensors"}}"#;
    let mut model = Model {
        name: "o/m".to_owned(),
        commit: COMMIT.to_owned(),
        files: BTreeMap::from([
            file("config.json", b"{}"),
            file("model.safetensors.index.json", index),
            file("x-1.safetensors", b"one"),
            file("x-2.safetensors", b"two"),
            file("x-3.safetensors", b"of no index"),
        ]),
        token: None,
    };
    world.stand_in.serve(model.clone());
    let snapshot = world.open().unwrap();
    assert_eq!(
        fs::read(snapshot.folder.join("x-2.safetensors")).unwrap(),
        b"two"
    );
    assert!(!snapshot.folder.join("x-3.safetensors").exists());
    assert_eq!(world.asked().len(), 5);
    // A missing shard is noticed without a connection, and fetched alone.
    fs::remove_file(snapshot.folder.join("x-1.safetensors")).unwrap();
    fs::remove_file(
        world
            .cache
            .join("models--o--m/blobs")
            .join(checksum("x.safetensors", b"one")),
    )
    .unwrap();
    assert!(
        world
            .hub(|c| c.offline = true)
            .open(&repo(), &Revision::default(), &|_| ())
            .is_err()
    );
    assert_eq!(world.open().unwrap(), snapshot);
    assert_eq!(world.asked().len(), 7);

    model.commit = "f".repeat(40);
    model.files.remove("x-2.safetensors");
    world.stand_in.serve(model);
    // The cache is served as it is; a pull follows the branch.
    assert_eq!(world.open().unwrap(), snapshot);
    let error = world
        .hub(|_| ())
        .pull(&repo(), &Revision::default(), &|_| ())
        .unwrap_err();
    assert!(error.to_string().contains("x-2.safetensors"), "{error}");
}

#[test]
fn a_cache_without_a_list_is_served_when_the_hub_is_away() {
    let world = World::new();
    world.open().unwrap();
    let tree = world
        .cache
        .join(format!("models--o--m/trees/{COMMIT}.json"));
    fs::remove_file(&tree).unwrap();
    let offline = world
        .hub(|c| c.offline = true)
        .open(&repo(), &Revision::default(), &|_| ());
    assert!(offline.unwrap().warning.unwrap().contains("no list"));
    let away = world.hub(|c| c.endpoint = "http://127.0.0.1:1".to_owned());
    let opened = away.open(&repo(), &Revision::default(), &|_| ()).unwrap();
    assert!(opened.warning.unwrap().contains("as the cache has it"));
    // With the Hub there, one request makes sure.
    let before = world.asked().len();
    world.check(&world.open().unwrap());
    assert_eq!(world.asked().len(), before + 1);
    world.check(&world.open().unwrap());
    assert_eq!(world.asked().len(), before + 1);
}

#[test]
fn encrypted_connections_need_a_known_authority() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let read = |name: &str| fs::read(data.join(name)).unwrap();
    let mut world = World::new();
    let certificate = CertificateDer::from_pem_slice(&read("cert.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_slice(&read("key.pem")).unwrap();
    let config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls_graviola::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth();
    let config = Arc::new(config.with_single_cert(vec![certificate], key).unwrap());
    world.stand_in = StandIn::start_encrypted(move |stream| {
        StreamOwned::new(ServerConnection::new(Arc::clone(&config)).unwrap(), stream)
    });
    world.serve(None);
    let open = |authorities: &str| {
        let hub = world.hub(|c| c.authorities = Some(data.join(authorities)));
        hub.open(&repo(), &Revision::default(), &|_| ())
    };
    world.check(&open("cert.pem").unwrap());
    // A file without certificates, and an authority that did not sign this one's.
    fs::remove_dir_all(&world.cache).unwrap();
    let error = open("README.md").unwrap_err();
    assert!(matches!(&error, Error::Tls(_)), "{error}");
    assert!(error.to_string().contains("SSL_CERT_FILE"), "{error}");
    let error = world.open().unwrap_err();
    assert!(matches!(&error, Error::Network { .. }), "{error}");
    assert!(error.to_string().contains("certificate"), "{error}");
    // A redirection from encryption to none is not followed.
    let plain = StandIn::start();
    plain.put("/blob", &world.weights);
    world.stand_in.fail(
        WEIGHTS,
        [Fault::Redirect(format!("{}/blob", plain.endpoint()))],
    );
    let error = open("cert.pem").unwrap_err();
    assert!(matches!(&error, Error::Redirect { .. }), "{error}");
    assert_eq!(plain.connections(), 0);
}
