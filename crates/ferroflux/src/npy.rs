//! NumPy's `.npy` files: one array, with its dtype and sizes in a header that is a Python literal.
//!
//! Not here: `.npz` archives, objects (which are pickled and never read), and structured dtypes.

use std::path::Path;

use ir_core::DType;
use tensor::{Storage, Tensor, TensorError, checked_numel, contiguous_strides};
use thiserror::Error;

/// The first bytes of a file, and its version.
const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Headers of NumPy have some hundred bytes.
const LARGEST_HEADER: usize = 1 << 16;
/// Data begins at a multiple of this.
const ALIGNMENT: usize = 64;

/// Why a file is not read or written.
#[derive(Debug, Error)]
pub enum NpyError {
    /// The file.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The contents.
    #[error("not a readable .npy array: {0}")]
    Format(String),
    /// A dtype that NumPy does not have.
    #[error("NumPy has no dtype {0}: convert the tensor first")]
    DType(DType),
    /// The tensor.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

fn format<T>(what: impl Into<String>) -> Result<T, NpyError> {
    Err(NpyError::Format(what.into()))
}

/// Reads an array from a file.
///
/// # Errors
/// The file cannot be read or is no array of numbers.
pub fn read(path: &Path) -> Result<Tensor, NpyError> {
    let bytes = std::fs::read(path).map_err(|source| NpyError::Io { path: path.to_owned(), source })?;
    from_bytes(&bytes)
}

/// Writes a tensor to a file, whole or not at all.
///
/// # Errors
/// NumPy does not have its dtype; the file cannot be written.
pub fn write(tensor: &Tensor, path: &Path) -> Result<(), NpyError> {
    let bytes = to_bytes(tensor)?;
    ir_core::write_whole(path, &bytes).map_err(|source| NpyError::Io { path: path.to_owned(), source })
}

/// The array of a file's contents.
///
/// # Errors
/// It is no array of numbers, or is shorter or longer than its header says.
pub fn from_bytes(bytes: &[u8]) -> Result<Tensor, NpyError> {
    let Some((&[major, _], rest)) = bytes.strip_prefix(MAGIC).and_then(|b| b.split_first_chunk::<2>()) else {
        return format("it does not begin as one");
    };
    let length = match (major, rest) {
        (1, &[a, b, ..]) => (2, usize::from(u16::from_le_bytes([a, b]))),
        (2 | 3, &[a, b, c, d, ..]) => (4, u32::from_le_bytes([a, b, c, d]) as usize),
        _ => return format(format!("its version is {major}")),
    };
    let (skip, length) = length;
    let header = rest.get(skip..).and_then(|r| r.get(..length)).filter(|_| length <= LARGEST_HEADER);
    let Some(header) = header.and_then(|h| std::str::from_utf8(h).ok()) else {
        return format("its header is damaged");
    };
    let Header { dtype, swapped, fortran, sizes } = Header::parse(header)?;
    let data = &rest[skip + length..];
    let wanted = checked_numel(dtype, &sizes)? * dtype.size();
    if data.len() != wanted {
        return format(format!("it has {} bytes of data, its header says {wanted}", data.len()));
    }
    let mut data = data.to_vec();
    if swapped {
        data.chunks_exact_mut(dtype.to_real().size()).for_each(<[u8]>::reverse);
    }
    if dtype == DType::Bool {
        data.iter_mut().for_each(|b| *b = u8::from(*b != 0));
    }
    if !fortran {
        return of_bytes(data, dtype, &sizes);
    }
    let reversed: Vec<usize> = sizes.iter().rev().copied().collect();
    let order: Vec<usize> = (0..sizes.len()).rev().collect();
    Ok(of_bytes(data, dtype, &reversed)?.permute(&order)?)
}

fn of_bytes(data: Vec<u8>, dtype: DType, sizes: &[usize]) -> Result<Tensor, NpyError> {
    let strides = contiguous_strides(sizes);
    Ok(Tensor::new(Storage::from_bytes(&data)?, dtype, sizes, &strides, 0)?)
}

/// The contents of a file with a tensor, row by row.
///
/// # Errors
/// NumPy does not have its dtype; no memory.
pub fn to_bytes(tensor: &Tensor) -> Result<Vec<u8>, NpyError> {
    let dtype = tensor.dtype();
    let name = KINDS.iter().find(|(_, own)| *own == dtype).ok_or(NpyError::DType(dtype))?.0;
    let order = if dtype.size() == 1 { '|' } else { '<' };
    let sizes: Vec<String> = tensor.sizes().iter().map(ToString::to_string).collect();
    let shape = match &sizes[..] {
        [one] => format!("({one},)"),
        many => format!("({})", many.join(", ")),
    };
    let mut header = format!("{{'descr': '{order}{name}', 'fortran_order': False, 'shape': {shape}, }}");
    let long = header.len() + 1 > usize::from(u16::MAX) - ALIGNMENT;
    let before = MAGIC.len() + 2 + if long { 4 } else { 2 };
    while !(before + header.len() + 1).is_multiple_of(ALIGNMENT) {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = MAGIC.to_vec();
    match long {
        false => {
            bytes.extend([1, 0]);
            bytes.extend((header.len() as u16).to_le_bytes());
        }
        true => {
            bytes.extend([2, 0]);
            bytes.extend((header.len() as u32).to_le_bytes());
        }
    }
    bytes.extend(header.as_bytes());
    let rows = tensor.copied()?;
    bytes.extend(rows.storage().bytes().get(..rows.nbytes()).unwrap_or_default());
    Ok(bytes)
}

/// NumPy's names of dtypes, without the order of bytes.
const KINDS: &[(&str, DType)] = &[
    ("f2", DType::F16),
    ("f4", DType::F32),
    ("f8", DType::F64),
    ("c8", DType::C64),
    ("c16", DType::C128),
    ("u2", DType::U16),
    ("u4", DType::U32),
    ("u8", DType::U64),
    ("i1", DType::I8),
    ("i2", DType::I16),
    ("i4", DType::I32),
    ("i8", DType::I64),
    ("u1", DType::U8),
    ("b1", DType::Bool),
];

struct Header {
    dtype: DType,
    /// Whether its numbers are big-endian.
    swapped: bool,
    /// Whether the first dimension is the innermost one.
    fortran: bool,
    sizes: Vec<usize>,
}

impl Header {
    /// Reads `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.
    fn parse(text: &str) -> Result<Header, NpyError> {
        let after = |key: &str| {
            let at = text.find(&format!("'{key}'")).map(|at| at + key.len() + 2);
            let rest = at.map(|at| text[at..].trim_start().trim_start_matches(':').trim_start());
            rest.ok_or_else(|| NpyError::Format(format!("its header has no `{key}`")))
        };
        let descr = after("descr")?;
        let name = descr.strip_prefix('\'').and_then(|d| d.split('\'').next());
        let Some(name) = name else { return format("its elements are no plain numbers") };
        let (order, kind) = name.split_at(name.len().min(1));
        let dtype = KINDS.iter().find(|(own, _)| *own == kind).map(|(_, dtype)| *dtype);
        let Some(dtype) = dtype else { return format(format!("elements `{name}` are not supported")) };
        let shape = after("shape")?;
        let inner = shape.strip_prefix('(').and_then(|s| s.split(')').next());
        let Some(inner) = inner else { return format("its header has no sizes") };
        let sizes = inner.split(',').map(str::trim).filter(|s| !s.is_empty());
        let sizes: Result<Vec<usize>, _> = sizes.map(str::parse).collect();
        let Ok(sizes) = sizes else { return format(format!("its sizes are ({inner})")) };
        Ok(Header {
            dtype,
            swapped: order == ">",
            fortran: after("fortran_order")?.starts_with("True"),
            sizes,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn arrays_come_back() {
        let x = Tensor::from_vec(vec![1.5_f32, -2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]).unwrap();
        let turned = x.transpose(0, 1).unwrap();
        for tensor in [x.clone(), turned, x.reshape(&[6]).unwrap(), x.to_dtype(DType::I16).unwrap()] {
            let bytes = to_bytes(&tensor).unwrap();
            let data = bytes.len() - tensor.nbytes();
            assert_eq!(data % ALIGNMENT, 0);
            let again = from_bytes(&bytes).unwrap();
            assert_eq!((again.dtype(), again.sizes()), (tensor.dtype(), tensor.sizes()));
            assert_eq!(again.iter_f64().collect::<Vec<_>>(), tensor.iter_f64().collect::<Vec<_>>());
        }
        let error = to_bytes(&x.to_dtype(DType::BF16).unwrap()).unwrap_err().to_string();
        assert!(error.contains("bf16"), "{error}");
    }

    /// As NumPy writes them: column by column, big-endian, without dimensions.
    #[test]
    fn other_orders_are_read() {
        let file = |header: &str, data: &[u8]| {
            let mut bytes = MAGIC.to_vec();
            bytes.extend([1, 0]);
            bytes.extend((header.len() as u16).to_le_bytes());
            bytes.extend(header.as_bytes());
            bytes.extend(data);
            bytes
        };
        let columns = "{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3), }";
        let read = from_bytes(&file(columns, &[1, 2, 3, 4, 5, 6])).unwrap();
        assert_eq!(read.to_vec::<u8>().unwrap(), [1, 3, 5, 2, 4, 6]);
        let big = "{'descr': '>i4', 'fortran_order': False, 'shape': (1,), }";
        assert_eq!(from_bytes(&file(big, &[0, 0, 1, 2])).unwrap().to_vec::<i32>().unwrap(), [258]);
        let alone = "{'descr': '<f8', 'fortran_order': False, 'shape': (), }";
        assert_eq!(from_bytes(&file(alone, &2.5_f64.to_le_bytes())).unwrap().sizes(), [0usize; 0]);
    }

    #[test]
    fn damaged_files_are_refused() {
        let good = to_bytes(&Tensor::from_vec(vec![1_i64, 2], &[2]).unwrap()).unwrap();
        for length in 0..good.len() {
            assert!(from_bytes(&good[..length]).is_err(), "{length}");
        }
        let with = |from: &[u8], to: &[u8]| {
            let mut bytes = good.clone();
            let at = bytes.windows(from.len()).position(|w| w == from).unwrap();
            bytes[at..at + to.len()].copy_from_slice(to);
            from_bytes(&bytes).unwrap_err().to_string()
        };
        let longer = with(b"(2,)", b"(9,)");
        assert!(longer.contains("16 bytes") && longer.contains("72"), "{longer}");
        let error = with(b"<i8", b"|O8");
        assert!(error.contains("not supported"), "{error}");
    }
}
