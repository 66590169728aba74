//! Launching: on a GPU, in the emulation, or on paper.
//!
//! A wrapper describes one launch: its shape and parameters, what it reads and what it writes.
//! What holds for every kernel is checked here: rows of 16-byte multiples, outputs apart from
//! everything else, a grid that a GPU takes.

use std::ops::Range;
#[cfg(feature = "emu")]
use std::{fmt::Write as _, sync::Arc};

use bytemuck::Pod;
#[cfg(feature = "emu")]
use bytemuck::Zeroable as _;
use prelude_kernels::{Launch, Params, TensorMap, TensorTile};

use super::cuda::{CudaGraph, CudaLauncher};
#[cfg(feature = "emu")]
use crate::record::Recording;
use crate::{Error, memory::view::View};

/// Largest parameter struct that a launch takes.
const MAX_PARAMS_BYTES: usize = 4096;
/// Most memory that one launch may touch under different names.
#[cfg(feature = "emu")]
const MAX_LAUNCH_ACCESSES: usize = 16;
/// Parameters that are f32; all others of 4 bytes are integers. Only the record asks.
#[cfg(feature = "emu")]
const FLOAT_PARAMS: [&str; 2] = ["eps", "scale"];

/// Multiprocessors of devices that stand for a GPU: few, so that their blocks have much to do.
#[cfg(feature = "emu")]
const EMULATED_MULTIPROCESSORS: u32 = 3;

/// Runs kernels.
#[derive(Debug)]
pub(crate) enum Launcher {
    /// Kernels run on a GPU.
    Cuda(Box<CudaLauncher>),
    /// Kernels run on the host, checked. A launch ends before the call returns.
    #[cfg(feature = "emu")]
    Emu(Arc<prelude_kernels::emu::Device>, Option<Vec<Kept>>),
    /// Kernels do not run: launches are written down. While capturing, counts them.
    #[cfg(feature = "emu")]
    Record(Arc<Recording>, Option<usize>),
}

/// Launches that were captured, to be queued again as one.
#[derive(Debug)]
pub(crate) enum Graph {
    /// A graph of a GPU.
    Cuda(CudaGraph),
    /// The launches that the emulation runs one after the other.
    #[cfg(feature = "emu")]
    Emu(Vec<Kept>),
    /// The number of launches that were written down.
    #[cfg(feature = "emu")]
    Record(usize),
}

/// A launch that the emulation keeps.
#[cfg(feature = "emu")]
#[derive(Debug)]
pub(crate) struct Kept {
    launch: Launch,
    params: Vec<u8>,
}

/// A name and the bytes that a launch may touch under it.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    name: &'static str,
    bytes: Range<u64>,
    is_aligned: bool,
}

/// Returns the memory of a view, as a launch touches it.
pub(crate) fn access<T: Pod>(name: &'static str, view: View<T>) -> Access {
    Access {
        name,
        bytes: view.span(),
        // Numbers of 4 bytes are read one by one; rows of bf16 16 bytes at a time.
        is_aligned: size_of::<T>() != 2 || view.is_aligned(),
    }
}

impl Launcher {
    /// Queues a launch. Nothing is launched for an empty grid. `writes` may be read too.
    ///
    /// # Errors
    /// [`Error::Launch`].
    pub(crate) fn launch<P: Params>(
        &mut self,
        launch: &Launch,
        params: &P,
        reads: &[Access],
        writes: &[Access],
    ) -> Result<(), Error> {
        if launch.grid.contains(&0) {
            return Ok(());
        }
        check::<P>(launch, reads, writes).map_err(|what| Error::launch(launch.kernel, what))?;
        match self {
            Self::Cuda(cuda) => cuda.launch(launch, params),
            #[cfg(feature = "emu")]
            Self::Emu(_, Some(kept)) => {
                kept.push(Kept {
                    launch: *launch,
                    params: bytemuck::bytes_of(params).to_vec(),
                });
                Ok(())
            }
            #[cfg(feature = "emu")]
            Self::Emu(device, None) => emulate(device, launch, params, reads, writes),
            #[cfg(feature = "emu")]
            Self::Record(recording, capturing) => {
                recording.push(text(recording, launch, params));
                if let Some(launches) = capturing {
                    *launches += 1;
                }
                Ok(())
            }
        }
    }

    /// Returns a matrix and a box of it as kernels take them in their parameters.
    ///
    /// # Errors
    /// [`Error::Launch`] if no copy can move such a box.
    pub(crate) fn tensor_map(&self, tile: TensorTile) -> Result<TensorMap, Error> {
        if !tile.is_valid() {
            let what = format!("no tensor map is made of {tile:?}");
            return Err(Error::launch("tensor_map", what));
        }
        match self {
            Self::Cuda(cuda) => cuda.tensor_map(tile),
            #[cfg(feature = "emu")]
            Self::Emu(..) | Self::Record(..) => Ok(tile.emulated()),
        }
    }

    /// Returns how many blocks run at once that leave no room for another beside them.
    pub(crate) fn multiprocessors(&self) -> u32 {
        match self {
            Self::Cuda(cuda) => cuda.multiprocessors(),
            #[cfg(feature = "emu")]
            Self::Emu(..) | Self::Record(..) => EMULATED_MULTIPROCESSORS,
        }
    }

    /// Returns true if kernels for Hopper run.
    pub(crate) fn is_on_hopper(&self) -> bool {
        match self {
            Self::Cuda(cuda) => cuda.is_on_hopper(),
            #[cfg(feature = "emu")]
            Self::Emu(..) | Self::Record(..) => false,
        }
    }

    /// Begins a capture: launches from here on are kept and not run.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn begin_capture(&mut self) -> Result<(), Error> {
        match self {
            Self::Cuda(cuda) => cuda.begin_capture()?,
            #[cfg(feature = "emu")]
            Self::Emu(_, kept) => *kept = Some(Vec::new()),
            #[cfg(feature = "emu")]
            Self::Record(_, launches) => *launches = Some(0),
        }
        Ok(())
    }

    /// Returns the captured launches. From here on launches run.
    ///
    /// # Errors
    /// The driver's; also if something was queued that cannot be captured.
    pub(crate) fn end_capture(&mut self) -> Result<Graph, Error> {
        match self {
            Self::Cuda(cuda) => cuda.end_capture().map(Graph::Cuda),
            #[cfg(feature = "emu")]
            Self::Emu(_, kept) => Ok(Graph::Emu(kept.take().unwrap_or_default())),
            #[cfg(feature = "emu")]
            Self::Record(_, launches) => Ok(Graph::Record(launches.take().unwrap_or_default())),
        }
    }

    /// Queues what was captured by this launcher. Its kernels find other contents at the same
    /// addresses.
    ///
    /// # Errors
    /// [`Error::Launch`].
    pub(crate) fn replay(&mut self, graph: &Graph) -> Result<(), Error> {
        match (self, graph) {
            (Self::Cuda(cuda), Graph::Cuda(graph)) => cuda.replay(graph),
            // Launches are kept without extents: what a launch may touch has grown or shrunk since,
            // as block tables do. It is within the device's buffers.
            #[cfg(feature = "emu")]
            (Self::Emu(device, _), Graph::Emu(launches)) => launches.iter().try_for_each(|kept| {
                device
                    .launch_bytes(&kept.launch, &kept.params, None)
                    .map_err(|e| Error::launch(kept.launch.kernel, e.to_string()))
            }),
            #[cfg(feature = "emu")]
            (Self::Record(recording, _), Graph::Record(launches)) => {
                recording.push(format!("graph of {launches} launches"));
                Ok(())
            }
            #[cfg(feature = "emu")]
            _ => Err(Error::launch("graph", "it is another launcher's")),
        }
    }
}

fn check<P: Params>(launch: &Launch, reads: &[Access], writes: &[Access]) -> Result<(), String> {
    let [x, y, z] = launch.grid;
    let threads: u32 = launch.block.iter().product();
    // 2³¹ - 1 in x, 65,535 in y and z.
    if x > i32::MAX as u32 || y > 65_535 || z > 65_535 || !(1..=1024).contains(&threads) {
        return Err(format!(
            "grid {:?} × {:?} threads",
            launch.grid, launch.block
        ));
    }
    if size_of::<P>() > MAX_PARAMS_BYTES {
        return Err(format!("{} bytes of parameters", size_of::<P>()));
    }
    check_accesses(reads, writes)
}

/// Checks the memory of a launch, ours or a library's.
pub(super) fn check_accesses(reads: &[Access], writes: &[Access]) -> Result<(), String> {
    if let Some(a) = reads.iter().chain(writes).find(|a| !a.is_aligned) {
        return Err(format!(
            "`{}` is not in rows of multiples of 16 bytes",
            a.name
        ));
    }
    for (i, written) in writes.iter().enumerate() {
        let mut others = reads.iter().chain(&writes[..i]);
        if let Some(other) = others.find(|other| overlap(written, other)) {
            return Err(format!("`{}` overlaps `{}`", written.name, other.name));
        }
    }
    Ok(())
}

fn overlap(a: &Access, b: &Access) -> bool {
    !a.bytes.is_empty()
        && !b.bytes.is_empty()
        && a.bytes.start < b.bytes.end
        && b.bytes.start < a.bytes.end
}

/// Runs a launch that may touch what its wrapper says and nothing else.
#[cfg(feature = "emu")]
fn emulate<P: Params>(
    device: &prelude_kernels::emu::Device,
    launch: &Launch,
    params: &P,
    reads: &[Access],
    writes: &[Access],
) -> Result<(), Error> {
    use prelude_kernels::{DevicePtr, emu::Extent};

    let mut extents = [Extent::zeroed(); MAX_LAUNCH_ACCESSES];
    let accesses = reads
        .iter()
        .map(|a| (a, 0))
        .chain(writes.iter().map(|a| (a, 1)));
    let mut count = 0;
    for (access, writable) in accesses.filter(|(a, _)| !a.bytes.is_empty()) {
        extents[count] = Extent {
            at: DevicePtr(access.bytes.start),
            bytes: access.bytes.end - access.bytes.start,
            writable,
            reserved: 0,
        };
        count += 1;
    }
    device
        .launch_bytes(launch, bytemuck::bytes_of(params), Some(&extents[..count]))
        .map_err(|e| Error::launch(launch.kernel, e.to_string()))
}

/// Returns a line that says what is launched on what.
#[cfg(feature = "emu")]
fn text<P: Params>(recording: &Recording, launch: &Launch, params: &P) -> String {
    let mut line = format!("{} <<<", launch.kernel);
    let mut add = |text: std::fmt::Arguments<'_>| line.write_fmt(text).expect("a string takes all");
    match launch.grid {
        [x, 1, 1] => add(format_args!("{x}")),
        [x, y, 1] => add(format_args!("{x}×{y}")),
        [x, y, z] => add(format_args!("{x}×{y}×{z}")),
    }
    let threads: u32 = launch.block.iter().product();
    add(format_args!(", {threads}"));
    if launch.shared_bytes > 0 {
        add(format_args!(", {} B", launch.shared_bytes));
    }
    add(format_args!(">>>"));
    let bytes = bytemuck::bytes_of(params);
    for field in P::FIELDS.iter().filter(|f| f.name != "reserved") {
        let (name, value) = (field.name, &bytes[field.offset..][..field.bytes]);
        match *value {
            [a, b, c, d, e, f, g, h] => {
                match u64::from_le_bytes([a, b, c, d, e, f, g, h]) {
                    0 => {} // Says what is not given by not saying it.
                    address => add(format_args!(" {name}={}", recording.name(address))),
                }
            }
            [a, b, c, d] if FLOAT_PARAMS.contains(&name) => {
                add(format_args!(" {name}={}", f32::from_le_bytes([a, b, c, d])));
            }
            [a, b, c, d] => add(format_args!(" {name}={}", u32::from_le_bytes([a, b, c, d]))),
            // Tensor maps, which the views beside them say in words.
            _ if value.len() > 64 => {}
            _ => add(format_args!(" {name}={value:?}")),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use prelude_kernels::{DevicePtr, families::SiluMulParams};

    use super::*;
    use crate::memory::space::Space;

    /// Returns the record of a launch, or the reason why it is refused.
    fn launch(
        grid: [u32; 3],
        accesses: impl FnOnce(View<bf16>, View<bf16>) -> (Vec<Access>, Vec<Access>),
    ) -> Result<String, String> {
        let recording = Arc::new(Recording::default());
        let space = Space::Virtual(Arc::clone(&recording));
        let (a, b) = (
            space.alloc("a", 256).unwrap(),
            space.alloc("b", 256).unwrap(),
        );
        let (a, b) = (a.view(0, 4, 16), b.view(0, 4, 16));
        let (reads, writes) = accesses(a, b);
        let shape = Launch {
            kernel: "k",
            grid,
            block: [32, 1, 1],
            shared_bytes: 128,
        };
        let params = SiluMulParams {
            gate_up: a.ptr().offset(32),
            a: b.ptr(),
            live: DevicePtr::NULL,
            rows: 4,
            width: 8,
            gate_up_stride: 16,
            a_stride: 16,
        };
        let mut launcher = Launcher::Record(Arc::clone(&recording), None);
        let result = launcher.launch(&shape, &params, &reads, &writes);
        let lines = recording.take().join("\n");
        result.map(|()| lines).map_err(|e| e.to_string())
    }

    #[test]
    fn launches_are_checked_and_written_down() {
        let plain = |a, b| (vec![access("x", a)], vec![access("y", b)]);
        let line = "k <<<2×3, 32, 128 B>>> gate_up=a+32 a=b rows=4 width=8 gate_up_stride=16 \
                    a_stride=16";
        assert_eq!(launch([2, 3, 1], plain).unwrap(), line);
        assert_eq!(launch([0, 3, 1], plain).unwrap(), "");
        let grid = launch([1, 70_000, 1], plain).unwrap_err();
        assert!(grid.contains("70000"), "{grid}");
        let alias = launch([1, 1, 1], |a: View<bf16>, _| {
            (
                vec![access("x", a.slice(0..2))],
                vec![access("y", a.slice(1..4))],
            )
        });
        assert_eq!(alias.unwrap_err(), "k: `y` overlaps `x`");
        let twice = launch([1, 1, 1], |a, _| {
            (vec![], vec![access("x", a), access("y", a)])
        });
        assert_eq!(twice.unwrap_err(), "k: `y` overlaps `x`");
        let crooked = launch([1, 1, 1], |a: View<bf16>, b| {
            (vec![access("x", a.columns(1..9))], vec![access("y", b)])
        });
        assert!(crooked.unwrap_err().contains("`x` is not in rows"));
    }
}
