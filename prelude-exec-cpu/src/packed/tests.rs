//! Packed weights against packing anew, and files that are damaged, of something else, or too many.

use std::{fs::File, sync::Arc, time::UNIX_EPOCH};

use prelude_core::{OutputHead, Pooling, RowOutput};
use prelude_models::conformance::golden::model_folder;

use super::*;
use crate::{
    ComputePool, CpuConfig, CpuExecutor,
    kernels::lines::Lines,
    testing::{executor, prompt, run_oneshot, small, variants},
};

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = format!("prelude-packed-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        let _ = fs::remove_dir_all(&folder);
        Self(folder)
    }

    /// The packed files in it, sorted.
    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn in_folder(folder: &Folder, config: CpuConfig) -> CpuConfig {
    CpuConfig {
        packed_dir: Some(folder.0.clone()),
        ..config
    }
}

/// The bits of an answer.
fn answer(executor: &mut CpuExecutor) -> Vec<u32> {
    let head = OutputHead::Embed {
        pooling: Pooling::Last,
        normalise: false,
        dimensions: None,
    };
    let rows = vec![(4..5, head)];
    let outputs = run_oneshot(executor, prompt(&[40, 52, 120, 77, 30], rows));
    let RowOutput::Embedding(vector) = &outputs[0] else {
        panic!("a hidden state was asked for");
    };
    vector.iter().map(|x| x.to_bits()).collect()
}

fn wait(used: PackedUse) -> PathBuf {
    match used {
        PackedUse::Writing(writing) => writing.wait().unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_storage_form_is_mapped_with_the_same_bits() {
    let folder = Folder::new("forms");
    for name in ["demo-lm", "rand-untied-sharded"] {
        for (what, config) in variants() {
            let config = in_folder(&folder, config);
            let expected = answer(&mut executor(name, small_of(&config), 2));
            let mut first = executor(name, config.clone(), 2);
            let path = wait(first.take_packed_use());
            assert_eq!(answer(&mut first), expected, "{name}, {what}");
            let mut second = executor(name, config, 2);
            let used = second.take_packed_use();
            assert!(
                matches!(used, PackedUse::Found(_)),
                "{name}, {what}: {used:?}"
            );
            assert_eq!(answer(&mut second), expected, "{name}, {what}");
            // A removed file stays mapped.
            fs::remove_file(path).unwrap();
            assert_eq!(answer(&mut second), expected, "{name}, {what}");
        }
    }
}

/// Returns these settings without a folder for packed weights.
fn small_of(config: &CpuConfig) -> CpuConfig {
    CpuConfig {
        packed_dir: None,
        ..config.clone()
    }
}

#[test]
fn damaged_files_are_packed_anew() {
    let folder = Folder::new("damaged");
    let config = in_folder(&folder, small());
    let executor_of = || executor("demo-lm", config.clone(), 1);
    let mut first = executor_of();
    let expected = answer(&mut first);
    let path = wait(first.take_packed_use());
    let whole = fs::read(&path).unwrap();
    let damages: [fn(&mut Vec<u8>); 7] = [
        |bytes| bytes.truncate(0),
        |bytes| bytes.truncate(bytes.len() - 1),
        |bytes| bytes.push(0),
        // The version, the number of entries, the key, and the columns of the first entry.
        |bytes| bytes[8] ^= 1,
        |bytes| bytes[16..24].fill(0xff),
        |bytes| bytes[40] ^= 1,
        |bytes| bytes[80] ^= 1,
    ];
    for (i, damage) in damages.into_iter().enumerate() {
        let mut bytes = whole.clone();
        damage(&mut bytes);
        // Another file takes the name, since the first one is mapped.
        let other = path.with_extension("other");
        fs::write(&other, bytes).unwrap();
        fs::rename(other, &path).unwrap();
        let mut again = executor_of();
        assert_eq!(wait(again.take_packed_use()), path, "damage {i}");
        assert_eq!(answer(&mut again), expected, "damage {i}");
        assert_eq!(fs::read(&path).unwrap(), whole, "damage {i}");
    }
    assert!(matches!(
        executor_of().take_packed_use(),
        PackedUse::Found(_)
    ));
    assert_eq!(folder.files(), [path]);
}

#[test]
fn a_flipped_bit_is_found_and_the_file_removed() {
    let folder = Folder::new("flipped");
    let config = in_folder(&folder, small());
    let executor_of = || executor("demo-lm", config.clone(), 1);
    let path = wait(executor_of().take_packed_use());
    let whole = fs::read(&path).unwrap();
    let check = || match executor_of().take_packed_use() {
        PackedUse::Found(check) => check.run(),
        other => panic!("{other:?}"),
    };
    check().unwrap();
    assert!(path.exists());
    let flip = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        // Another file takes the name, since the first one is mapped.
        let other = path.with_extension("other");
        fs::write(&other, bytes).unwrap();
        fs::rename(other, &path).unwrap();
    };
    // The last byte of the last tensor, and the recorded checksum of the first one.
    for at in [whole.len() - 1, 64 + 40] {
        flip(at);
        let damage = check().unwrap_err();
        assert_eq!((&damage.path, at > 1_000), (&path, damage.tensor > 0));
        assert!(damage.to_string().contains("was removed"), "{damage}");
        assert!(!path.exists());
    }
    // Packed anew, and whole.
    assert_eq!(wait(executor_of().take_packed_use()), path);
    assert_eq!(fs::read(&path).unwrap(), whole);
    check().unwrap();
}

#[cfg(unix)]
#[test]
fn a_pipe_in_the_place_of_a_file_is_replaced() {
    let folder = Folder::new("pipe");
    let config = in_folder(&folder, small());
    let executor_of = || executor("demo-lm", config.clone(), 1);
    let path = wait(executor_of().take_packed_use());
    fs::remove_file(&path).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    // Opening the pipe would never return.
    assert_eq!(wait(executor_of().take_packed_use()), path);
    assert!(fs::metadata(&path).unwrap().is_file());
}

#[test]
fn a_checkpoint_that_changed_has_another_key() {
    let copy = Folder::new("changed");
    fs::create_dir_all(&copy.0).unwrap();
    for entry in fs::read_dir(model_folder("demo-lm")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, copy.0.join(path.file_name().unwrap())).unwrap();
        }
    }
    let key = |form: &str| Key::of(&Checkpoint::open(&copy.0).unwrap(), form).unwrap();
    let keys = |form: &str| key(form).0;
    let weights = copy.0.join("model.safetensors");
    let before = keys("bf16");
    assert_eq!(keys("bf16"), before);
    assert_ne!(keys("f32"), before);
    // A sample of the content counts even where length and time are the same.
    let time = fs::metadata(&weights).unwrap().modified().unwrap();
    let set_time = |time| {
        let file = File::options().write(true).open(&weights).unwrap();
        file.set_modified(time).unwrap();
    };
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, &bytes).unwrap();
    set_time(time);
    assert_ne!(keys("bf16"), before);
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, &bytes).unwrap();
    set_time(time);
    assert_eq!(keys("bf16"), before);
    set_time(time + Duration::from_secs(1));
    assert_ne!(keys("bf16"), before);
}

/// The factor of an adapter is in no file of weights.
#[test]
fn each_adapter_has_another_key() {
    let folder = Folder::new("adapter");
    fs::create_dir_all(&folder.0).unwrap();
    let module = "base_model.model.model.layers.0.self_attn.o_proj.lora_";
    let part = |name: char, shape: [usize; 2], first: usize| {
        let end = first + 2 * 192 * 4;
        format!(
            r#""{module}{name}.weight":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{first},{end}]}}"#
        )
    };
    let header = [part('A', [2, 192], 0), part('B', [192, 2], 2 * 192 * 4)].join(",");
    let header = format!("{{{header}}}");
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend((0..4 * 192).flat_map(|_| 0.5_f32.to_le_bytes()));
    fs::write(folder.0.join("adapter_model.safetensors"), bytes).unwrap();
    let key = |alpha: u32| {
        let config = format!(r#"{{"peft_type":"LORA","r":2,"lora_alpha":{alpha}}}"#);
        fs::write(folder.0.join("adapter_config.json"), config).unwrap();
        let merged = Checkpoint::open_adapter(&folder.0, &model_folder("demo-lm")).unwrap();
        Key::of(&merged, "bf16").unwrap().0
    };
    let base = Checkpoint::open(&model_folder("demo-lm")).unwrap();
    let base = Key::of(&base, "bf16").unwrap().0;
    let (one, two) = (key(1), key(2));
    assert_eq!(key(1), one);
    assert!(one != two && one != base && two != base);
}

#[test]
fn a_folder_keeps_what_was_used_last() {
    let folder = Folder::new("room");
    let weights = |len| {
        let shape = Shape {
            form: 0,
            outputs: len,
            inputs: 1,
        };
        vec![(shape, Words::from(Lines::zeroed(len)))]
    };
    let bytes = file::file_bytes(&weights(1000));
    let put = |i: u8, most| store(&folder.0, &Key([i; 32]), &weights(1000), most * bytes);
    // The fourth has room when the one that was used least recently is gone: the second.
    for i in [1, 2, 3] {
        let path = put(i, 3).unwrap();
        let file = File::options().write(true).open(path).unwrap();
        let time = UNIX_EPOCH + Duration::from_secs(u64::from(i));
        file.set_modified(time).unwrap();
    }
    let abandoned = folder.0.join(format!("x.{UNFINISHED}"));
    let file = File::create(&abandoned).unwrap();
    file.set_modified(UNIX_EPOCH).unwrap();
    let in_work = folder.0.join(format!("y.{UNFINISHED}"));
    File::create(&in_work).unwrap();
    let foreign = folder.0.join("notes.txt");
    File::create(&foreign).unwrap();
    assert!(open(&folder.0, &Key([1; 32])).is_some());
    put(4, 3).unwrap();
    let held = |i: u8| open(&folder.0, &Key([i; 32])).is_some();
    assert_eq!([1, 2, 3, 4].map(held), [true, false, true, true]);
    assert!(!abandoned.exists() && in_work.exists() && foreign.exists());
    // More than the folder may hold is refused, and costs the others nothing.
    let error = put(5, 0).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    assert_eq!([1, 2, 3, 4].map(held), [true, false, true, true]);
}

#[test]
fn a_folder_that_cannot_be_used_costs_nothing_but_the_file() {
    let folder = Folder::new("file");
    fs::write(&folder.0, "no folder").unwrap();
    let mut executor = executor("demo-lm", in_folder(&folder, small()), 1);
    let PackedUse::Writing(writing) = executor.take_packed_use() else {
        panic!("the writing was tried");
    };
    writing.wait().unwrap_err();
    assert!(!answer(&mut executor).is_empty());
    fs::remove_file(&folder.0).unwrap();
}

#[test]
fn models_in_memory_are_not_packed() {
    let folder = Folder::new("memory");
    let read = |name: &str| fs::read(model_folder("demo-lm").join(name)).unwrap();
    let weights = read("model.safetensors");
    let checkpoint = Checkpoint::from_bytes(&read("config.json"), weights).unwrap();
    let pool = Arc::new(ComputePool::new(1));
    let mut executor = CpuExecutor::new(&checkpoint, in_folder(&folder, small()), pool).unwrap();
    let used = executor.take_packed_use();
    assert!(matches!(used, PackedUse::InMemory), "{used:?}");
    assert!(!folder.0.exists());
}
