//! Builds the programs of the checks by hand. `inductor` is not involved: nothing is fused or scheduled here.

use ir_core::{DType, Shape, SymExpr, contiguous_strides};
use kernel_ir::{
    AccDecl, ArenaPlan, BufId, Buffer, Const, InputSpec, LoopKernel, Operand, OutputSpec, Program, Stage,
    Step, Storage, Symbol,
};

/// Sizes that are numbers.
pub fn shape(sizes: &[i64]) -> Shape {
    sizes.iter().map(|n| SymExpr::from_i64(*n)).collect()
}

/// A list of expressions as a shape or an index.
pub fn exprs(list: impl IntoIterator<Item = SymExpr>) -> Shape {
    list.into_iter().collect()
}

/// Loop variable `n`.
pub fn i(n: u32) -> SymExpr {
    SymExpr::loop_var(n)
}

/// `[i0, …]` for a rank.
pub fn loops(rank: usize) -> Shape {
    (0..rank as u32).map(i).collect()
}

/// A program under construction.
#[derive(Default)]
pub struct Build {
    /// The program so far.
    pub program: Program,
}

impl Build {
    /// An empty program.
    pub fn new(name: &str) -> Build {
        Build { program: Program { name: name.to_owned(), ..Program::default() } }
    }
    /// A size that the inputs determine.
    pub fn symbol(&mut self, name: &str, min: i64, max: i64) -> SymExpr {
        SymExpr::sym(self.declare(name, min, max, false))
    }
    /// A size that a step determines.
    pub fn unbacked(&mut self, name: &str, min: i64, max: i64) -> ir_core::SymId {
        self.declare(name, min, max, true)
    }
    fn declare(&mut self, name: &str, min: i64, max: i64, unbacked: bool) -> ir_core::SymId {
        let decl = Symbol { name: name.into(), min, max: Some(max), hint: None, unbacked };
        self.program.symbols.push(decl)
    }
    /// A buffer of any storage.
    pub fn buffer(&mut self, dtype: DType, sizes: Shape, strides: Shape, storage: Storage) -> BufId {
        let name = format!("t{}", self.program.buffers.len());
        self.program.buffers.push(Buffer { name, dtype, sizes, strides, offset: SymExpr::ZERO, storage })
    }
    /// A row-major input.
    pub fn input(&mut self, dtype: DType, sizes: Shape) -> BufId {
        let strides = contiguous_strides(&sizes);
        self.input_strided(dtype, sizes, strides)
    }
    /// An input with strides.
    pub fn input_strided(&mut self, dtype: DType, sizes: Shape, strides: Shape) -> BufId {
        let number = self.program.inputs.len();
        let buf = self.buffer(dtype, sizes, strides, Storage::Input(number as u32));
        self.program.inputs.push(InputSpec { name: format!("x{number}"), buf, written: false });
        buf
    }
    /// A row-major constant.
    pub fn constant(&mut self, name: &str, dtype: DType, sizes: Shape) -> BufId {
        let number = self.program.constants.len();
        let strides = contiguous_strides(&sizes);
        let buf = self.buffer(dtype, sizes, strides, Storage::Constant(number as u32));
        self.program.constants.push(Const { name: name.into(), buf, range: None });
        buf
    }
    /// A row-major output.
    pub fn output(&mut self, dtype: DType, sizes: Shape) -> BufId {
        let strides = contiguous_strides(&sizes);
        self.output_strided(dtype, sizes, strides)
    }
    /// An output with strides.
    pub fn output_strided(&mut self, dtype: DType, sizes: Shape, strides: Shape) -> BufId {
        let buf = self.buffer(dtype, sizes, strides, Storage::Output);
        self.returns(buf);
        buf
    }
    /// Declares a buffer as a result of the program.
    pub fn returns(&mut self, buf: BufId) {
        let Buffer { sizes, strides, offset, .. } = self.program.buffers[buf].clone();
        let name = format!("y{}", self.program.outputs.len());
        self.program.outputs.push(OutputSpec { name, buf, sizes, strides, offset });
    }
    /// A row-major temporary.
    pub fn arena(&mut self, dtype: DType, sizes: Shape) -> BufId {
        let strides = contiguous_strides(&sizes);
        self.buffer(dtype, sizes, strides, Storage::Arena)
    }
    /// A loop kernel for `program.steps` or another list.
    pub fn kernel(&self, outer: Shape, accs: Vec<AccDecl>, stages: Vec<Stage>) -> Step {
        let name = format!("k{}_{}", self.program.init.len(), self.program.steps.len());
        Step::Loop(LoopKernel { name, origins: vec![], outer, accs, stages })
    }
    /// Appends a loop kernel.
    pub fn push(&mut self, outer: Shape, accs: Vec<AccDecl>, stages: Vec<Stage>) {
        let kernel = self.kernel(outer, accs, stages);
        self.program.steps.push(kernel);
    }
    /// Appends a loop kernel of one stage without an inner loop.
    pub fn point(&mut self, outer: Shape, body: kernel_ir::BodyBuilder) {
        self.push(outer, vec![], vec![Stage { inner: Shape::new(), insts: body.finish() }]);
    }
    /// A whole buffer as an operand.
    pub fn whole(&self, buf: BufId) -> Operand {
        let Buffer { sizes, strides, offset, .. } = self.program.buffers[buf].clone();
        Operand { buf, sizes, strides, offset }
    }
    /// The program with checks of its indices from data and its memory plan.
    pub fn finish(mut self) -> Program {
        kernel_ir::guard_indices(&mut self.program);
        self.program.plan = ArenaPlan::of(&self.program);
        self.program
    }
}
