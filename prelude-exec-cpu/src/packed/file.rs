//! The format of a packed file.
//!
//! ```text
//! 0      magic "PRELUDEW", then as u64 of the machine's byte order: version, number of entries,
//!        length of the file in bytes
//! 32     key, 32 bytes (SHA-256)
//! 64     per entry, as u64: form, outputs, inputs, first byte, length in bytes, XXH3-64 of the data
//! ...    the data of each entry, from a multiple of 4096 bytes on, dwords in the machine's byte order
//! ```

use std::{
    fs::File,
    io::{self, BufWriter, Seek, SeekFrom, Write},
    ops::Range,
    path::Path,
    sync::Arc,
};

use memmap2::Mmap;
use twox_hash::XxHash3_64;

use super::{Key, map::map};
use crate::kernels::words::Words;

const MAGIC: &[u8; 8] = b"PRELUDEW";
/// The version of the format, and of the layouts of panels that it holds. A change of either makes
/// files of other versions unknown.
pub(super) const VERSION: u64 = 2;
const HEADER_BYTES: usize = 64;
const ENTRY_BYTES: usize = 48;
/// The multiple at which the data of an entry starts: a page, so that every mapping is aligned.
const PAGE: usize = 4096;

/// A weight's place among the weights of a model: its storage form and its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// The number of the storage form, which the loader gives.
    pub(crate) form: u64,
    /// Rows.
    pub(crate) outputs: usize,
    /// Columns.
    pub(crate) inputs: usize,
}

/// Returns the length of a packed file that holds weights of such lengths in bytes.
pub(super) fn file_bytes(weights: &[(Shape, Words)]) -> u64 {
    let start = HEADER_BYTES + weights.len() * ENTRY_BYTES;
    let end = weights.iter().fold(start, |end, (_, words)| {
        end.next_multiple_of(PAGE) + size_of_val(&**words)
    });
    end as u64
}

/// Writes a packed file.
pub(super) fn write(path: &Path, key: &Key, weights: &[(Shape, Words)]) -> io::Result<()> {
    let mut out = BufWriter::new(File::create_new(path)?);
    let number = |n: usize| (n as u64).to_ne_bytes();
    out.write_all(MAGIC)?;
    out.write_all(&VERSION.to_ne_bytes())?;
    out.write_all(&number(weights.len()))?;
    out.write_all(&file_bytes(weights).to_ne_bytes())?;
    out.write_all(&key.0)?;
    let mut at = HEADER_BYTES + weights.len() * ENTRY_BYTES;
    let mut places = Vec::with_capacity(weights.len());
    for (shape, words) in weights {
        let first = at.next_multiple_of(PAGE);
        let bytes = size_of_val(&**words);
        places.push(first);
        at = first + bytes;
        out.write_all(&shape.form.to_ne_bytes())?;
        for n in [shape.outputs, shape.inputs, first, bytes] {
            out.write_all(&number(n))?;
        }
        let checksum = XxHash3_64::oneshot(bytemuck::cast_slice(words));
        out.write_all(&checksum.to_ne_bytes())?;
    }
    for ((_, words), first) in weights.iter().zip(places) {
        out.seek(SeekFrom::Start(first as u64))?;
        out.write_all(bytemuck::cast_slice(words))?;
    }
    let file = out.into_inner()?;
    file.set_len(at as u64)?;
    // The file gets its name after this: a name stands for a whole file, even after a crash.
    file.sync_all()
}

/// The place of a weight in a packed file.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    shape: Shape,
    pub(super) bytes: Range<usize>,
    /// XXH3-64 of these bytes, as they were written.
    pub(super) checksum: u64,
}

/// The weights of a packed file, in the order in which they were written.
#[derive(Debug)]
pub(crate) struct Reader {
    map: Arc<Mmap>,
    entries: std::vec::IntoIter<Entry>,
}

impl Reader {
    /// Opens a packed file. What its weights are is not looked at; the map and the entries beside the
    /// reader are for that.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if it is none of this version and key, or not whole.
    pub(super) fn open(file: &File, key: &Key) -> io::Result<(Self, Arc<Mmap>, Vec<Entry>)> {
        let map = Arc::new(map(file)?);
        let entries = entries(&map, key).ok_or(io::ErrorKind::InvalidData)?;
        let reader = Self {
            map: Arc::clone(&map),
            entries: entries.clone().into_iter(),
        };
        Ok((reader, map, entries))
    }

    /// Returns the next weight; `None` if it is not one of this shape and length in bytes.
    pub(crate) fn next(&mut self, shape: Shape, bytes: usize) -> Option<Words> {
        let entry = self.entries.next()?;
        (entry.shape == shape && entry.bytes.len() == bytes).then(|| Words::File {
            map: Arc::clone(&self.map),
            bytes: entry.bytes,
        })
    }
}

/// Returns the entries; `None` if the bytes are no whole packed file of
/// this key.
fn entries(bytes: &[u8], key: &Key) -> Option<Vec<Entry>> {
    let (header, rest) = bytes.split_at_checked(HEADER_BYTES)?;
    let (magic, header) = header.split_at(MAGIC.len());
    let (numbers, of_key) = header.split_at(24);
    let mut numbers = numbers.as_chunks().0.iter().map(|n| u64::from_ne_bytes(*n));
    let mut next = || numbers.next();
    let (version, count, length) = (next()?, usize::try_from(next()?).ok()?, next()?);
    if magic != MAGIC || version != VERSION || of_key != key.0 || length != bytes.len() as u64 {
        return None;
    }
    let table = rest.get(..count.checked_mul(ENTRY_BYTES)?)?;
    let entry = |entry: &[u8]| {
        let mut numbers = entry.as_chunks().0.iter().map(|n| u64::from_ne_bytes(*n));
        let form = numbers.next()?;
        let mut next = || usize::try_from(numbers.next()?).ok();
        let (outputs, inputs, first, len) = (next()?, next()?, next()?, next()?);
        let checksum = numbers.next()?;
        let fits = first.is_multiple_of(PAGE)
            && len.is_multiple_of(size_of::<u32>())
            && first.checked_add(len)? <= bytes.len();
        let shape = Shape {
            form,
            outputs,
            inputs,
        };
        fits.then(|| Entry {
            shape,
            bytes: first..first + len,
            checksum,
        })
    };
    table.chunks_exact(ENTRY_BYTES).map(entry).collect()
}
