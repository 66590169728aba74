//! Archives of `torch.save` as the heads of decision models come in them: tensors, or an error. The pickle
//! is made of opcodes that are read, and lies in an archive beside a file of numbers.
#![no_main]

use std::io::{Cursor, Write as _};

use libfuzzer_sys::fuzz_target;
pub use prelude_models::{DType, TensorView};
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

/// A tensor's name, shape and numbers.
type NamedTensor = (String, Vec<usize>, Vec<f32>);

/// Stands for the library's, which turns the numbers into f32.
fn widened(view: &TensorView<'_>) -> Vec<f32> {
    vec![0.0; view.bytes.len() / view.dtype.size()]
}

#[allow(dead_code, reason = "the library's, which keeps it private")]
#[path = "../../../prelude-models/src/decision/pickle.rs"]
mod pickle;

/// Parts of the pickles that `torch.save` writes.
const PIECES: &[&[u8]] = &[
    b"\x80\x02",
    b"}",
    b"]",
    b")",
    b"(",
    b"t",
    b"u",
    b"s",
    b"a",
    b"e",
    b"R",
    b"Q",
    b".",
    b"N",
    b"\x88",
    b"\x89",
    b"\x85",
    b"\x86",
    b"\x87",
    b"q\x00",
    b"h\x00",
    b"q\x01",
    b"h\x01",
    b"K\x00",
    b"K\x02",
    b"J\xff\xff\xff\xff",
    b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"G?\xea\0\0\0\0\0\0",
    b"X\x05\0\0\0state",
    b"X\x01\0\0\0w",
    b"X\x07\0\0\0storage",
    b"X\x03\0\0\0cpu",
    b"X\x01\0\0\x000",
    b"ccollections\nOrderedDict\n",
    b"ctorch._utils\n_rebuild_tensor_v2\n",
    b"ctorch._utils\n_rebuild_parameter\n",
    b"ctorch\nFloatStorage\n",
    b"ctorch\nHalfStorage\n",
    b"cos\nsystem\n",
    // A tensor of 2 by 2 numbers.
    b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x04tQK\0K\x02K\x02\x86K\x02K\x01\x86\x89ccollections\nOrderedDict\n)RtR",
];

fn archive(pickle: &[u8]) -> Vec<u8> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (name, bytes) in [("head/data.pkl", pickle), ("head/data/0", &[0x3f; 16])] {
        archive.start_file(name, options).expect("a new name");
        archive.write_all(bytes).expect("memory takes bytes");
    }
    archive.finish().expect("memory takes bytes").into_inner()
}

fuzz_target!(|input: (Vec<(u8, &[u8])>, &[u8])| {
    let (pieces, raw) = input;
    let _ = pickle::Pickle::open(raw).map(|read| read.tensors("state").map(drop));
    let piece = |&(at, raw): &(u8, &[u8])| match PIECES.get(usize::from(at)) {
        Some(piece) => piece.to_vec(),
        None => raw.to_vec(),
    };
    let program: Vec<u8> = pieces.iter().flat_map(piece).collect();
    let archive = archive(&program);
    let tensors = pickle::Pickle::open(&archive).and_then(|read| read.tensors("state"));
    let tensors = tensors.unwrap_or_default();
    let numbers = tensors.iter().map(|(_, _, numbers)| numbers.len());
    assert!(numbers.sum::<usize>() <= 2 * archive.len(), "more than there are");
});
