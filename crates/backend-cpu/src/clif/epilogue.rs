//! Epilogues as functions over a finished block of a template's result: `fn(&EpilogueBlock, &EpilogueContext)`, the raw hook
//! of `micro`. Rows and columns of the block become the output's dimensions by a [`Walk`].

use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value};
use ir_core::SymExpr;

use super::emit::{Emit, Emitted};
use crate::micro::EpilogueBlock;
use crate::vir::Dim;

/// How a block's flat batch number, row number and column number make the output's dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Walk {
    /// Dimensions whose row-major number is the block's batch.
    pub batch: Vec<Dim>,
    /// Dimensions whose row-major number is the row.
    pub rows: Vec<Dim>,
    /// Dimension of the columns.
    pub column: u32,
}

/// The data that generated epilogues read besides the block.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct EpilogueContext {
    /// Base pointer of each buffer.
    pub buffers: *const *mut u8,
    /// Value of each size symbol.
    pub sizes: *const i64,
}

// SAFETY: two pointers that the generated code only reads; the executor keeps both tables alive and unchanged for the call.
unsafe impl Send for EpilogueContext {}
// SAFETY: two pointers that the generated code only reads; the executor keeps both tables alive and unchanged for the call.
unsafe impl Sync for EpilogueContext {}

impl<'f> Emit<'f, '_> {
    /// The whole function of an epilogue, from the entry block's parameters.
    pub(super) fn epilogue_function(mut self, params: &[Value], walk: &Walk) -> Emitted<'f> {
        let [block, context] = *params else { unreachable!("two parameters") };
        let flags = MemFlagsData::trusted().with_readonly();
        let field = |e: &mut Self, at: usize| e.b.ins().load(I64, flags, block, at as i32);
        let buffers =
            self.b.ins().load(I64, flags, context, std::mem::offset_of!(EpilogueContext, buffers) as i32);
        let sizes =
            self.b.ins().load(I64, flags, context, std::mem::offset_of!(EpilogueContext, sizes) as i32);
        let walked: Vec<Dim> = walk.batch.iter().chain(&walk.rows).cloned().collect();
        self.prepare(buffers, sizes, &walked);
        let batch = field(&mut self, std::mem::offset_of!(EpilogueBlock, batch));
        let row0 = field(&mut self, std::mem::offset_of!(EpilogueBlock, row0));
        let row1 = field(&mut self, std::mem::offset_of!(EpilogueBlock, row1));
        let col0 = field(&mut self, std::mem::offset_of!(EpilogueBlock, col0));
        let col1 = field(&mut self, std::mem::offset_of!(EpilogueBlock, col1));
        let data = field(&mut self, std::mem::offset_of!(EpilogueBlock, ptr));
        let stride = field(&mut self, std::mem::offset_of!(EpilogueBlock, row_stride));
        self.digits(batch, &walk.batch);
        self.axis = Some(walk.column);
        // Blocks begin and end anywhere: an extent that is not a number makes the loop run at every width.
        let axis = Dim { var: walk.column, extent: SymExpr::loop_var(walk.column) };
        let kernel = self.kernel;
        self.counted(row0, row1, 1, &mut |e, row| {
            e.digits(row, &walk.rows);
            let down = e.b.ins().isub(row, row0);
            let down = e.b.ins().imul(down, stride);
            let first = e.b.ins().isub(down, col0);
            let bytes = e.b.ins().ishl_imm_s(first, 2);
            let row = e.b.ins().iadd(data, bytes);
            e.set_template(row);
            e.checked_before(&[0], walk.column, (col0, col1), &mut |e| {
                e.axis_loop(&axis, (col0, col1), &[0], &mut |e| {
                    e.innermost = e.axis;
                    e.body(&kernel.stages[0].insts);
                });
            });
        });
        self.b.ins().return_(&[]);
        self.cold_ends();
        Emitted { b: self.b, leaves: self.leaf_codes }
    }

    /// Sets loop variables to the digits of a row-major number.
    fn digits(&mut self, number: Value, dims: &[Dim]) {
        let mut rest = number;
        for (i, d) in dims.iter().enumerate().rev() {
            if i == 0 {
                self.set_loop(d.var, rest);
                break;
            }
            let (quotient, digit) = match d.extent.as_const() {
                Some(n) if n > 0 => (self.b.ins().udiv_imm_s(rest, n), self.b.ins().urem_imm_s(rest, n)),
                _ => {
                    let n = self.expr(&d.extent, 0);
                    (self.b.ins().udiv(rest, n), self.b.ins().urem(rest, n))
                }
            };
            self.set_loop(d.var, digit);
            rest = quotient;
        }
    }
}
