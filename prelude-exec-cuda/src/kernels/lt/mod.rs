//! Products by cuBLASLt: one plan for each (shape, bucket of rows, form), chosen once and kept.
//!
//! | file | |
//! | --- | --- |
//! | `plans` | keys, buckets of rows, `gemm-plans.json`; plain data |
//! | `tables` | measured plans that every program carries, by kind of GPU |
//! | `tune` | measures algorithms at start, of shapes that are in neither |
//! | `stopwatch` | the GPU's own clock, for that |
//! | `functions` | the library's entry points, from the library that was opened |
//! | `blas` | what is called with what; on a GPU, or on anything that has the same functions |
//!
//! The bindings' safe interface is not used: it asks the heuristic at every call and cannot add
//! to an output. What is launched in a step is decided before: a plan is of the number of rows
//! rounded up, so that steps of similar size run the same algorithm.

mod blas;
mod functions;
pub(crate) mod plans;
mod stopwatch;
mod tables;
#[cfg(test)]
mod tests;
mod tune;

#[cfg(feature = "emu")]
use std::fmt::Write as _;
use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::Arc,
};

use prelude_kernels::{
    DevicePtr,
    families::{GemmOutput, GemmParams},
};

use self::{
    blas::CublasLt,
    functions::{Functions, dotted},
    plans::{Algo, Key, Machine, Plans, ProductPlan},
    tables::Chip,
};
pub(crate) use self::{
    stopwatch::StreamWatch,
    tune::{Scratch, Stopwatch, WeightAt, Weights},
};
use super::fp8::Scaling;
#[cfg(feature = "emu")]
use crate::record::Recording;
use crate::{
    CudaConfig, Error, PlanCounts, ProductEngine,
    memory::{
        context::Context,
        libs::{self, Library},
        space::{Buffer, Space},
    },
};

/// Bytes that products may use while they run; taken at start.
pub(crate) const WORKSPACE_BYTES: u64 = 32 << 20;
/// Alignment of every operand's address and rows; the library assumes 256 unless told.
const ALIGN_BYTES: u32 = 16;
/// Algorithms that the heuristic is asked for.
const ASKED: usize = 8;
/// Most shapes whose plan is kept. Rows of a step vary without end; plans do not.
const SHAPES_MAX: usize = 4096;

/// A weight that products are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Matrix {
    /// The weight's rows, which are columns of the product.
    pub(crate) n: u32,
    /// The weight's columns.
    pub(crate) k: u32,
    pub(crate) has_bias: bool,
    /// The scales, if the weight and the other factor of its products are of e4m3.
    pub(crate) fp8: Option<Scaling>,
}

/// A product, as it is asked of the library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(super) form: GemmOutput,
    /// Strides and k in elements, whatever these are.
    pub(super) params: GemmParams,
    /// The scales of factors in e4m3; `None` for factors in bf16.
    pub(super) scales: Option<Scales>,
}

/// The scales of a product's factors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scales {
    pub(super) scaling: Scaling,
    pub(super) x: DevicePtr,
    pub(super) w: DevicePtr,
}

/// The properties of a product that an algorithm depends on; addresses do not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    key: Key,
    m: u32,
    strides: [u32; 3],
}

impl Call {
    fn shape(&self) -> Shape {
        let p = &self.params;
        let key = Key {
            n: p.n,
            k: p.k,
            m: plans::bucket(p.m),
            form: self.form.into(),
            bias: p.bias != DevicePtr::NULL,
            fp8: self.scales.map(|of| of.scaling),
        };
        Shape {
            key,
            m: p.m,
            strides: [p.x_stride, p.w_stride, p.y_stride],
        }
    }

    /// Returns true if the library has such products at all, and all operands lie as it was told.
    fn is_for_library(&self) -> bool {
        // The library adds a bias in bf16 to outputs in bf16 only.
        let has_bias = self.params.bias != DevicePtr::NULL;
        let is_wide = self.form == GemmOutput::F32;
        let multiple = self.scales.map_or(1, |of| of.scaling.library_multiple());
        let has_multiples = [self.params.m, self.params.n]
            .iter()
            .all(|rows| rows.is_multiple_of(multiple));
        !(is_wide && (has_bias || self.scales.is_some())) && has_multiples && self.is_aligned()
    }

    /// Returns true if all operands lie as the library was told that they do. For outputs in f32
    /// our own kernel asks less.
    fn is_aligned(&self) -> bool {
        let p = &self.params;
        let element = if self.form == GemmOutput::F32 { 4 } else { 2 };
        let factor = if self.scales.is_some() { 1 } else { 2 };
        let strides = [
            (p.k, factor),
            (p.x_stride, factor),
            (p.w_stride, factor),
            (p.y_stride, element),
        ];
        let aligned = |bytes: u64| bytes.is_multiple_of(ALIGN_BYTES.into());
        let of_scales = self.scales.map_or([DevicePtr::NULL; 2], |of| [of.x, of.w]);
        [p.x, p.w, p.bias, p.y]
            .iter()
            .chain(&of_scales)
            .all(|at| aligned(at.0))
            && strides
                .iter()
                .all(|&(stride, bytes)| aligned(u64::from(stride) * bytes))
    }

    /// Returns the call with as many rows as its bucket. Such a call is asked about, not made.
    const fn of_bucket(mut self) -> Self {
        self.params.m = plans::bucket(self.params.m);
        self
    }
}

/// The library, or what stands in for it.
trait Blas: std::fmt::Debug + Send {
    /// Returns the algorithms for a call, best first; none if the library has none.
    ///
    /// # Errors
    /// [`Error::Driver`].
    fn candidates(&mut self, call: &Call) -> Result<Vec<ProductPlan>, Error>;

    /// Returns true if an algorithm, which may come from a file, runs a call within the workspace.
    ///
    /// # Errors
    /// [`Error::Driver`].
    fn check(&mut self, call: &Call, algo: Algo) -> Result<Option<ProductPlan>, Error>;

    /// Queues a call whose plan is one of the above. False if the library refuses it all the same;
    /// nothing is queued then.
    ///
    /// # Errors
    /// [`Error::Launch`].
    fn try_multiply(&mut self, call: &Call, plan: &ProductPlan) -> Result<bool, Error>;

    /// Queues a call whose plan is one of the above.
    ///
    /// # Errors
    /// [`Error::Launch`], also if the library refuses it.
    fn multiply(&mut self, call: &Call, plan: &ProductPlan) -> Result<(), Error> {
        match self.try_multiply(call, plan)? {
            true => Ok(()),
            false => Err(Error::launch("cublasLtMatmul", "the library refuses it")),
        }
    }
}

/// Plans that were measured before, here or elsewhere.
#[derive(Debug, Default)]
struct Measured {
    /// The plans of the files in the cache folder, which come first.
    file: Plans,
    /// The plans that the program carries for this kind of GPU.
    table: Plans,
}

/// The source of a plan; the best one comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    File,
    Table,
    /// Measured at this start.
    Now,
    Heuristic,
    /// The library has no algorithm.
    Nowhere,
}

/// Plans, and the library that runs them.
#[derive(Debug)]
pub(crate) struct Lt {
    blas: Box<dyn Blas>,
    engine: ProductEngine,
    measured: Measured,
    /// `None` where the library has no algorithm.
    chosen: BTreeMap<Key, (Option<ProductPlan>, Source)>,
    by_shape: HashMap<Shape, Option<ProductPlan>>,
    /// The machine that measured plans are for; none where nothing is measured.
    machine: Option<Machine>,
    /// The file that keeps what is measured at start; none without a cache folder.
    own_file: Option<PathBuf>,
    /// Freed after the library's handle.
    workspace: Buffer,
}

impl Lt {
    /// Opens the library, and reads the plan file for this GPU if there is one.
    ///
    /// # Errors
    /// [`Error::LibraryMissing`], [`Error::LibraryVersion`], [`Error::LibrarySymbol`],
    /// [`Error::Driver`] if the library does not start, [`Error::OutOfMemory`].
    pub(crate) fn open(
        context: &Arc<Context>,
        space: &Space,
        config: &CudaConfig,
    ) -> Result<Self, Error> {
        let (functions, version, library) = load(libs::majors(), config)?;
        let workspace = workspace(space)?;
        let address = workspace.view::<u8>(0, 1, 1).ptr().0;
        let blas = CublasLt::new(functions, Some(Arc::clone(context)), address)?;
        let machine = Machine {
            device: context.name.clone(),
            driver: context.driver.clone(),
            cublaslt: version as u64,
            build: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let chip = Chip {
            compute_capability: context.compute_capability,
            multiprocessors: context.multiprocessors,
        };
        let (file, in_file) = recorded(config, &machine);
        let (table, in_table) =
            tables::plans_for(&machine.device, chip, machine.cublaslt, WORKSPACE_BYTES);
        let engine = ProductEngine::CublasLt {
            version: dotted(version),
            library,
            plans: format!("{in_file}; {in_table}"),
            counts: PlanCounts::default(),
        };
        let measured = Measured { file, table };
        let own = |folder: &PathBuf| folder.join(plans::own_file(&machine.device));
        Ok(Self {
            own_file: config.cache_dir.as_ref().map(own),
            machine: Some(machine),
            ..Self::new(Box::new(blas), workspace, engine, measured)
        })
    }

    /// Writes calls down.
    #[cfg(feature = "emu")]
    pub(crate) fn recorded(recording: &Arc<Recording>, space: &Space) -> Result<Self, Error> {
        let blas = Recorder(Arc::clone(recording));
        let engine = ProductEngine::CublasLt {
            version: "recorded".to_owned(),
            library: PathBuf::new(),
            plans: "none".to_owned(),
            counts: PlanCounts::default(),
        };
        let workspace = workspace(space)?;
        let machine = Machine {
            device: "recorded".to_owned(),
            driver: "none".to_owned(),
            cublaslt: 0,
            build: env!("CARGO_PKG_VERSION").to_owned(),
        };
        Ok(Self {
            machine: Some(machine),
            ..Self::new(Box::new(blas), workspace, engine, Measured::default())
        })
    }

    fn new(
        blas: Box<dyn Blas>,
        workspace: Buffer,
        engine: ProductEngine,
        measured: Measured,
    ) -> Self {
        Self {
            blas,
            engine,
            measured,
            chosen: BTreeMap::new(),
            by_shape: HashMap::new(),
            machine: None,
            own_file: None,
            workspace,
        }
    }

    /// Returns the bytes on the device.
    pub(super) const fn bytes(&self) -> usize {
        self.workspace.bytes()
    }

    /// Returns the library, and where the plans that were chosen so far come from.
    pub(super) fn engine(&self) -> ProductEngine {
        let mut engine = self.engine.clone();
        if let ProductEngine::CublasLt { counts, .. } = &mut engine {
            *counts = self.counts();
        }
        engine
    }

    /// Returns the numbers of shapes by the source of their plans. What is written and what is added to
    /// are one shape here, since a model does one of them with a weight: it counts for the better
    /// source.
    fn counts(&self) -> PlanCounts {
        let mut counts = PlanCounts::default();
        for source in self.sources().into_values() {
            let count = match source {
                Source::File => &mut counts.file,
                Source::Table => &mut counts.table,
                Source::Now => &mut counts.measured,
                Source::Heuristic => &mut counts.heuristic,
                Source::Nowhere => &mut counts.none,
            };
            *count += 1;
        }
        counts
    }

    /// Returns the best source of plans for each shape, by the key of the product that is not added.
    fn sources(&self) -> BTreeMap<Key, Source> {
        let mut best = BTreeMap::new();
        for (key, &(_, source)) in &self.chosen {
            best.entry(key.written())
                .and_modify(|best: &mut Source| *best = source.min(*best))
                .or_insert(source);
        }
        best
    }

    /// Chooses the plans for products of a matrix with up to `rows` rows, so that no step waits
    /// for the library to think: it takes some ten microseconds to answer, and more the first
    /// time. `forms`: what becomes of the products.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub(super) fn prepare(
        &mut self,
        matrix: Matrix,
        forms: &[GemmOutput],
        rows: u32,
    ) -> Result<(), Error> {
        let Matrix {
            n,
            k,
            has_bias,
            fp8,
        } = matrix;
        // Nothing is read or written; the library looks at a bias's alignment.
        let somewhere = DevicePtr(4096);
        let of_bias = if has_bias { somewhere } else { DevicePtr::NULL };
        let scales = fp8.map(|scaling| Scales {
            scaling,
            x: somewhere,
            w: somewhere,
        });
        for &form in forms {
            for m in plans::buckets(rows) {
                let params = GemmParams {
                    x: somewhere,
                    w: somewhere,
                    bias: of_bias,
                    y: somewhere,
                    live: DevicePtr::NULL,
                    m,
                    n,
                    k,
                    x_stride: k,
                    w_stride: k,
                    y_stride: n.next_multiple_of(8),
                };
                let call = Call {
                    form,
                    params,
                    scales,
                };
                if call.is_for_library() {
                    self.of_bucket(&call, call.shape().key)?;
                }
            }
        }
        Ok(())
    }

    /// Queues a product. False if the library has no algorithm for it.
    ///
    /// # Errors
    /// [`Error::Launch`], [`Error::Driver`].
    pub(super) fn multiply(&mut self, call: &Call) -> Result<bool, Error> {
        if call.params.m == 0 || call.params.n == 0 {
            return Ok(true);
        }
        if !call.is_for_library() {
            return Ok(false);
        }
        let Some(plan) = self.plan(call)? else {
            return Ok(false);
        };
        let is_queued = self.blas.try_multiply(call, &plan)?;
        if !is_queued {
            // The library is not asked for so many rows again.
            let shape = call.shape();
            self.chosen.insert(shape.key, (None, Source::Nowhere));
            self.by_shape.insert(shape, None);
        }
        Ok(is_queued)
    }

    /// Returns the algorithms for a product, the heuristic's first one first, and what plans of its
    /// bucket are kept under. None where the library has none for it.
    ///
    /// # Errors
    /// [`Error::Driver`].
    #[cfg(feature = "measure")]
    pub(crate) fn candidates(&mut self, call: &Call) -> Result<(Key, Vec<ProductPlan>), Error> {
        let key = call.shape().key;
        match call.is_for_library() {
            true => Ok((key, self.blas.candidates(call)?)),
            false => Ok((key, Vec::new())),
        }
    }

    /// Queues a product by one of its [`Lt::candidates`].
    ///
    /// # Errors
    /// [`Error::Launch`].
    #[cfg(feature = "measure")]
    pub(crate) fn multiply_by(&mut self, call: &Call, plan: &ProductPlan) -> Result<(), Error> {
        self.blas.multiply(call, plan)
    }

    /// Returns the machine that plans measured now are for.
    #[cfg(feature = "measure")]
    pub(crate) const fn machine(&self) -> Option<&Machine> {
        self.machine.as_ref()
    }

    /// Returns the plan for exactly this shape.
    fn plan(&mut self, call: &Call) -> Result<Option<ProductPlan>, Error> {
        let shape = call.shape();
        if let Some(plan) = self.by_shape.get(&shape) {
            return Ok(*plan);
        }
        let plan = match self.of_bucket(call, shape.key)? {
            // Most algorithms run any number of rows; those that do not are asked about here, and
            // once only.
            Some(plan) => match self.blas.check(call, plan.algo)? {
                Some(checked) => Some(checked),
                None => self.first(call)?,
            },
            None => self.first(call)?,
        };
        if self.by_shape.len() >= SHAPES_MAX {
            self.by_shape.clear();
        }
        self.by_shape.insert(shape, plan);
        Ok(plan)
    }

    /// Returns the plan of the bucket: the file's or the table's if the library takes it, else the
    /// heuristic's first.
    fn of_bucket(&mut self, call: &Call, key: Key) -> Result<Option<ProductPlan>, Error> {
        if let Some((plan, _)) = self.chosen.get(&key) {
            return Ok(*plan);
        }
        let whole = call.of_bucket();
        let chosen = match self.of_measured(&whole, key)? {
            Some((plan, source)) => (Some(plan), source),
            None => match self.first(&whole)? {
                Some(plan) => (Some(plan), Source::Heuristic),
                None => (None, Source::Nowhere),
            },
        };
        self.chosen.insert(key, chosen);
        Ok(chosen.0)
    }

    /// Returns the first measured plan that the library takes.
    fn of_measured(
        &mut self,
        whole: &Call,
        key: Key,
    ) -> Result<Option<(ProductPlan, Source)>, Error> {
        let Measured { file, table } = &self.measured;
        for (plans, source) in [(file, Source::File), (table, Source::Table)] {
            if let Some(measured) = plans.get(&key)
                && let Some(plan) = self.blas.check(whole, measured.algo)?
            {
                return Ok(Some((plan, source)));
            }
        }
        Ok(None)
    }

    /// Returns the heuristic's first plan; `None` if it has none: `gemm_mma` multiplies then.
    fn first(&mut self, call: &Call) -> Result<Option<ProductPlan>, Error> {
        let plans = self.blas.candidates(call)?;
        Ok(plans.into_iter().next())
    }
}

fn workspace(space: &Space) -> Result<Buffer, Error> {
    space.alloc(
        "workspace",
        usize::try_from(WORKSPACE_BYTES).expect("32 MiB fit usize"),
    )
}

/// Loads the library for one of these major versions of CUDA, and returns its functions, its version,
/// and its file.
fn load(majors: &[i32], config: &CudaConfig) -> Result<(Functions, usize, PathBuf), Error> {
    let library = libs::open(Library::CublasLt, majors, config)?;
    let (functions, version) = Functions::load(&library)?;
    Ok((functions, version, library.path))
}

/// Returns the version of cuBLASLt, if it can be used: for reports.
///
/// # Errors
/// The errors of [`Lt::open`], without those of a GPU.
pub(crate) fn version(config: &CudaConfig) -> Result<(String, PathBuf), Error> {
    load(libs::majors(), config).map(|(_, version, path)| (dotted(version), path))
}

/// Returns the plans of the files in the cache folder, and a line about them. What earlier starts
/// measured comes after what part `gemm` of `gpu-check` did, which takes more time for it.
fn recorded(config: &CudaConfig, machine: &Machine) -> (Plans, String) {
    let Some(folder) = &config.cache_dir else {
        return (Plans::new(), "no `cache_dir` to keep them in".to_owned());
    };
    let (mut plans, mut lines) = (Plans::new(), Vec::new());
    for file in [plans::own_file(&machine.device), plans::FILE.to_owned()] {
        let path = folder.join(&file);
        if file != plans::FILE && !path.exists() {
            continue;
        }
        match plans::read(&path, machine, WORKSPACE_BYTES) {
            Ok(found) => {
                lines.push(format!("{} in {}", found.len(), path.display()));
                plans.extend(found);
            }
            Err(why) => lines.push(format!("{} is not used: {why}", path.display())),
        }
    }
    (plans, lines.join(", "))
}

/// Multiplies nothing.
#[cfg(feature = "emu")]
#[derive(Debug)]
struct Recorder(Arc<Recording>);

#[cfg(feature = "emu")]
impl Blas for Recorder {
    fn candidates(&mut self, _: &Call) -> Result<Vec<ProductPlan>, Error> {
        Ok(vec![ProductPlan {
            algo: Algo::default(),
            workspace_bytes: 0,
            us: None,
        }])
    }

    fn check(&mut self, _: &Call, algo: Algo) -> Result<Option<ProductPlan>, Error> {
        Ok(Some(ProductPlan {
            algo,
            workspace_bytes: 0,
            us: None,
        }))
    }

    fn try_multiply(&mut self, call: &Call, _: &ProductPlan) -> Result<bool, Error> {
        let p = &call.params;
        let fp8 = match call.scales.map(|of| of.scaling) {
            None => "",
            Some(Scaling::Rows) => " fp8",
            Some(Scaling::Blocks) => " fp8 blocks",
        };
        let mut line = format!("cublasLtMatmul{fp8} {:?}", call.form);
        let scales = call.scales.map_or([DevicePtr::NULL; 2], |of| [of.x, of.w]);
        for (name, at) in [
            ("x", p.x),
            ("w", p.w),
            ("x_scale", scales[0]),
            ("w_scale", scales[1]),
            ("bias", p.bias),
            ("y", p.y),
        ] {
            if at != DevicePtr::NULL {
                let _ = write!(line, " {name}={}", self.0.name(at.0));
            }
        }
        let _ = write!(
            line,
            " m={} of {} n={} k={} x_stride={} w_stride={} y_stride={}",
            p.m,
            plans::bucket(p.m),
            p.n,
            p.k,
            p.x_stride,
            p.w_stride,
            p.y_stride
        );
        self.0.push(line);
        Ok(true)
    }
}
