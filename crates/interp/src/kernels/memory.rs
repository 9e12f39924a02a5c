//! The memory of one call: where each buffer's bytes are, checked element access, outputs.

use ir_core::{Atom, DType, EntityId, Scalar, SymExpr, SymId};
use kernel_ir::{ALIGN, BufId, Buffer, Operand, OutputSpec, Program, Storage as Place};
use tensor::{Bool, Element, Storage, Tensor, TensorError, bf16, f16, with_element};

use super::{KernelError, size, sizes};
use crate::Bindings;

/// The parts that memory is built from.
pub(super) struct Parts<'a> {
    pub(super) program: &'a Program,
    pub(super) inputs: &'a [Tensor],
    pub(super) constants: &'a [Tensor],
    pub(super) persistent: &'a [Option<Storage>],
}

/// All memory of one call.
pub(super) struct Memory {
    blocks: Vec<Block>,
    buffers: Vec<Located>,
}

struct Block {
    storage: Storage,
    writable: bool,
    /// Whether a call's outputs may be this memory: it was made for the call.
    own: bool,
}

/// A buffer with its sizes as numbers.
#[derive(Clone)]
struct Located {
    name: String,
    dtype: DType,
    block: usize,
    /// Bytes before the buffer's memory within the block.
    base: usize,
    sizes: Vec<usize>,
    strides: Vec<i64>,
    /// Elements before the first one, from `base`.
    offset: i64,
}

/// `tensor` with the strides that the buffer states, copied where it has others or is to be `written`.
pub(super) fn conform(
    program: &Program,
    (buf, name, written): (BufId, &str, bool),
    tensor: &Tensor,
    bindings: &Bindings,
) -> Result<Tensor, KernelError> {
    let buffer = &program.buffers[buf];
    if tensor.dtype() != buffer.dtype || tensor.sizes() != sizes(&buffer.sizes, bindings)? {
        return Err(mismatch(buffer, name, tensor));
    }
    let strides: Vec<isize> =
        buffer.strides.iter().map(|s| Ok(size(s, bindings)? as isize)).collect::<Result<_, KernelError>>()?;
    let matters = |d: usize| tensor.sizes()[d] > 1;
    if !written && (0..tensor.rank()).all(|d| !matters(d) || tensor.strides()[d] == strides[d]) {
        return Ok(tensor.clone());
    }
    let laid_out = || -> Result<Tensor, TensorError> {
        let empty = Tensor::empty_strided(tensor.dtype(), tensor.sizes(), &strides)?;
        empty.with_storage(empty.storage_with(tensor)?)
    };
    laid_out().map_err(|error| KernelError::Tensor { what: name.into(), error })
}

pub(super) fn mismatch(buffer: &Buffer, name: &str, tensor: &Tensor) -> KernelError {
    let expected = buffer.sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    KernelError::Mismatch {
        name: name.into(),
        got_dtype: tensor.dtype(),
        got: tensor.sizes().to_vec(),
        expected: format!("{}[{expected}]", buffer.dtype),
    }
}

/// Memory that nothing has written: `NaN` in every float dtype.
fn fresh(name: &str, bytes: usize) -> Result<Storage, KernelError> {
    let refused = |error| KernelError::Tensor { what: name.into(), error };
    let mut storage = Storage::zeroed(bytes).map_err(refused)?;
    if let Some(all) = storage.bytes_mut() {
        all.fill(0xFF);
    }
    Ok(storage)
}

/// Fresh memory of a buffer's span.
fn fresh_for(buffer: &Buffer, bindings: &Bindings) -> Result<Storage, KernelError> {
    let elements = size(&buffer.span(), bindings)?.max(0) as u64;
    let bytes = elements.saturating_mul(buffer.dtype.size() as u64);
    fresh(&buffer.name, usize::try_from(bytes).unwrap_or(usize::MAX))
}

impl Memory {
    pub(super) fn new(parts: &Parts<'_>, bindings: &Bindings, planned: bool) -> Result<Memory, KernelError> {
        let program = parts.program;
        let mut memory = Memory { blocks: Vec::new(), buffers: Vec::new() };
        let arena = if planned { Some(Arena::new(program, bindings, &mut memory.blocks)?) } else { None };
        for (id, buffer) in program.buffers.iter() {
            let located = memory.locate(parts, id, buffer, bindings, arena.as_ref())?;
            memory.buffers.push(located);
        }
        // A view may be declared before what it is a view of.
        for (id, buffer) in program.buffers.iter() {
            if let Place::View(of) = buffer.storage {
                let root = memory.buffers.get(of.index()).cloned();
                let root = root.filter(|_| !matches!(program.buffers[of].storage, Place::View(_)));
                let root = root.ok_or_else(|| {
                    KernelError::malformed(&buffer.name, "is a view of no buffer, or of another view")
                })?;
                let view = &mut memory.buffers[id.index()];
                (view.block, view.base) = (root.block, root.base);
            }
        }
        Ok(memory)
    }

    /// A step has bound `symbol`: shapes that mention it change, and buffers whose size mentions it get new memory.
    pub(super) fn rebound(
        &mut self,
        program: &Program,
        symbol: SymId,
        bindings: &Bindings,
    ) -> Result<(), KernelError> {
        let mentions = |e: &SymExpr| e.any_leaf(|a| matches!(a, Atom::Sym(id) if *id == symbol));
        let affected = |b: &Buffer| b.sizes.iter().chain(&b.strides).chain([&b.offset]).any(mentions);
        let changed: Vec<BufId> =
            program.buffers.iter().filter(|(_, b)| affected(b)).map(|(id, _)| id).collect();
        let roots_first = |id: &BufId| matches!(program.buffers[*id].storage, Place::View(_));
        let (views, roots): (Vec<BufId>, Vec<BufId>) = changed.into_iter().partition(roots_first);
        for &id in &roots {
            self.reshape(program, id, bindings)?;
        }
        let stale =
            |id: &BufId| matches!(program.buffers[*id].storage, Place::View(of) if roots.contains(&of));
        let moved: Vec<BufId> = program.buffers.ids().filter(stale).collect();
        for id in views.into_iter().chain(moved) {
            self.reshape(program, id, bindings)?;
        }
        Ok(())
    }

    fn reshape(&mut self, program: &Program, id: BufId, bindings: &Bindings) -> Result<(), KernelError> {
        let buffer = &program.buffers[id];
        // Other symbols may be bound later.
        let Ok(known) = sizes(&buffer.sizes, bindings) else { return Ok(()) };
        let strides = buffer.strides.iter().map(|s| size(s, bindings)).collect::<Result<Vec<i64>, _>>();
        let (Ok(strides), Ok(offset)) = (strides, size(&buffer.offset, bindings)) else { return Ok(()) };
        let place = match buffer.storage {
            Place::View(of) => Some((self.buffers[of.index()].block, self.buffers[of.index()].base)),
            Place::Arena | Place::Output => Some((self.push(fresh_for(buffer, bindings)?, true), 0)),
            Place::Input(_) | Place::Constant(_) | Place::Persistent => None,
        };
        let located = &mut self.buffers[id.index()];
        (located.sizes, located.strides, located.offset) = (known, strides, offset);
        if let Some((block, base)) = place {
            (located.block, located.base) = (block, base);
        }
        Ok(())
    }

    fn locate(
        &mut self,
        parts: &Parts<'_>,
        id: BufId,
        buffer: &Buffer,
        bindings: &Bindings,
        arena: Option<&Arena>,
    ) -> Result<Located, KernelError> {
        let known = |tensor: Option<&Tensor>| tensor.map(|t| (t.storage().clone(), t.offset()));
        let (given, writable) = match buffer.storage {
            Place::Input(n) => {
                (known(parts.inputs.get(n as usize)), parts.program.written_input(id).is_some())
            }
            Place::Constant(n) => (known(parts.constants.get(n as usize)), false),
            Place::Persistent => (parts.persistent[id.index()].clone().map(|s| (s, 0)), false),
            Place::Arena | Place::Output | Place::View(_) => (None, true),
        };
        let mut located = Located {
            name: buffer.name.clone(),
            dtype: buffer.dtype,
            block: usize::MAX,
            base: 0,
            sizes: Vec::new(),
            strides: Vec::new(),
            offset: 0,
        };
        // Buffers of calls have no sizes yet while the constants are bound, and are not used then either. Buffers whose
        // size a step computes get memory in `rebound`.
        let Ok(known_sizes) = sizes(&buffer.sizes, bindings) else { return Ok(located) };
        let strides = buffer.strides.iter().map(|s| size(s, bindings)).collect::<Result<_, _>>();
        let (Ok(strides), Ok(offset)) = (strides, size(&buffer.offset, bindings)) else { return Ok(located) };
        (located.sizes, located.strides, located.offset) = (known_sizes, strides, offset);
        match (given, &buffer.storage) {
            (Some((storage, offset)), _) => {
                // The buffer's memory begins at the tensor's first element, so that views of the buffer count from there.
                let begin = usize::try_from(offset).map_err(|_| {
                    KernelError::malformed(&buffer.name, "its tensor begins before its memory")
                })?;
                located.base = begin * buffer.dtype.size();
                located.block = self.push(storage, writable);
                self.blocks[located.block].own = false;
            }
            (None, Place::Input(_) | Place::Constant(_) | Place::View(_)) => {}
            (None, Place::Arena) if arena.is_some_and(|a| a.offset(id).is_some()) => {
                let arena = arena.and_then(|a| a.offset(id).map(|at| (a.block, at)));
                (located.block, located.base) = arena.unwrap_or((usize::MAX, 0));
            }
            (None, Place::Arena | Place::Output | Place::Persistent) => {
                located.block = self.push(fresh_for(buffer, bindings)?, true);
            }
        }
        Ok(located)
    }

    fn push(&mut self, storage: Storage, writable: bool) -> usize {
        self.blocks.push(Block { storage, writable, own: true });
        self.blocks.len() - 1
    }

    /// The bytes of a buffer that is not a view.
    pub(super) fn storage(&self, buf: BufId) -> Storage {
        self.blocks[self.buffers[buf.index()].block].storage.clone()
    }

    /// An operand of a template as a tensor.
    pub(super) fn operand(
        &self,
        kernel: &str,
        operand: &Operand,
        bindings: &Bindings,
    ) -> Result<Tensor, KernelError> {
        let numbers = |list: &[ir_core::SymExpr]| -> Result<Vec<isize>, KernelError> {
            list.iter().map(|e| Ok(size(e, bindings)? as isize)).collect()
        };
        let offset = size(&operand.offset, bindings)? as isize;
        self.tensor(
            kernel,
            operand.buf,
            &sizes(&operand.sizes, bindings)?,
            &numbers(&operand.strides)?,
            offset,
        )
    }

    /// A tensor over a buffer's memory; `offset` counts elements from the start of that memory.
    fn tensor(
        &self,
        what: &str,
        buf: BufId,
        sizes: &[usize],
        strides: &[isize],
        offset: isize,
    ) -> Result<Tensor, KernelError> {
        let located = &self.buffers[buf.index()];
        let block = self.blocks.get(located.block);
        let block =
            block.ok_or_else(|| KernelError::malformed(what, format!("`{}` has no memory", located.name)))?;
        let before = (located.base / located.dtype.size()) as isize;
        Tensor::new(block.storage.clone(), located.dtype, sizes, strides, before.saturating_add(offset))
            .map_err(|error| KernelError::Tensor { what: what.into(), error })
    }

    /// One of the program's outputs; what the caller could share with the program is copied.
    pub(super) fn output(&self, spec: &OutputSpec, bindings: &Bindings) -> Result<Tensor, KernelError> {
        let numbers: Result<Vec<isize>, KernelError> =
            spec.strides.iter().map(|e| Ok(size(e, bindings)? as isize)).collect();
        let offset = size(&spec.offset, bindings)? as isize;
        let view = self.tensor(&spec.name, spec.buf, &sizes(&spec.sizes, bindings)?, &numbers?, offset)?;
        let block = &self.blocks[self.buffers[spec.buf.index()].block];
        if block.writable && block.own {
            return Ok(view);
        }
        view.copied().map_err(|error| KernelError::Tensor { what: spec.name.clone(), error })
    }

    /// The tensor that an input is at present.
    pub(super) fn input(&self, name: &str, buf: BufId) -> Result<Tensor, KernelError> {
        let Located { sizes, strides, .. } = &self.buffers[buf.index()];
        let strides: Vec<isize> = strides.iter().map(|s| *s as isize).collect();
        self.tensor(name, buf, sizes, &strides, 0)
    }

    /// First byte of an element.
    fn place(&self, kernel: &str, buf: BufId, index: &[i64]) -> Result<usize, KernelError> {
        let b = &self.buffers[buf.index()];
        let inside = index.len() == b.sizes.len()
            && index.iter().zip(&b.sizes).all(|(&i, &n)| usize::try_from(i).is_ok_and(|i| i < n));
        if !inside {
            return Err(KernelError::OutOfBounds {
                kernel: kernel.into(),
                buffer: b.name.clone(),
                index: index.to_vec(),
                sizes: b.sizes.clone(),
            });
        }
        let element =
            index.iter().zip(&b.strides).fold(b.offset, |at, (i, s)| at.wrapping_add(i.wrapping_mul(*s)));
        let element = usize::try_from(element).unwrap_or(usize::MAX / 2);
        Ok(b.base.saturating_add(element.saturating_mul(b.dtype.size())))
    }

    /// The element of a buffer.
    pub(super) fn load(&self, kernel: &str, buf: BufId, index: &[i64]) -> Result<Scalar, KernelError> {
        let start = self.place(kernel, buf, index)?;
        let b = &self.buffers[buf.index()];
        let bytes = self
            .blocks
            .get(b.block)
            .and_then(|block| block.storage.bytes().get(start..start + b.dtype.size()));
        bytes.map(|bytes| decode(b.dtype, bytes)).ok_or_else(|| self.outside(kernel, buf))
    }

    /// Writes the element of a buffer, converted to its dtype.
    pub(super) fn store(
        &mut self,
        kernel: &str,
        buf: BufId,
        index: &[i64],
        value: Scalar,
    ) -> Result<(), KernelError> {
        let start = self.place(kernel, buf, index)?;
        let b = &self.buffers[buf.index()];
        let block = self.blocks.get_mut(b.block).filter(|block| block.writable);
        let Some(block) = block else {
            return Err(KernelError::ReadOnly { kernel: kernel.into(), buffer: b.name.clone() });
        };
        let bytes = block.storage.bytes_mut().and_then(|all| all.get_mut(start..start + b.dtype.size()));
        match bytes {
            Some(bytes) => encode(b.dtype, value, bytes),
            None => return Err(self.outside(kernel, buf)),
        }
        Ok(())
    }

    /// Writes a whole operand from a tensor of its sizes.
    pub(super) fn store_operand(
        &mut self,
        kernel: &str,
        operand: &Operand,
        values: &Tensor,
        bindings: &Bindings,
    ) -> Result<(), KernelError> {
        let target = self.operand(kernel, operand, bindings)?;
        let located = &self.buffers[operand.buf.index()];
        let (block, name) = (located.block, located.name.clone());
        if !self.blocks[block].writable {
            return Err(KernelError::ReadOnly { kernel: kernel.into(), buffer: name });
        }
        let storage =
            target.storage_with(values).map_err(|error| KernelError::Tensor { what: name, error })?;
        self.blocks[block].storage = storage;
        Ok(())
    }

    /// dtype of a buffer.
    pub(super) fn dtype(&self, buf: BufId) -> DType {
        self.buffers[buf.index()].dtype
    }

    fn outside(&self, kernel: &str, buf: BufId) -> KernelError {
        let name = &self.buffers[buf.index()].name;
        KernelError::malformed(kernel, format!("the strides of `{name}` reach outside its memory"))
    }
}

/// The arena in the layout of the program's memory plan.
struct Arena {
    block: usize,
    offsets: Vec<(BufId, usize)>,
}

impl Arena {
    fn new(program: &Program, bindings: &Bindings, blocks: &mut Vec<Block>) -> Result<Arena, KernelError> {
        let (offsets, bytes) = program.plan.place_over_operands(program, &|s| bindings.get(s))?;
        debug_assert!(offsets.iter().all(|at| at % ALIGN == 0));
        let storage = fresh("arena", usize::try_from(bytes).unwrap_or(usize::MAX))?;
        blocks.push(Block { storage, writable: true, own: true });
        let lives = program.plan.lives.iter().map(|l| l.buf);
        let offsets = lives.zip(offsets.into_iter().map(|at| at as usize)).collect();
        Ok(Arena { block: blocks.len() - 1, offsets })
    }
    fn offset(&self, buf: BufId) -> Option<usize> {
        self.offsets.iter().find(|(b, _)| *b == buf).map(|(_, at)| *at)
    }
}

/// The scalar that `bytes` (of the dtype's size) hold.
fn decode(dtype: DType, bytes: &[u8]) -> Scalar {
    fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
        // The caller sliced as many bytes as the dtype has.
        bytes.try_into().unwrap_or([0; N])
    }
    match dtype {
        DType::Bool => Bool(array::<1>(bytes)[0]).to_scalar(),
        DType::U8 => u8::from_ne_bytes(array(bytes)).to_scalar(),
        DType::I8 => i8::from_ne_bytes(array(bytes)).to_scalar(),
        DType::I16 => i16::from_ne_bytes(array(bytes)).to_scalar(),
        DType::I32 => i32::from_ne_bytes(array(bytes)).to_scalar(),
        DType::I64 => i64::from_ne_bytes(array(bytes)).to_scalar(),
        DType::F16 => f16::from_ne_bytes(array(bytes)).to_scalar(),
        DType::BF16 => bf16::from_ne_bytes(array(bytes)).to_scalar(),
        DType::F32 => f32::from_ne_bytes(array(bytes)).to_scalar(),
        DType::F64 => f64::from_ne_bytes(array(bytes)).to_scalar(),
        DType::C64 => {
            let part = |b: &[u8]| f64::from(f32::from_ne_bytes(array(b)));
            Scalar::Complex(part(&bytes[..4]), part(&bytes[4..]))
        }
        DType::C128 => {
            let part = |b: &[u8]| f64::from_ne_bytes(array(b));
            Scalar::Complex(part(&bytes[..8]), part(&bytes[8..]))
        }
        DType::U16 | DType::U32 | DType::U64 | DType::F8E4M3 | DType::F8E5M2 => {
            decode(dtype.carrier(), bytes)
        }
    }
}

/// Writes `value`, converted to `dtype`, into `bytes` (of the dtype's size).
fn encode(dtype: DType, value: Scalar, bytes: &mut [u8]) {
    match dtype {
        DType::Bool => bytes.copy_from_slice(&[Bool::from_scalar(value).0]),
        DType::U8 => bytes.copy_from_slice(&u8::from_scalar(value).to_ne_bytes()),
        DType::I8 => bytes.copy_from_slice(&i8::from_scalar(value).to_ne_bytes()),
        DType::I16 => bytes.copy_from_slice(&i16::from_scalar(value).to_ne_bytes()),
        DType::I32 => bytes.copy_from_slice(&i32::from_scalar(value).to_ne_bytes()),
        DType::I64 => bytes.copy_from_slice(&i64::from_scalar(value).to_ne_bytes()),
        DType::F16 => bytes.copy_from_slice(&f16::from_scalar(value).to_ne_bytes()),
        DType::BF16 => bytes.copy_from_slice(&bf16::from_scalar(value).to_ne_bytes()),
        DType::F32 => bytes.copy_from_slice(&f32::from_scalar(value).to_ne_bytes()),
        DType::F64 => bytes.copy_from_slice(&f64::from_scalar(value).to_ne_bytes()),
        DType::C64 | DType::C128 => {
            let (re, im) = match value {
                Scalar::Complex(re, im) => (re, im),
                real => (real.as_f64(), 0.0),
            };
            let half = bytes.len() / 2;
            let part = dtype.to_real();
            encode(part, Scalar::Float(re), &mut bytes[..half]);
            encode(part, Scalar::Float(im), &mut bytes[half..]);
        }
        DType::U16 | DType::U32 | DType::U64 | DType::F8E4M3 | DType::F8E5M2 => {
            encode(dtype.carrier(), value, bytes)
        }
    }
}

/// The value as an element of `dtype` would hold it.
pub(super) fn rounded(dtype: DType, value: Scalar) -> Scalar {
    with_element!(dtype, T => T::from_scalar(value).to_scalar())
}

/// The same bits as another dtype of the same size.
pub(super) fn bitcast(from: DType, to: DType, value: Scalar) -> Option<Scalar> {
    if from.size() != to.size() {
        return None;
    }
    let mut bytes = vec![0; from.size()];
    encode(from, value, &mut bytes);
    Some(decode(to, &bytes))
}
