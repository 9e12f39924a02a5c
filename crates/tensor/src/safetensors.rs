//! Safetensors files: mapped on reading (tensors are views of the mapping), atomic on writing. The header is parsed
//! and its offsets are checked by the `safetensors` crate; here they become [`Tensor`]s.
//!
//! Not here: quantised and 8-bit float dtypes (an error names them), and sharded checkpoints.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use ir_core::{AtomicFile, DType};
use memmap2::Mmap;
use safetensors::{SafeTensorError, SafeTensors};

use crate::{Storage, Tensor, TensorError, contiguous_strides, with_element};

/// Why a file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SafetensorsError {
    /// The file system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Not a safetensors file, or a damaged one.
    #[error("not a valid safetensors file: {0}")]
    Format(#[from] SafeTensorError),
    /// A dtype this project does not compute with.
    #[error("tensor `{name}` is of dtype {dtype}, which is not supported")]
    UnsupportedDType {
        /// The tensor.
        name: String,
        /// Its dtype in the file's words.
        dtype: String,
    },
    /// A dtype that the format has no name for.
    #[error("tensor `{name}`: the safetensors format cannot hold {dtype}")]
    CannotWrite {
        /// The tensor.
        name: String,
        /// Its dtype.
        dtype: DType,
    },
    /// Two tensors of one name, or a tensor named as the metadata is.
    #[error("cannot write tensor `{0}`: the name is taken")]
    Name(String),
    /// A tensor could not be made.
    #[error("tensor `{name}`: {source}")]
    Tensor {
        /// The tensor.
        name: String,
        /// Why.
        source: TensorError,
    },
}

/// The tensors and the metadata of one file. Tensors share the file's bytes.
#[derive(Clone, Debug, Default)]
pub struct SafetensorsFile {
    /// By name, sorted.
    pub tensors: BTreeMap<String, Tensor>,
    /// The `__metadata__` map.
    pub metadata: BTreeMap<String, String>,
}

/// Tensors in file order.
type Entries<'a> = Vec<(&'a String, &'a Tensor)>;

impl SafetensorsFile {
    /// Maps the file at `path`. The file must not be truncated while tensors of it live.
    pub fn open(path: impl AsRef<Path>) -> Result<SafetensorsFile, SafetensorsError> {
        let path = path.as_ref();
        let io = |source| SafetensorsError::Io { path: path.display().to_string(), source };
        let file = File::open(path).map_err(io)?;
        if file.metadata().map_err(io)?.len() == 0 {
            return Err(SafeTensorError::HeaderTooSmall.into());
        }
        // SAFETY: a private mapping that is only read. That nobody truncates the file meanwhile is asked of the user,
        // as every program that maps weights asks it.
        let map = Arc::new(unsafe { Mmap::map(&file) }.map_err(io)?);
        let len = map.len();
        let storage = Storage::mapped(map, 0..len)
            .map_err(|source| SafetensorsError::Tensor { name: String::new(), source })?;
        SafetensorsFile::from_storage(&storage)
    }

    /// Reads a file that is in memory already; tensors are views of `storage`. A tensor that does not lie at a
    /// multiple of its alignment is copied.
    pub fn from_storage(storage: &Storage) -> Result<SafetensorsFile, SafetensorsError> {
        let (header, metadata) = SafeTensors::read_metadata(storage.bytes())?;
        // The header's length itself takes eight bytes.
        let data = header + size_of::<u64>();
        let mut tensors = BTreeMap::new();
        for (name, info) in metadata.tensors() {
            let dtype = DType::from_safetensors_name(&info.dtype.to_string()).ok_or_else(|| {
                SafetensorsError::UnsupportedDType { name: name.clone(), dtype: info.dtype.to_string() }
            })?;
            let (start, end) = info.data_offsets;
            let tensor = view(storage, dtype, &info.shape, data + start, data + end)
                .map_err(|source| SafetensorsError::Tensor { name: name.clone(), source })?;
            tensors.insert(name, tensor);
        }
        let metadata = metadata.metadata().iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
        Ok(SafetensorsFile { tensors, metadata })
    }

    /// Reads from bytes, which are copied once.
    pub fn from_bytes(bytes: &[u8]) -> Result<SafetensorsFile, SafetensorsError> {
        let storage = Storage::from_bytes(bytes)
            .map_err(|source| SafetensorsError::Tensor { name: String::new(), source })?;
        SafetensorsFile::from_storage(&storage)
    }

    /// Writes the file as a [`AtomicFile`]: `path` is either the old file or the whole new one, also after a loss of power.
    /// Tensors are ordered by falling alignment, then name, so that each is aligned.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), SafetensorsError> {
        let path = path.as_ref();
        let io = |source| SafetensorsError::Io { path: path.display().to_string(), source };
        let (header, order) = self.header()?;
        let mut whole = AtomicFile::begin(path).map_err(io)?;
        let mut out = BufWriter::with_capacity(1 << 20, whole.file());
        out.write_all(&header).map_err(io)?;
        for (name, tensor) in order {
            let tensor = tensor
                .contiguous()
                .map_err(|source| SafetensorsError::Tensor { name: name.clone(), source })?;
            out.write_all(contiguous_bytes(&tensor)).map_err(io)?;
        }
        out.flush().map_err(io)?;
        drop(out);
        whole.finish().map_err(io)
    }

    /// Length, JSON and padding, and the tensors in file order.
    fn header(&self) -> Result<(Vec<u8>, Entries<'_>), SafetensorsError> {
        let mut order: Vec<_> = self.tensors.iter().collect();
        order.sort_by_key(|(_, t)| std::cmp::Reverse(t.dtype().size()));
        let mut json = serde_json::Map::new();
        if !self.metadata.is_empty() {
            json.insert("__metadata__".to_owned(), serde_json::json!(self.metadata));
        }
        let mut offset = 0;
        for (name, tensor) in &order {
            let dtype = tensor.dtype();
            if dtype == DType::C128 {
                return Err(SafetensorsError::CannotWrite { name: (*name).clone(), dtype });
            }
            let end = offset + tensor.nbytes();
            let entry = serde_json::json!({
                "dtype": dtype.safetensors_name(), "shape": tensor.sizes(), "data_offsets": [offset, end],
            });
            if json.insert((*name).clone(), entry).is_some() || *name == "__metadata__" {
                return Err(SafetensorsError::Name((*name).clone()));
            }
            offset = end;
        }
        let json = serde_json::Value::Object(json).to_string();
        // Spaces up to the alignment of our own storage, so that a mapping is as aligned as an allocation.
        let length = (json.len() + 8).next_multiple_of(crate::storage::ALIGN) - 8;
        let mut header = (length as u64).to_le_bytes().to_vec();
        header.extend_from_slice(json.as_bytes());
        header.resize(length + 8, b' ');
        Ok((header, order))
    }
}

/// Bytes of a contiguous tensor's elements.
fn contiguous_bytes(tensor: &Tensor) -> &[u8] {
    if tensor.numel() == 0 {
        return &[];
    }
    let start = tensor.offset as usize * tensor.dtype().size();
    // A contiguous tensor's elements are inside its storage (invariant of `Tensor`).
    tensor.storage.bytes().get(start..start + tensor.nbytes()).unwrap_or(&[])
}

fn view(
    storage: &Storage,
    dtype: DType,
    sizes: &[usize],
    start: usize,
    end: usize,
) -> Result<Tensor, TensorError> {
    let bytes =
        storage.bytes().get(start..end).ok_or(TensorError::Range { start, end, len: storage.len() })?;
    let strides = contiguous_strides(sizes);
    let aligned = storage.as_ptr().addr().is_multiple_of(with_element!(dtype, T => align_of::<T>()))
        && start.is_multiple_of(dtype.size());
    if aligned {
        Tensor::new(storage.clone(), dtype, sizes, &strides, (start / dtype.size()) as isize)
    } else {
        Tensor::new(Storage::from_bytes(bytes)?, dtype, sizes, &strides, 0)
    }
}
