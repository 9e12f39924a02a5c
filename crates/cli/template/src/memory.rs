//! The memory of one call. Elements are kept as numbers, one a place; a real backend keeps bytes in an arena, where
//! `program.plan` says which buffers may share memory.

use plugin_sdk::ir_core::Scalar;
use plugin_sdk::kernel_ir::runtime::Sizes;
use plugin_sdk::kernel_ir::{BufId, OutputSpec, Program, Storage};
use plugin_sdk::{Constants, OwnedTensor, PluginError, TensorView};

use crate::number;

/// A buffer whose shape is known in numbers.
#[derive(Clone, Default)]
struct Located {
    /// The buffer whose elements it uses: itself, or what it is a view of.
    root: usize,
    sizes: Vec<i64>,
    strides: Vec<i64>,
    offset: i64,
}

/// All buffers of a call.
pub(crate) struct Memory {
    located: Vec<Located>,
    /// By root; empty for views.
    elements: Vec<Vec<Scalar>>,
}

impl Memory {
    /// Memory for every buffer whose size is known. `persistent` holds the results of the init steps.
    pub(crate) fn new(
        program: &Program,
        sizes: &Sizes,
        persistent: &[Option<Vec<Scalar>>],
    ) -> Result<Memory, PluginError> {
        let mut memory = Memory { located: Vec::new(), elements: Vec::new() };
        for (id, buffer) in program.buffers.iter() {
            let mut located = Located { root: program.root(id).0 as usize, ..Located::default() };
            let mut elements = Vec::new();
            // The init steps run before any call: buffers whose size depends on a call have no memory then.
            if let (Ok(known), Ok(strides), Ok(offset)) =
                (sizes.all(&buffer.sizes), sizes.all(&buffer.strides), sizes.eval(&buffer.offset))
            {
                let kept = persistent.get(id.0 as usize).and_then(Option::as_ref);
                elements = match (kept, &buffer.storage) {
                    (Some(kept), _) => kept.clone(),
                    (None, Storage::View(_)) => Vec::new(),
                    (None, _) => room(span(&known, &strides)?, Scalar::zero(buffer.dtype))?,
                };
                (located.sizes, located.strides, located.offset) = (known, strides, offset);
            }
            memory.located.push(located);
            memory.elements.push(elements);
        }
        Ok(memory)
    }

    /// The elements of a buffer that is not a view.
    pub(crate) fn elements(&self, buf: BufId) -> &[Scalar] {
        &self.elements[buf.0 as usize]
    }

    /// Copies the inputs of a call in.
    pub(crate) fn take_inputs(
        &mut self,
        program: &Program,
        sizes: &Sizes,
        inputs: &[TensorView<'_>],
    ) -> Result<(), PluginError> {
        let specs = program.inputs.iter().zip(inputs);
        specs.into_iter().try_for_each(|(spec, input)| self.take(program, sizes, &spec.name, spec.buf, input))
    }

    /// Copies the constants in.
    pub(crate) fn take_constants(
        &mut self,
        program: &Program,
        sizes: &Sizes,
        constants: &Constants<'_>,
    ) -> Result<(), PluginError> {
        for constant in &program.constants {
            let tensor = constants.by_name(&constant.name)?;
            self.take(program, sizes, &constant.name, constant.buf, &tensor)?;
        }
        Ok(())
    }

    fn take(
        &mut self,
        program: &Program,
        sizes: &Sizes,
        name: &str,
        buf: BufId,
        tensor: &TensorView<'_>,
    ) -> Result<(), PluginError> {
        let buffer = &program.buffers[buf];
        let expected = sizes.all(&buffer.sizes)?;
        if tensor.dtype() != buffer.dtype || tensor.sizes() != expected {
            let text = format!("is {tensor:?}, but must be {}{expected:?}", buffer.dtype);
            return Err(PluginError::invalid(text).at(name));
        }
        for_each_index(&expected, &mut |index| {
            let value = number::get(tensor, index)?;
            self.store(buf, index, value)
        })
    }

    /// The element of a buffer at a logical index.
    pub(crate) fn load(&self, buf: BufId, index: &[i64]) -> Result<Scalar, PluginError> {
        let (root, at) = self.place(buf, index)?;
        self.elements[root].get(at).copied().ok_or_else(outside)
    }

    /// The element at an offset of a buffer's memory, as operands of products address it.
    pub(crate) fn at(&self, buf: BufId, place: i64) -> Result<Scalar, PluginError> {
        let elements = &self.elements[self.located[buf.0 as usize].root];
        let element = usize::try_from(place).ok().and_then(|place| elements.get(place));
        element.copied().ok_or_else(outside)
    }

    /// Writes the element of a buffer; its dtype can represent `value`.
    pub(crate) fn store(&mut self, buf: BufId, index: &[i64], value: Scalar) -> Result<(), PluginError> {
        let (root, at) = self.place(buf, index)?;
        *self.elements[root].get_mut(at).ok_or_else(outside)? = value;
        Ok(())
    }

    /// Root and element. Indices that depend on data are checked here: a wrong one is an error, not an out-of-bounds read.
    fn place(&self, buf: BufId, index: &[i64]) -> Result<(usize, usize), PluginError> {
        let b = &self.located[buf.0 as usize];
        let inside =
            index.len() == b.sizes.len() && index.iter().zip(&b.sizes).all(|(i, n)| (0..*n).contains(i));
        if !inside {
            let text = format!("index {index:?} lies outside of sizes {:?}", b.sizes);
            return Err(PluginError::invalid(text));
        }
        let at = b.offset + index.iter().zip(&b.strides).map(|(i, s)| i * s).sum::<i64>();
        Ok((b.root, usize::try_from(at).unwrap_or(usize::MAX)))
    }

    /// An output as a separate tensor, with the strides that the program states.
    pub(crate) fn output(
        &self,
        program: &Program,
        sizes: &Sizes,
        spec: &OutputSpec,
    ) -> Result<OwnedTensor, PluginError> {
        let dtype = program.buffers[spec.buf].dtype;
        let (shape, strides) = (sizes.all(&spec.sizes)?, sizes.all(&spec.strides)?);
        let offset = sizes.eval(&spec.offset)?;
        let elements = &self.elements[self.located[spec.buf.0 as usize].root];
        let mut tensor = OwnedTensor::zeroed_strided(dtype, &shape, &strides)?;
        for_each_index(&shape, &mut |index| {
            let at = offset + index.iter().zip(&strides).map(|(i, s)| i * s).sum::<i64>();
            let value = usize::try_from(at).ok().and_then(|at| elements.get(at)).ok_or_else(outside)?;
            number::set(&mut tensor, index, *value)
        })?;
        Ok(tensor)
    }
}

fn outside() -> PluginError {
    PluginError::invalid("a buffer's strides reach outside of its memory")
}

/// Elements from the first to the last one that sizes and strides reach.
fn span(sizes: &[i64], strides: &[i64]) -> Result<usize, PluginError> {
    if sizes.contains(&0) {
        return Ok(0);
    }
    let reach = |n: i64, (size, stride): (&i64, &i64)| n.checked_add((size - 1).checked_mul(*stride)?);
    let last = sizes.iter().zip(strides).try_fold(0, reach);
    let span = last.and_then(|n| usize::try_from(n).ok()).and_then(|n| n.checked_add(1));
    span.ok_or_else(|| PluginError::invalid(format!("sizes {sizes:?} with strides {strides:?}")))
}

/// This many numbers; the refusal of the allocator is an error.
fn room(len: usize, value: Scalar) -> Result<Vec<Scalar>, PluginError> {
    let mut elements = Vec::new();
    elements.try_reserve_exact(len).map_err(|_| PluginError::out_of_memory(len * size_of::<Scalar>()))?;
    elements.resize(len, value);
    Ok(elements)
}

/// Every index of a shape in row-major order; once for a shape without dimensions, never where a size is 0.
pub(crate) fn for_each_index(
    sizes: &[i64],
    visit: &mut dyn FnMut(&[i64]) -> Result<(), PluginError>,
) -> Result<(), PluginError> {
    if sizes.iter().any(|&n| n <= 0) {
        return Ok(());
    }
    let mut index = vec![0; sizes.len()];
    loop {
        visit(&index)?;
        let Some(d) = (0..sizes.len()).rev().find(|&d| index[d] + 1 < sizes[d]) else { return Ok(()) };
        index[d] += 1;
        index[d + 1..].fill(0);
    }
}
