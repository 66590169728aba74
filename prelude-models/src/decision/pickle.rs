//! Archives of `torch.save`, read without running anything: a zip archive of a pickle and of the numbers
//! of its tensors.
//!
//! A pickle is a program that may call any function of Python by name. Of those, a few are known here by
//! what they make ([`GLOBALS`]), and any other name is an error. Values lie in a list and refer to each
//! other by number, so that what a pickle makes is never larger than a constant times the pickle.

use std::io::{Cursor, Read};

use zip::ZipArchive;

use super::NamedTensor;
use crate::DType;

/// The most bytes of a pickle without its tensors.
const PICKLE_BYTES_MAX: u64 = 4 << 20;
/// The most numbers of a tensor.
const NUMBERS_MAX: usize = 1 << 26;
/// The most bytes that are read for tensors, in times of the archive's: several may share a file.
const READ_TIMES_MAX: u64 = 4;

/// Names that a pickle may use: of a module, and of what is in it.
const GLOBALS: [(&str, &str, Global); 7] = [
    ("collections", "OrderedDict", Global::OrderedDict),
    ("torch._utils", "_rebuild_tensor_v2", Global::Tensor),
    ("torch._utils", "_rebuild_parameter", Global::Parameter),
    ("torch", "FloatStorage", Global::Storage(DType::F32)),
    ("torch", "HalfStorage", Global::Storage(DType::F16)),
    ("torch", "BFloat16Storage", Global::Storage(DType::Bf16)),
    ("torch.serialization", "_get_layout", Global::Layout),
];

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Global {
    OrderedDict,
    Tensor,
    Parameter,
    Storage(DType),
    Layout,
}

/// A value of a pickle; those inside it by their numbers.
#[derive(Clone, Debug)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    /// A list or a tuple.
    List(Vec<usize>),
    Dict(Vec<(usize, usize)>),
    Global(Global),
    /// The name of the file of numbers, and their type.
    Storage(String, DType),
    Tensor {
        storage: usize,
        offset: usize,
        shape: Vec<usize>,
        stride: Vec<usize>,
    },
    /// A place on the stack that opcodes look back to.
    Mark,
}

impl Value {
    /// Returns the value as a number, if it is one.
    pub(super) fn number(&self) -> Option<f64> {
        match self {
            Self::Int(int) => Some(*int as f64),
            Self::Float(float) => Some(*float),
            _ => None,
        }
    }
}

/// An archive whose pickle has been read.
pub(super) struct Pickle<'a> {
    archive: ZipArchive<Cursor<&'a [u8]>>,
    /// Bytes that may still be read for tensors.
    rest: u64,
    /// The beginning of the names of the archive's files.
    prefix: String,
    values: Vec<Value>,
    root: usize,
}

impl<'a> Pickle<'a> {
    /// Reads an archive's pickle.
    ///
    /// # Errors
    /// A description of the first fault of the archive or its pickle.
    pub(super) fn open(bytes: &'a [u8]) -> Result<Self, String> {
        let mut archive = ZipArchive::new(Cursor::new(bytes))
            .map_err(|e| format!("is no archive of torch.save: {e}"))?;
        let names = archive.file_names().filter_map(Result::ok);
        let mut prefixes =
            names.filter_map(|name| name.strip_suffix("data.pkl").map(str::to_owned));
        let prefix = prefixes.next();
        let prefix = prefix.ok_or("is no archive of torch.save: it has no data.pkl")?;
        drop(prefixes);
        let pickle = read(&mut archive, &format!("{prefix}data.pkl"), PICKLE_BYTES_MAX)?;
        let (values, root) = Machine::run(&pickle)?;
        Ok(Self {
            archive,
            rest: READ_TIMES_MAX * bytes.len() as u64,
            prefix,
            values,
            root,
        })
    }

    /// Returns the dictionary that the pickle is.
    pub(super) fn root(&self) -> Result<Vec<(&str, &Value)>, String> {
        self.dict(self.root)
    }

    fn dict(&self, at: usize) -> Result<Vec<(&str, &Value)>, String> {
        let Value::Dict(entries) = &self.values[at] else {
            return Err("holds something else than a dictionary".to_owned());
        };
        let entry = |&(key, value): &(usize, usize)| match &self.values[key] {
            Value::Text(name) => Ok((&**name, &self.values[value])),
            _ => Err("has a key that is no text".to_owned()),
        };
        entries.iter().map(entry).collect()
    }

    /// Returns the tensors of the dictionary under a key of the pickle's.
    pub(super) fn tensors(mut self, key: &str) -> Result<Vec<NamedTensor>, String> {
        let Value::Dict(entries) = &self.values[self.root] else {
            return Err("holds something else than a dictionary".to_owned());
        };
        let is_key = |at: usize| matches!(&self.values[at], Value::Text(name) if name == key);
        let found = entries.iter().find(|(name, _)| is_key(*name));
        let (_, at) = *found.ok_or_else(|| format!("lacks {key:?}"))?;
        let tensors = self.dict(at)?.into_iter();
        let tensors: Vec<(String, Value)> = tensors
            .map(|(name, value)| (name.to_owned(), value.clone()))
            .collect();
        let named = |(name, value): (String, Value)| {
            let Value::Tensor {
                storage,
                offset,
                shape,
                stride,
            } = value
            else {
                return Err(format!("has {name:?}, which is no tensor"));
            };
            let numbers = self.numbers(storage, offset, (&shape, &stride));
            let numbers =
                numbers.map_err(|what| format!("has the tensor {name:?}, which {what}"))?;
            Ok((name, shape, numbers))
        };
        tensors.into_iter().map(named).collect()
    }

    /// Reads the numbers of a tensor whose rows follow each other.
    fn numbers(
        &mut self,
        storage: usize,
        offset: usize,
        (shape, stride): (&[usize], &[usize]),
    ) -> Result<Vec<f32>, String> {
        let Value::Storage(file, dtype) = &self.values[storage] else {
            return Err("has no numbers".to_owned());
        };
        let (dtype, name) = (*dtype, format!("{}data/{file}", self.prefix));
        let mut len: usize = 1;
        for (size, step) in shape.iter().zip(stride).rev() {
            if *size > 1 && *step != len {
                return Err("is not stored row by row".to_owned());
            }
            len = { len.checked_mul(*size) }
                .filter(|len| *len <= NUMBERS_MAX)
                .ok_or("is too large")?;
        }
        let size = dtype.size();
        let bytes = read(&mut self.archive, &name, (NUMBERS_MAX * size) as u64)?;
        let rest = self.rest.checked_sub(bytes.len() as u64);
        self.rest = rest.ok_or("shares its numbers with too many others")?;
        let range = offset.checked_add(len).and_then(|end| {
            let (start, end) = (offset.checked_mul(size)?, end.checked_mul(size)?);
            bytes.get(start..end)
        });
        let view = crate::TensorView {
            dtype,
            shape: vec![len],
            bytes: range.ok_or("ends beyond its numbers")?,
        };
        Ok(super::widened(&view))
    }
}

fn read(archive: &mut ZipArchive<Cursor<&[u8]>>, name: &str, most: u64) -> Result<Vec<u8>, String> {
    let wrong = |e: &dyn std::fmt::Display| format!("has {name}, which cannot be read: {e}");
    let file = archive.by_name(name).map_err(|e| wrong(&e))?;
    let mut bytes = Vec::new();
    let read = file.take(most + 1).read_to_end(&mut bytes);
    read.map_err(|e| wrong(&e))?;
    match bytes.len() as u64 > most {
        true => Err(wrong(&"it is too large")),
        false => Ok(bytes),
    }
}

/// The machine that a pickle is a program of, as far as protocol 4 and dictionaries of tensors need it.
struct Machine<'p> {
    rest: &'p [u8],
    values: Vec<Value>,
    stack: Vec<usize>,
    /// Values by the numbers under which the program keeps them.
    memo: Vec<(u32, usize)>,
}

impl<'p> Machine<'p> {
    /// Runs a pickle, and returns its values and the number of the one that it is.
    fn run(pickle: &'p [u8]) -> Result<(Vec<Value>, usize), String> {
        let mut machine = Self {
            rest: pickle,
            values: Vec::new(),
            stack: Vec::new(),
            memo: Vec::new(),
        };
        loop {
            let [opcode] = machine.bytes()?;
            if opcode == b'.' {
                let root = machine.pop()?;
                return Ok((machine.values, root));
            }
            machine.step(opcode)?;
        }
    }

    fn step(&mut self, opcode: u8) -> Result<(), String> {
        match opcode {
            // PROTO, FRAME
            0x80 => self.bytes::<1>().map(drop),
            0x95 => self.bytes::<8>().map(drop),
            b'(' => self.push(Value::Mark),
            b'N' => self.push(Value::None),
            0x88 => self.push(Value::Bool(true)),
            0x89 => self.push(Value::Bool(false)),
            b'J' => {
                let int = i32::from_le_bytes(self.bytes()?);
                self.push(Value::Int(int.into()))
            }
            b'K' => {
                let [int] = self.bytes()?;
                self.push(Value::Int(int.into()))
            }
            b'M' => {
                let int = u16::from_le_bytes(self.bytes()?);
                self.push(Value::Int(int.into()))
            }
            0x8a => self.long(),
            b'G' => {
                let float = f64::from_be_bytes(self.bytes()?);
                self.push(Value::Float(float))
            }
            b'X' => {
                let len = u32::from_le_bytes(self.bytes()?);
                self.text(len as usize)
            }
            0x8c => {
                let [len] = self.bytes()?;
                self.text(len.into())
            }
            b'}' => self.push(Value::Dict(Vec::new())),
            b']' | b')' => self.push(Value::List(Vec::new())),
            b't' => {
                let items = self.marked()?;
                self.push(Value::List(items))
            }
            0x85..=0x87 => {
                let from = self.depth(usize::from(opcode - 0x84))?;
                let items = self.stack.split_off(from);
                self.push(Value::List(items))
            }
            b's' => {
                let from = self.depth(2)?;
                let items = self.stack.split_off(from);
                self.set(&items)
            }
            b'u' => {
                let items = self.marked()?;
                self.set(&items)
            }
            b'a' => {
                let item = self.pop()?;
                self.append(&[item])
            }
            b'e' => {
                let items = self.marked()?;
                self.append(&items)
            }
            b'c' | 0x93 => self.global(opcode),
            b'Q' => self.persistent(),
            b'R' => self.reduce(),
            b'q' | b'r' | 0x94 => self.keep(opcode),
            b'h' | b'j' => self.get(opcode),
            other => Err(format!(
                "has a pickle with the opcode {other:#04x}, which is not read"
            )),
        }
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (bytes, rest) = self
            .rest
            .split_first_chunk()
            .ok_or("has a pickle that ends early")?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn slice(&mut self, len: usize) -> Result<&'p [u8], String> {
        let (bytes, rest) =
            { self.rest.split_at_checked(len) }.ok_or("has a pickle that ends early")?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Reads up to the end of a line.
    fn line(&mut self) -> Result<String, String> {
        let end = self.rest.iter().position(|byte| *byte == b'\n');
        let line = self.slice(end.ok_or("has a pickle that ends early")?)?;
        self.rest = &self.rest[1..];
        Ok(String::from_utf8_lossy(line).into_owned())
    }

    fn push(&mut self, value: Value) -> Result<(), String> {
        self.stack.push(self.values.len());
        self.values.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Result<usize, String> {
        self.stack
            .pop()
            .ok_or_else(|| "has a pickle that takes what is not there".to_owned())
    }

    /// Returns the place of the last `n` values of the stack.
    fn depth(&self, n: usize) -> Result<usize, String> {
        let from = self.stack.len().checked_sub(n);
        from.ok_or_else(|| "has a pickle that takes what is not there".to_owned())
    }

    /// Takes what was pushed since the last mark.
    fn marked(&mut self) -> Result<Vec<usize>, String> {
        let is_mark = |&at: &usize| matches!(self.values[at], Value::Mark);
        let mark = self.stack.iter().rposition(is_mark);
        let items = self
            .stack
            .split_off(mark.ok_or("has a pickle without the mark it looks for")?);
        Ok(items[1..].to_vec())
    }

    fn text(&mut self, len: usize) -> Result<(), String> {
        let bytes = self.slice(len)?;
        let text = std::str::from_utf8(bytes).map_err(|_| "has a text that is not UTF-8")?;
        self.push(Value::Text(text.to_owned()))
    }

    /// An integer of any length, of which 8 bytes at most are read.
    fn long(&mut self) -> Result<(), String> {
        let [len] = self.bytes()?;
        let bytes = self.slice(len.into())?;
        let sign = if bytes.last().is_some_and(|b| b & 0x80 != 0) {
            0xff
        } else {
            0
        };
        let mut wide = [sign; 8];
        if bytes.len() > wide.len() {
            return Err("has an integer of more than 64 bits".to_owned());
        }
        wide[..bytes.len()].copy_from_slice(bytes);
        self.push(Value::Int(i64::from_le_bytes(wide)))
    }

    fn set(&mut self, items: &[usize]) -> Result<(), String> {
        let at = *self.stack.last().ok_or("has a pickle that fills nothing")?;
        let (pairs, rest) = items.as_chunks::<2>();
        match &mut self.values[at] {
            Value::Dict(entries) if rest.is_empty() => {
                entries.extend(pairs.iter().map(|[key, value]| (*key, *value)));
                Ok(())
            }
            _ => Err("has a pickle that fills something else than a dictionary".to_owned()),
        }
    }

    fn append(&mut self, items: &[usize]) -> Result<(), String> {
        let at = *self.stack.last().ok_or("has a pickle that fills nothing")?;
        match &mut self.values[at] {
            Value::List(all) => {
                all.extend_from_slice(items);
                Ok(())
            }
            _ => Err("has a pickle that fills something else than a list".to_owned()),
        }
    }

    fn global(&mut self, opcode: u8) -> Result<(), String> {
        let (module, name) = match opcode {
            b'c' => (self.line()?, self.line()?),
            _ => {
                let (name, module) = (self.pop()?, self.pop()?);
                match (&self.values[module], &self.values[name]) {
                    (Value::Text(module), Value::Text(name)) => (module.clone(), name.clone()),
                    _ => return Err("has a name that is no text".to_owned()),
                }
            }
        };
        let known = GLOBALS
            .iter()
            .find(|(of, known, _)| *of == module && *known == name);
        match known {
            Some((.., global)) => self.push(Value::Global(*global)),
            None => {
                let shown: String = format!("{module}.{name}").chars().take(80).collect();
                Err(format!(
                    "has a pickle that uses {shown}, which is not allowed"
                ))
            }
        }
    }

    /// The numbers of a tensor: `("storage", type, name, device, count)`.
    fn persistent(&mut self) -> Result<(), String> {
        let id = self.pop()?;
        let wrong = "has numbers of an unknown kind";
        let Value::List(items) = &self.values[id] else {
            return Err(wrong.to_owned());
        };
        let value = |i: usize| items.get(i).map(|at| &self.values[*at]);
        match (value(0), value(1), value(2)) {
            (
                Some(Value::Text(kind)),
                Some(Value::Global(Global::Storage(dtype))),
                Some(Value::Text(name)),
            ) if kind == "storage" && name.bytes().all(|b| b.is_ascii_digit()) => {
                self.push(Value::Storage(name.clone(), *dtype))
            }
            _ => Err(wrong.to_owned()),
        }
    }

    fn reduce(&mut self) -> Result<(), String> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let (Value::List(arguments), Value::Global(function)) =
            (&self.values[arguments], &self.values[function])
        else {
            return Err("has a pickle that calls something else than a function".to_owned());
        };
        let value = match (function, &arguments[..]) {
            (Global::OrderedDict, []) => Value::Dict(Vec::new()),
            (Global::Parameter, [tensor, ..]) => self.values[*tensor].clone(),
            (Global::Tensor, [storage, offset, shape, stride, ..]) => Value::Tensor {
                storage: *storage,
                offset: self.count(*offset)?,
                shape: self.counts(*shape)?,
                stride: self.counts(*stride)?,
            },
            _ => return Err("has a pickle that calls a function as it is not called".to_owned()),
        };
        self.push(value)
    }

    fn count(&self, at: usize) -> Result<usize, String> {
        match self.values[at] {
            Value::Int(int) => usize::try_from(int).ok(),
            _ => None,
        }
        .ok_or_else(|| "has a tensor of no shape".to_owned())
    }

    fn counts(&self, at: usize) -> Result<Vec<usize>, String> {
        match &self.values[at] {
            // A tensor of a head has two dimensions.
            Value::List(items) if items.len() <= 8 => {
                items.iter().map(|at| self.count(*at)).collect()
            }
            _ => Err("has a tensor of no shape".to_owned()),
        }
    }

    fn keep(&mut self, opcode: u8) -> Result<(), String> {
        let index = match opcode {
            b'q' => u32::from(self.bytes::<1>()?[0]),
            b'r' => u32::from_le_bytes(self.bytes()?),
            _ => u32::try_from(self.memo.len()).unwrap_or(u32::MAX),
        };
        let top = *self.stack.last().ok_or("has a pickle that keeps nothing")?;
        // Indices ascend, as torch writes them.
        match self.memo.last() {
            Some((last, _)) if *last >= index => {
                Err("has a pickle that keeps values out of order".to_owned())
            }
            _ => {
                self.memo.push((index, top));
                Ok(())
            }
        }
    }

    fn get(&mut self, opcode: u8) -> Result<(), String> {
        let index = match opcode {
            b'h' => u32::from(self.bytes::<1>()?[0]),
            _ => u32::from_le_bytes(self.bytes()?),
        };
        let found = self.memo.binary_search_by_key(&index, |(index, _)| *index);
        let found = found.map_err(|_| "has a pickle that gets what it did not keep")?;
        self.stack.push(self.memo[found].1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use proptest::prelude::*;

    use super::*;

    fn check(program: &[u8], words: &str) {
        let error = Machine::run(program).map(|_| ()).unwrap_err();
        assert!(error.contains(words), "{error}");
    }

    #[test]
    fn programs_that_do_more_than_make_tensors_are_refused() {
        check(
            b"\x80\x02cos\nsystem\n(X\x02\0\0\0lstR.",
            "os.system, which is not allowed",
        );
        check(
            b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.",
            "builtins.eval",
        );
        check(b"\x80\x02}(K\x01K\x02ub.", "opcode 0x62");
        check(b"\x80\x02K\x01K\x01R.", "calls something else");
        check(
            b"\x80\x02ccollections\nOrderedDict\n(K\x01tR.",
            "as it is not called",
        );
        check(b"\x80\x02}q\x03q\x02.", "out of order");
        check(b"\x80\x02h\x05.", "did not keep");
        check(b"\x80\x02t.", "without the mark");
        check(b"\x80\x02K\x01K\x02s.", "fills nothing");
        check(b"\x80\x02NK\x01K\x02s.", "something else than a dictionary");
        check(b"\x80\x02X\xff\xff\xff\xffa.", "ends early");
        check(b"\x80\x02", "ends early");
        check(b".", "not there");
        check(
            b"\x80\x02(X\x04\0\0\0fileX\x01\0\0\0aX\x01\0\0\x000tQ.",
            "unknown kind",
        );
    }

    /// A megabyte of a pickle could ask for its file of numbers ten thousand times.
    #[test]
    fn tensors_that_share_a_file_are_bounded() {
        let archive = |tensors: usize| {
            let mut pickle = b"\x80\x02}(X\x01\0\0\0s}(".to_vec();
            for tensor in 0..tensors {
                pickle.extend_from_slice(b"X\x02\0\0\0");
                pickle.extend_from_slice(format!("{tensor:02}").as_bytes());
                pickle.extend_from_slice(
                    b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\n\
                    X\x01\0\0\x000X\x03\0\0\0cpuM\x00\x10tQK\0K\x01\x85K\x01\x85\x89\
                    ccollections\nOrderedDict\n)RtR",
                );
            }
            pickle.extend_from_slice(b"uu.");
            let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
            let stored = zip::CompressionMethod::Stored;
            let options = zip::write::SimpleFileOptions::default().compression_method(stored);
            for (name, bytes) in [("h/data.pkl", &*pickle), ("h/data/0", &[0; 1 << 14])] {
                archive.start_file(name, options).unwrap();
                archive.write_all(bytes).unwrap();
            }
            archive.finish().unwrap().into_inner()
        };
        let tensors = |count| Pickle::open(&archive(count)).unwrap().tensors("s");
        assert_eq!(tensors(4).unwrap().len(), 4);
        assert!(tensors(40).unwrap_err().contains("too many others"));
    }

    #[test]
    fn values_are_read_as_python_writes_them() {
        let program =
            b"\x80\x02}q\0(X\x01\0\0\0aq\x01J\xff\xff\xff\xffX\x01\0\0\0bG?\xea\0\0\0\0\0\0\
            X\x01\0\0\0c\x8a\x03\0\0\x01X\x01\0\0\0d]q\x02(\x88Nh\x01eu.";
        let (values, root) = Machine::run(program).unwrap();
        let Value::Dict(entries) = &values[root] else {
            panic!("not a dictionary");
        };
        let number = |i: usize| values[entries[i].1].number();
        assert_eq!(
            (number(0), number(1), number(2)),
            (Some(-1.0), Some(0.8125), Some(65536.0))
        );
        assert!(matches!(&values[entries[3].1], Value::List(items) if items.len() == 3));
    }

    proptest! {
        #[test]
        fn no_program_panics_or_grows(program in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok((values, _)) = Machine::run(&program) {
                prop_assert!(values.len() <= program.len());
            }
        }

        /// Programs of opcodes that are read, in any order.
        #[test]
        fn no_program_of_known_opcodes_panics(
            picks in prop::collection::vec(prop::sample::select(
                b"(N}])tsuaeQRqh\x85\x86\x87\x88\x89K\x94.".to_vec()), 0..200)
        ) {
            let _ = Machine::run(&picks);
            let _ = Machine::run(&[b"\x80\x02ctorch\nFloatStorage\n".as_slice(), &picks].concat());
        }

        #[test]
        fn no_archive_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(Pickle::open(&bytes).is_err());
        }
    }
}
