//! The algorithm for each shape of products, and the file in which measured choices are kept.
//!
//! Plain data: nothing here calls the library. An algorithm is 64 bytes that mean something to one
//! version of cuBLASLt on one kind of GPU, so a file is for exactly those; what it says is asked
//! of the library again before it is used.

use std::{collections::BTreeMap, io, path::Path};

use prelude_kernels::families::GemmOutput;
use prelude_models::file;
use serde::{Deserialize, Serialize};

use crate::kernels::{fp8::Scaling, image};

/// Name of the file that part `gemm` of `gpu-check` writes, in the cache folder.
pub(crate) const FILE: &str = "gemm-plans.json";
/// Layout of the file: any other is not read.
const FORMAT: u32 = 1;
/// Largest file that is read: thirty times all plans of two models.
const BYTES_MAX: u64 = 1 << 20;
/// Most rows of a product: what a step's tokens are bounded by.
const ROWS_MAX: u32 = 1 << 22;
/// Rows for which a plan is made; more rows than the last take multiples of it.
pub(crate) const BUCKETS: [u32; 15] = [
    32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192,
];

/// Returns the bucket that `m` rows fall into.
pub(crate) const fn bucket(m: u32) -> u32 {
    let mut i = 0;
    while i < BUCKETS.len() {
        if m <= BUCKETS[i] {
            return BUCKETS[i];
        }
        i += 1;
    }
    match m.checked_next_multiple_of(BUCKETS[BUCKETS.len() - 1]) {
        Some(bucket) => bucket,
        None => m,
    }
}

/// Returns the buckets of all numbers of rows up to `rows`.
pub(crate) fn buckets(rows: u32) -> impl Iterator<Item = u32> {
    let last = bucket(rows);
    let mut next = Some(bucket(1));
    std::iter::from_fn(move || {
        let this = next.filter(|&this| this <= last)?;
        next = this.checked_add(1).map(bucket);
        Some(this)
    })
}

/// The products that one plan is for: inputs are bf16 or e4m3, sums f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Key {
    /// Rows of the weight.
    pub(crate) n: u32,
    /// Elements summed.
    pub(crate) k: u32,
    /// Bucket of rows of the input.
    pub(crate) m: u32,
    /// The use of the product.
    pub(crate) form: Form,
    /// True if a bias is added.
    pub(crate) bias: bool,
    /// The scales of inputs that are both e4m3; files leave it out for bf16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fp8: Option<Scaling>,
}

impl Key {
    /// Returns the key of the product written, if this one is added: the same algorithms run both.
    pub(super) const fn written(mut self) -> Self {
        if matches!(self.form, Form::Add) {
            self.form = Form::Write;
        }
        self
    }
}

/// The use of a product: [`GemmOutput`], as files name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Form {
    /// bf16.
    Write,
    /// Added to bf16, rounded once.
    Add,
    /// f32.
    F32,
}

impl From<Form> for GemmOutput {
    fn from(form: Form) -> Self {
        match form {
            Form::Write => Self::Write,
            Form::Add => Self::Add,
            Form::F32 => Self::F32,
        }
    }
}

impl From<GemmOutput> for Form {
    fn from(output: GemmOutput) -> Self {
        match output {
            GemmOutput::Write => Self::Write,
            GemmOutput::Add => Self::Add,
            GemmOutput::F32 => Self::F32,
        }
    }
}

/// The library's choice of a product's kernel: `cublasLtMatmulAlgo_t`, which may be stored and
/// restored by the same version of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Algo(pub(crate) [u64; 8]);

impl From<Algo> for String {
    fn from(algo: Algo) -> Self {
        algo.0.iter().map(|word| format!("{word:016x}")).collect()
    }
}

impl TryFrom<String> for Algo {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let digits = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if text.len() != 128 || !digits {
            return Err("an algorithm is 128 hexadecimal digits".to_owned());
        }
        let word = |i: usize| u64::from_str_radix(&text[16 * i..][..16], 16).unwrap_or(0);
        Ok(Self(std::array::from_fn(word)))
    }
}

/// An algorithm, and what it takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProductPlan {
    pub(crate) algo: Algo,
    /// Bytes of workspace that the algorithm needs.
    pub(crate) workspace_bytes: u64,
    /// Measured time of one product of its bucket's rows in µs, if it was measured.
    pub(crate) us: Option<f32>,
}

/// The machine that a file's plans are for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Machine {
    /// The GPU's name.
    pub(crate) device: String,
    /// Version of CUDA that the driver supports.
    pub(crate) driver: String,
    /// The library's version, as `cublasLtGetVersion` counts.
    pub(crate) cublaslt: u64,
    /// Version of this crate.
    pub(crate) build: String,
}

/// Plans by key.
pub(crate) type Plans = BTreeMap<Key, ProductPlan>;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: u32,
    machine: Machine,
    plans: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    product: Key,
    plan: ProductPlan,
}

/// Returns the name of the file in the cache folder that holds what was measured at starts on GPUs of
/// this name.
pub(super) fn own_file(device: &str) -> String {
    let plain = |c: char| match c.is_ascii_alphanumeric() {
        true => c.to_ascii_lowercase(),
        false => '-',
    };
    let name: String = device.chars().take(64).map(plain).collect();
    format!("gemm-plans-{name}.json")
}

/// Adds plans to those of a file, which others find whole or not at all. What the file holds for
/// another machine, and all of it where both do not fit into one file, is given up.
pub(super) fn keep(
    path: &Path,
    new: &Plans,
    machine: &Machine,
    workspace_bytes_max: u64,
) -> io::Result<()> {
    let mut plans = read(path, machine, workspace_bytes_max).unwrap_or_default();
    plans.extend(new);
    let mut file = text(&plans, machine);
    if file.len() as u64 > BYTES_MAX {
        file = text(new, machine);
    }
    image::keep(path, file.as_bytes())
}

/// Reads plans from a file, or returns why there are none: a file that is foreign, damaged or not there
/// costs time and nothing else.
pub(crate) fn read(
    path: &Path,
    machine: &Machine,
    workspace_bytes_max: u64,
) -> Result<Plans, String> {
    let text = file::read(path, BYTES_MAX).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => "there is none".to_owned(),
        _ => e.to_string(),
    })?;
    parse_for(&text, machine, workspace_bytes_max)
}

/// Reads plans from a file's text, if they are for exactly this machine.
fn parse_for(text: &[u8], machine: &Machine, workspace_bytes_max: u64) -> Result<Plans, String> {
    let (of, plans) = parse(text, workspace_bytes_max)?;
    match of == *machine {
        true => Ok(plans),
        false => Err(format!("it is for {of:?}, not {machine:?}")),
    }
}

/// Returns the machine and the plans of a file's text, or what is wrong with it.
pub(super) fn parse(text: &[u8], workspace_bytes_max: u64) -> Result<(Machine, Plans), String> {
    #[derive(Deserialize)]
    struct Head {
        format: u32,
    }
    let head: Head = serde_json::from_slice(text).map_err(|e| e.to_string())?;
    if head.format != FORMAT {
        return Err(format!("its format is {}, not {FORMAT}", head.format));
    }
    let document: Document = serde_json::from_slice(text).map_err(|e| e.to_string())?;
    let mut plans = Plans::new();
    for (i, Entry { product, plan }) in document.plans.into_iter().enumerate() {
        let wrong = |what: &str| Err(format!("plans[{i}]: {what}"));
        if product.m != bucket(product.m) || product.m > ROWS_MAX {
            return wrong("m is no bucket");
        }
        if product.n == 0 || product.k == 0 || !product.k.is_multiple_of(8) {
            return wrong("n and k must be positive, k a multiple of 8");
        }
        if plan.workspace_bytes > workspace_bytes_max {
            return wrong("it takes more workspace than there is");
        }
        if plan.us.is_some_and(|us| !us.is_finite() || us < 0.0) {
            return wrong("us is no time");
        }
        if plans.insert(product, plan).is_some() {
            return wrong("the product is listed twice");
        }
    }
    Ok((document.machine, plans))
}

/// Returns the file's text.
pub(crate) fn text(plans: &Plans, machine: &Machine) -> String {
    let entry = |(&product, &plan): (&Key, &ProductPlan)| Entry { product, plan };
    let document = Document {
        format: FORMAT,
        machine: machine.clone(),
        plans: plans.iter().map(entry).collect(),
    };
    serde_json::to_string_pretty(&document).expect("plans are plain numbers and strings")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn buckets_hold_their_rows() {
        for (m, expected) in [
            (1, 32),
            (32, 32),
            (33, 64),
            (129, 192),
            (8192, 8192),
            (8193, 16384),
            (65_536, 65_536),
        ] {
            assert_eq!(bucket(m), expected, "{m}");
        }
        for m in 1..20_000 {
            assert!(bucket(m) >= m && bucket(bucket(m)) == bucket(m));
        }
    }

    #[test]
    fn buckets_up_to_some_rows_are_those_of_all_fewer() {
        for rows in [1, 32, 33, 4096, 8193, 20_000] {
            let mut expected: Vec<u32> = (1..=rows).map(bucket).collect();
            expected.dedup();
            assert!(buckets(rows).eq(expected), "{rows}");
        }
        assert_eq!(buckets(u32::MAX).last(), Some(u32::MAX));
    }

    fn machine() -> Machine {
        Machine {
            device: "a GPU".to_owned(),
            driver: "13.0".to_owned(),
            cublaslt: 130_100,
            build: "0".to_owned(),
        }
    }

    fn plans() -> Plans {
        let key = |n, form| Key {
            n,
            k: 1024,
            m: 512,
            form,
            bias: false,
            fp8: (form != Form::F32).then_some(match form {
                Form::Write => Scaling::Rows,
                _ => Scaling::Blocks,
            }),
        };
        let plan = |word: u64, us| ProductPlan {
            algo: Algo(std::array::from_fn(|i| word << i)),
            workspace_bytes: 4096,
            us,
        };
        [
            (key(6144, Form::Write), plan(0xfedc_ba98_7654_3210, None)),
            (key(1024, Form::Add), plan(7, Some(12.5))),
            (key(151_936, Form::F32), plan(0, None)),
        ]
        .into()
    }

    fn check(change: impl FnOnce(String) -> String, expected: Result<usize, &str>) {
        let text = change(text(&plans(), &machine()));
        match (parse_for(text.as_bytes(), &machine(), 4096), expected) {
            (Ok(found), Ok(count)) => assert_eq!(found.len(), count),
            (Err(why), Err(expected)) => assert!(why.contains(expected), "{why}"),
            (found, _) => panic!("{found:?}, not {expected:?}"),
        }
    }

    #[test]
    fn files_say_what_was_written() {
        let text = text(&plans(), &machine());
        assert_eq!(
            parse_for(text.as_bytes(), &machine(), 4096).unwrap(),
            plans()
        );
    }

    #[test]
    fn files_that_are_damaged_or_foreign_are_refused() {
        check(|t| t, Ok(3));
        check(|_| String::new(), Err("EOF"));
        check(|t| t[..t.len() / 2].to_owned(), Err("EOF"));
        check(
            |t| t.replace("\"format\": 1", "\"format\": 2"),
            Err("format is 2"),
        );
        check(|t| t.replace("a GPU", "another"), Err("another"));
        check(|t| t.replace("130100", "130200"), Err("130200"));
        check(|t| t.replace("\"m\": 512", "\"m\": 500"), Err("no bucket"));
        check(
            |t| t.replace("\"m\": 512", "\"m\": 4294967295"),
            Err("plans[0]"),
        );
        check(
            |t| t.replace("\"k\": 1024", "\"k\": 1023"),
            Err("multiple of 8"),
        );
        check(|t| t.replace("4096", "4097"), Err("more workspace"));
        check(|t| t.replace("12.5", "-1"), Err("no time"));
        check(|t| t.replace("12.5", "1e99"), Err("no time"));
        check(
            |t| {
                let t = t.replace("6144", "1024").replace("add", "write");
                t.replace("blocks", "rows")
            },
            Err("twice"),
        );
        check(|t| t.replacen("fedc", "fed", 1), Err("hexadecimal"));
        check(|t| t.replacen("fedc", "fedZ", 1), Err("hexadecimal"));
        check(|t| t.replacen("fedc", "fe\u{e9}", 1), Err("hexadecimal"));
        check(|t| t.replacen("\"bias\"", "\"bais\"", 1), Err("bais"));
        check(|t| t.replacen("write", "scale", 1), Err("scale"));
        check(|t| t.replacen("blocks", "block", 1), Err("block"));
    }

    #[test]
    fn a_file_that_is_too_large_or_missing_is_not_read() {
        let folder = std::env::temp_dir().join(format!("prelude-plans-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join(FILE);
        let missing = read(&path, &machine(), 4096);
        let spaces = " ".repeat(usize::try_from(BYTES_MAX).unwrap());
        fs::write(&path, text(&plans(), &machine()) + &spaces).unwrap();
        let large = read(&path, &machine(), 4096);
        fs::write(&path, text(&plans(), &machine())).unwrap();
        let whole = read(&path, &machine(), 4096);
        let as_file = read(&path.join("below"), &machine(), 4096);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(missing, Err("there is none".to_owned()));
        assert!(large.unwrap_err().contains("larger"));
        assert_eq!(whole, Ok(plans()));
        assert!(as_file.is_err());
    }
}
