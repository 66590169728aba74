//! Stored forms of tensors that are widened when they are read: fp8 with scales, and the blocks of
//! GGUF's type Q8_0.

use half::{bf16, f16};

use super::{
    Tensors, WeightFile,
    stored::{Entry, Form, Quantised, Scales, Stored},
};
use crate::{DType, Error, Fp8Scales, TensorView, fp8::numbers};

/// Elements of a block of type Q8_0, and its bytes.
pub(super) const Q8_0_BLOCK: usize = 32;
pub(super) const Q8_0_BYTES: usize = size_of::<f16>() + Q8_0_BLOCK;

/// The name of the stored type.
const E4M3: &str = "F8_E4M3";

/// Ends of the names of tensors of scales, behind the name of the matrix. The second one is the
/// factor as well, not its inverse.
const SCALES: [&str; 2] = ["_scale", "_scale_inv"];

/// Gives each tensor in fp8 its scales, and takes the tensors of scales off the list. Matrices are
/// widened to `dtype`.
///
/// # Errors
/// [`Error::Unsupported`] naming a matrix without scales, or with scales of another form.
pub(super) fn attach_scales(
    form: Fp8Scales,
    dtype: DType,
    files: &[WeightFile],
    tensors: &mut Tensors,
) -> Result<(), Error> {
    let is_fp8 = |(_, (_, entry)): &(&String, &(usize, Entry))| entry.dtype == Stored::Other(E4M3);
    let names: Vec<String> = tensors
        .iter()
        .filter(is_fp8)
        .map(|(name, _)| name.clone())
        .collect();
    for name in names {
        let scales = scales_of(&name, form, files, tensors)?;
        for end in SCALES {
            tensors.remove(&format!("{name}{end}"));
        }
        // The scale by which other servers round activations.
        if let Some(module) = name.strip_suffix(".weight") {
            tensors.remove(&format!("{module}.input_scale"));
        }
        let (_, entry) = tensors.get_mut(&name).expect("the name was found");
        entry.dtype = Stored::Quantised(Quantised {
            form: Form::Fp8(scales),
            dtype,
        });
    }
    Ok(())
}

fn scales_of(
    name: &str,
    form: Fp8Scales,
    files: &[WeightFile],
    tensors: &Tensors,
) -> Result<Scales, Error> {
    let (file, entry) = &tensors[name];
    let wrong = |what: String| Error::Unsupported {
        file: files[*file].name.clone(),
        what: format!("tensor {name:?} of type {E4M3} {what}"),
    };
    let [rows, columns] = entry.shape[..] else {
        return Err(wrong(format!("with shape {:?}", entry.shape)));
    };
    let named = SCALES.map(|end| tensors.get(&format!("{name}{end}")));
    let (at, found) = match named {
        [Some(of), None] | [None, Some(of)] => of,
        [None, None] => return Err(wrong(format!("without scales `{name}{}`", SCALES[0]))),
        [Some(_), Some(_)] => return Err(wrong("with two tensors of scales".to_owned())),
    };
    let Stored::Float(dtype) = found.dtype else {
        return Err(wrong(format!("with scales of type {}", found.dtype.name())));
    };
    let count: usize = found.shape.iter().product();
    let block = match form {
        Fp8Scales::Whole if count == 1 => [rows, columns],
        Fp8Scales::Whole if count == rows && found.shape[0] == rows => [1, columns],
        Fp8Scales::Blocks(block)
            if found.shape == [rows.div_ceil(block[0]), columns.div_ceil(block[1])] =>
        {
            block
        }
        _ => {
            let shape = &found.shape;
            return Err(wrong(format!(
                "and shape {:?} with scales of shape {shape:?}",
                entry.shape
            )));
        }
    };
    Ok(Scales {
        file: *at,
        bytes: found.bytes.clone(),
        dtype,
        block: block.map(|side| side.max(1)),
    })
}

/// Returns the rows of a matrix with those of each head in the order of its halves: stored are pairs,
/// of which one belongs to either half. `head_rows` is even and divides the rows.
pub(super) fn unpaired(bytes: &[u8], shape: &[usize], head_rows: usize) -> Vec<u8> {
    let rows = shape.first().copied().unwrap_or(0);
    let size = bytes.len().checked_div(rows).unwrap_or(0);
    let half = head_rows / 2;
    let stored_at = |row: usize| {
        let (head, row) = (row / head_rows, row % head_rows);
        head * head_rows + 2 * (row % half) + row / half
    };
    let mut out = Vec::with_capacity(rows * size);
    for row in 0..rows {
        out.extend_from_slice(&bytes[stored_at(row) * size..][..size]);
    }
    out
}

impl Scales {
    fn read(&self, files: &[WeightFile]) -> Vec<f32> {
        let view = TensorView {
            dtype: self.dtype,
            shape: vec![self.bytes.len() / self.dtype.size()],
            bytes: &files[self.file].bytes[self.bytes.clone()],
        };
        let mut values = Vec::with_capacity(view.len());
        view.read_f32(0..view.len(), &mut values);
        values
    }
}

impl Quantised {
    /// Returns the scales of a matrix in fp8, and rows and columns of a block; `None` for other forms.
    pub(super) fn scales(&self, files: &[WeightFile]) -> Option<(Vec<f32>, [usize; 2])> {
        match &self.form {
            Form::Fp8(scales) => Some((scales.read(files), scales.block)),
            Form::Q8_0 => None,
        }
    }

    /// Returns the elements of a tensor of this form, in its element type.
    pub(super) fn widen(&self, files: &[WeightFile], shape: &[usize], bytes: &[u8]) -> Vec<u8> {
        let elements = shape.iter().product::<usize>();
        let mut out = vec![0; elements * self.dtype.size()];
        match &self.form {
            Form::Fp8(scales) => {
                let columns = shape.last().copied().unwrap_or(0);
                let values = (&scales.read(files)[..], scales.block);
                widen_fp8(bytes, columns, values, self.dtype, &mut out);
            }
            Form::Q8_0 => {
                let blocks = bytes.chunks_exact(Q8_0_BYTES);
                let size = Q8_0_BLOCK * self.dtype.size();
                for (block, out) in blocks.zip(out.chunks_exact_mut(size)) {
                    let (scale, values) = block.split_at(size_of::<f16>());
                    let scale = f16::from_le_bytes([scale[0], scale[1]]).to_f32();
                    let values = values.iter().map(|&q| f32::from(q.cast_signed()) * scale);
                    write(values, self.dtype, out);
                }
            }
        }
        out
    }
}

/// Widens a matrix, row by row, each element times the scale of its block. Products are of f32 and
/// are rounded once.
fn widen_fp8(
    bytes: &[u8],
    columns: usize,
    (scales, block): (&[f32], [usize; 2]),
    dtype: DType,
    out: &mut [u8],
) {
    if columns == 0 {
        return;
    }
    let of_row = columns.div_ceil(block[1]);
    let rows = bytes.chunks_exact(columns);
    let outs = out.chunks_exact_mut(columns * dtype.size());
    for (row, (bytes, out)) in rows.zip(outs).enumerate() {
        let scales = &scales[row / block[0] * of_row..][..of_row];
        let parts = bytes.chunks(block[1]);
        let outs = out.chunks_mut(block[1] * dtype.size());
        for ((bytes, out), &scale) in parts.zip(outs).zip(scales) {
            let values = numbers(bytes).map(|x| x * scale);
            write(values, dtype, out);
        }
    }
}

/// Writes numbers as little-endian elements.
pub(super) fn write(values: impl Iterator<Item = f32>, dtype: DType, out: &mut [u8]) {
    match dtype {
        DType::Bf16 => {
            for (out, x) in out.as_chunks_mut().0.iter_mut().zip(values) {
                *out = bf16::from_f32(x).to_le_bytes();
            }
        }
        DType::F16 => {
            for (out, x) in out.as_chunks_mut().0.iter_mut().zip(values) {
                *out = f16::from_f32(x).to_le_bytes();
            }
        }
        DType::F32 => {
            for (out, x) in out.as_chunks_mut().0.iter_mut().zip(values) {
                *out = x.to_le_bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_may_be_cut_at_the_edges() {
        // Ones, three by five, in blocks of two by two.
        let scales = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let mut out = vec![0; 15 * 4];
        widen_fp8(&[0x38; 15], 5, (&scales, [2, 2]), DType::F32, &mut out);
        let found: Vec<f32> = out
            .as_chunks()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect();
        let first = [1.0, 1.0, 2.0, 2.0, 3.0];
        let last = [4.0, 4.0, 5.0, 5.0, 6.0];
        assert_eq!(found, [first, first, last].concat());
    }
}
