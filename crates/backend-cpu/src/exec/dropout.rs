//! The dropout of an attention's weights as an operand: the forward pass and the gradients have it in common. Not its arithmetic, which is
//! that of the kernels.

use ir_core::DType;
use kernel_ir::{Dropout, Program};

use super::template::View;
use super::{Call, ExecError};
use crate::micro;

/// Where the words of the kept weights are, and the factor on these weights.
pub(super) struct DropoutView {
    words: View,
    factor: f64,
}

impl DropoutView {
    /// The dropout of the step `name`, where it has one.
    pub(super) fn new(
        program: &Program,
        name: &str,
        dropout: Option<&Dropout>,
    ) -> Result<Option<DropoutView>, ExecError> {
        let Some(Dropout { kept, factor }) = dropout else { return Ok(None) };
        let fits = kept.sizes.len() == 4 && kept.strides.len() == 4;
        if !fits || program.buffers[kept.buf].dtype != DType::I32 {
            let what = format!("the kept weights of `{name}` are not words of `i32` in four dimensions");
            return Err(ExecError::Malformed(what));
        }
        Ok(Some(DropoutView { words: View::new(program, kept), factor: *factor }))
    }

    /// The operand of a call.
    pub(super) fn ready(&self, call: &Call<'_>) -> Result<micro::Dropout, ExecError> {
        let strides = call.sizes.extents(&self.words.strides)?;
        let words = self.words.ptr::<i32>(call.buffers, call.sizes)?;
        let strides = [0, 1, 2, 3].map(|d| strides[d] as isize);
        Ok(micro::Dropout { words, strides, factor: self.factor })
    }
}
