//! Products by groups, as mixtures of experts have them: the rows of a group, or its part of the depth, are a product of their own,
//! which reads the matrices of groups with rows alone. Constant matrices are packed when they are bound.
//!
//! Not here: the epilogue, a loop kernel over the result (`staged`).

use half::bf16;
use ir_core::DType;
use kernel_ir::runtime::{Extents, Sizes};
use kernel_ir::{Along, Groups, Matmul, Program};

use super::operand::{Ready, single};
use super::packs::Packed;
use super::template::{PACK_ROWS, View, is_constant};
use super::{Buffers, Call, ExecError};
use crate::micro::narrow::{self, Narrow, NarrowMatmul, NarrowWeights};
use crate::micro::{self, COut, EpilogueBlock, Hook, Isa, MatRef, MicroError, PackedB};

/// A product by groups with a row-major result.
pub(super) struct Grouped {
    name: String,
    along: Along,
    dtype: DType,
    a: View,
    b: View,
    /// The ends of groups, and whether they are 32-bit numbers.
    ends: (View, bool),
    /// The matrices are constants that are packed when they are bound.
    packs: bool,
}

/// The product of one group: its first place, and rows, columns and depth.
struct Piece {
    group: usize,
    first: usize,
    sizes: [usize; 3],
}

/// The strides of operands as they are read.
struct Layout {
    a: Extents,
    b: Extents,
}

impl Layout {
    /// Where the parts of a group begin, in elements.
    fn firsts(&self, along: Along, p: &Piece) -> [isize; 2] {
        let (group, first) = (p.group as i64, p.first as i64);
        match along {
            Along::Rows => [(first * self.a[0]) as isize, (group * self.b[0]) as isize],
            Along::Depth => [(first * self.a[1]) as isize, (first * self.b[0]) as isize],
        }
    }
    /// Elements between rows and between columns of A.
    fn of_a(&self) -> [isize; 2] {
        last_two(&self.a)
    }
    /// The same of B.
    fn of_b(&self) -> [isize; 2] {
        last_two(&self.b)
    }
}

fn last_two(strides: &[i64]) -> [isize; 2] {
    [strides[strides.len() - 2] as isize, strides[strides.len() - 1] as isize]
}

impl Grouped {
    pub(super) fn new(program: &Program, m: &Matmul, groups: &Groups) -> Grouped {
        let known = |list: &[ir_core::SymExpr]| list.iter().all(|e| e.as_const().is_some());
        let fixed = known(&m.b.sizes) && known(&m.b.strides) && m.b.offset.as_const().is_some();
        let many = m.a.sizes[0].as_const().is_none_or(|rows| rows > PACK_ROWS);
        let dtype = program.buffers[m.a.buf].dtype;
        // Numbers of 16 bits have another layout for few rows too.
        let pays = dtype != DType::F64 && (many || dtype != DType::F32);
        Grouped {
            name: m.name.clone(),
            along: groups.along,
            dtype,
            a: View::new(program, &m.a),
            b: View::new(program, &m.b),
            ends: (View::new(program, &groups.ends), program.buffers[groups.ends.buf].dtype == DType::I32),
            packs: groups.along == Along::Rows && fixed && pays && is_constant(program, &m.b),
        }
    }

    fn refused(&self) -> impl Fn(MicroError) -> ExecError + use<'_> {
        |source| ExecError::Template { kernel: self.name.clone(), source }
    }

    /// Packs the matrices, whose memory is bound.
    pub(super) fn pack(&self, buffers: &Buffers, s: &Sizes) -> Result<Option<Packed>, ExecError> {
        if !self.packs {
            return Ok(None);
        }
        let (sizes, strides) = (s.extents(&self.b.sizes)?, s.extents(&self.b.strides)?);
        let shape = [sizes[0] as usize, sizes[1] as usize, sizes[2] as usize];
        if shape.contains(&0) {
            return Ok(None);
        }
        if self.dtype == DType::BF16 && Narrow::Bf16.is_fast(Isa::best()) {
            let steps = [strides[0] as isize, strides[1] as isize, strides[2] as isize];
            let ptr = self.b.ptr::<bf16>(buffers, s)?;
            // SAFETY: the operand lies inside of its constant, by the program's promise.
            let packed = unsafe { NarrowWeights::pack_groups(Isa::best(), ptr, shape, steps) };
            return packed.map(|w| Some(Packed::Narrow(w))).map_err(self.refused());
        }
        let b = single(&self.b, self.dtype, buffers, s, (sizes, strides))?;
        let steps = [b.strides[0] as isize, b.strides[1] as isize, b.strides[2] as isize];
        // SAFETY: the operand lies inside of its constant, by the program's promise, or is a copy.
        let packed = unsafe { PackedB::pack_groups(Isa::best(), b.ptr, shape, steps) };
        packed.map(|b| Some(Packed::Matmul(b))).map_err(self.refused())
    }

    /// The ends of groups, whatever they are.
    fn ends(&self, call: &Call<'_>) -> Result<Vec<i64>, ExecError> {
        let (view, short) = &self.ends;
        let (count, step) = (call.sizes.eval(&view.sizes[0])?, call.sizes.eval(&view.strides[0])?);
        let at = |i: i64| (i * step) as isize;
        if *short {
            let first = view.ptr::<i32>(call.buffers, call.sizes)?;
            // SAFETY: the operand lies inside of its buffer, by the program's promise.
            return Ok((0..count).map(|i| i64::from(unsafe { *first.offset(at(i)) })).collect());
        }
        let first = view.ptr::<i64>(call.buffers, call.sizes)?;
        // SAFETY: the operand lies inside of its buffer, by the program's promise.
        Ok((0..count).map(|i| unsafe { *first.offset(at(i)) }).collect())
    }

    /// The products of groups; what none of them gives is set to zero.
    fn pieces(&self, call: &Call<'_>, result: *mut u8) -> Result<Vec<Piece>, ExecError> {
        let s = call.sizes;
        let (a, b) = (s.extents(&self.a.sizes)?, s.extents(&self.b.sizes)?);
        let (m, k, n) = (a[0] as usize, a[1] as usize, b[b.len() - 1] as usize);
        let places = if self.along == Along::Rows { m } else { k };
        let ranges = Groups::ranges(self.ends(call)?, places);
        let size = if self.dtype == DType::F64 { 8 } else { 4 };
        // SAFETY: the result has these elements, and zero has no bits.
        let clear = |first: usize, count: usize| unsafe {
            result.wrapping_add(first * size).write_bytes(0, count * size);
        };
        let mut pieces = Vec::with_capacity(ranges.len());
        for (group, range) in ranges.iter().enumerate() {
            let sizes = match self.along {
                Along::Rows => [range.len(), n, k],
                Along::Depth => [m, n, range.len()],
            };
            let piece = Piece { group, first: range.start, sizes };
            if sizes[2] == 0 {
                clear(self.place(&piece), sizes[0] * n);
            } else if sizes[0] * n > 0 {
                pieces.push(piece);
            }
        }
        if self.along == Along::Rows {
            let end = ranges.last().map_or(0, |last| last.end);
            clear(end * n, (m - end) * n);
        }
        Ok(pieces)
    }

    /// The first element of a group's result.
    fn place(&self, p: &Piece) -> usize {
        match self.along {
            Along::Rows => p.first * p.sizes[1],
            Along::Depth => p.group * p.sizes[0] * p.sizes[1],
        }
    }

    /// Computes the result, of `f64` or `f32`.
    pub(super) fn run(
        &self,
        call: &Call<'_>,
        packed: Option<&Packed>,
        result: *mut u8,
    ) -> Result<(), ExecError> {
        let pieces = self.pieces(call, result)?;
        match (self.dtype, packed) {
            (DType::F64, _) => self.wide(call, &pieces, result.cast()),
            (_, Some(Packed::Narrow(w))) => self.narrow(call, &pieces, w, result.cast()),
            (DType::BF16, None) if self.both_narrow(call, &pieces, result.cast())? => Ok(()),
            (_, Some(Packed::Matmul(b))) => self.floats(call, &pieces, Some(b), result.cast()),
            _ => self.floats(call, &pieces, None, result.cast()),
        }
    }

    /// The operands' strides as they lie in memory.
    fn layout(&self, call: &Call<'_>) -> Result<Layout, ExecError> {
        Ok(Layout { a: call.sizes.extents(&self.a.strides)?, b: call.sizes.extents(&self.b.strides)? })
    }

    fn wide(&self, call: &Call<'_>, pieces: &[Piece], c: *mut f64) -> Result<(), ExecError> {
        let layout = self.layout(call)?;
        let a = self.a.ptr::<f64>(call.buffers, call.sizes)?;
        let b = self.b.ptr::<f64>(call.buffers, call.sizes)?;
        for p in pieces {
            let ([m, n, k], [at_a, at_b]) = (p.sizes, layout.firsts(self.along, p));
            // SAFETY: groups lie inside of the operands, which lie inside of their buffers; the result has memory of its own.
            unsafe {
                micro::matmul_f64(&micro::MatmulF64 {
                    m,
                    n,
                    k,
                    a: a.wrapping_offset(at_a),
                    a_strides: layout.of_a(),
                    b: b.wrapping_offset(at_b),
                    b_strides: layout.of_b(),
                    c: c.wrapping_add(self.place(p)),
                    c_strides: [n as isize, 1],
                    batch: &[],
                });
            }
        }
        Ok(())
    }

    /// Rows of `bf16` by packed matrices.
    fn narrow(
        &self,
        call: &Call<'_>,
        pieces: &[Piece],
        weights: &NarrowWeights,
        c: *mut f32,
    ) -> Result<(), ExecError> {
        let layout = self.layout(call)?;
        let a = self.a.ptr::<bf16>(call.buffers, call.sizes)?;
        for p in pieces {
            let (n, to) = (p.sizes[1], c.wrapping_add(self.place(p)) as usize);
            let store = |block: &EpilogueBlock| {
                let columns = block.col1 - block.col0;
                for (i, row) in (block.row0..block.row1).enumerate() {
                    let to = (to as *mut f32).wrapping_add(row * n + block.col0);
                    // SAFETY: the block is the kernel's own, and its place in the result is no other block's.
                    unsafe { block.ptr.add(i * block.row_stride).copy_to_nonoverlapping(to, columns) };
                }
            };
            let product = NarrowMatmul {
                m: p.sizes[0],
                a: a.wrapping_offset(layout.firsts(self.along, p)[0]).cast(),
                strides: layout.of_a(),
                b: weights,
                batch: &[],
                hook: Hook::Closure(&store),
            };
            // SAFETY: groups lie inside of the operand, which lies inside of its buffer; each has a matrix.
            unsafe { narrow::matmul_group(&product, p.group) };
        }
        Ok(())
    }

    /// Products of `bf16` as they lie in memory; false where the processor or the layout has no kernel for them.
    #[cfg(target_arch = "x86_64")]
    fn both_narrow(&self, call: &Call<'_>, pieces: &[Piece], c: *mut f32) -> Result<bool, ExecError> {
        let layout = self.layout(call)?;
        let a = self.a.ptr::<bf16>(call.buffers, call.sizes)?;
        let b = self.b.ptr::<bf16>(call.buffers, call.sizes)?;
        Ok(pieces.iter().all(|p| {
            let ([m, n, k], [at_a, at_b]) = (p.sizes, layout.firsts(self.along, p));
            let (a, b) = ((a.wrapping_offset(at_a), layout.of_a()), (b.wrapping_offset(at_b), layout.of_b()));
            let product = narrow::Bf16Product { m, n, k, a, b, c: c.wrapping_add(self.place(p)), batch: &[] };
            // SAFETY: groups lie inside of the operands, which lie inside of their buffers; the result has memory of its own.
            unsafe { product.run() }
        }))
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn both_narrow(&self, _: &Call<'_>, _: &[Piece], _: *mut f32) -> Result<bool, ExecError> {
        Ok(false)
    }

    /// Products in `f32`, of operands that are converted where they are of 16 bits: of the matrices those that are used.
    fn floats(
        &self,
        call: &Call<'_>,
        pieces: &[Piece],
        packed: Option<&PackedB>,
        c: *mut f32,
    ) -> Result<(), ExecError> {
        let converts = self.dtype != DType::F32;
        let a = self.single(&self.a, call)?;
        let one_by_one = converts && self.along == Along::Rows;
        let all = if packed.is_none() && !one_by_one { Some(self.single(&self.b, call)?) } else { None };
        for p in pieces {
            // Few rows of `f32` read a matrix as it lies in memory.
            let packed = packed.filter(|_| converts || p.sizes[0] as i64 > PACK_ROWS);
            if let Some(b) = packed {
                self.by_packed(&a, b, p, c)?;
                continue;
            }
            match &all {
                Some(b) => self.by_matrix(&a, (b.ptr, b.strides.clone()), p, c)?,
                None => {
                    let own = self.single(&self.b.entry(p.group), call)?;
                    let strides = std::iter::once(0).chain(own.strides.iter().copied()).collect();
                    self.by_matrix(&a, (own.ptr, strides), p, c)?;
                }
            }
        }
        Ok(())
    }

    /// An operand in `f32`.
    fn single(&self, view: &View, call: &Call<'_>) -> Result<Ready<'_, f32>, ExecError> {
        let s = call.sizes;
        single(view, self.dtype, call.buffers, s, (s.extents(&view.sizes)?, s.extents(&view.strides)?))
    }

    fn by_packed(&self, a: &Ready<'_, f32>, b: &PackedB, p: &Piece, c: *mut f32) -> Result<(), ExecError> {
        let layout = Layout { a: a.strides.clone(), b: Extents::from_elem(0, 3) };
        let [row_stride, col_stride] = layout.of_a();
        let ptr = a.ptr.wrapping_offset(layout.firsts(self.along, p)[0]);
        let product = micro::MatmulPacked {
            m: p.sizes[0],
            a: MatRef { ptr, row_stride, col_stride },
            b,
            c: COut::Memory { ptr: c.wrapping_add(self.place(p)), row_stride: p.sizes[1] },
            epilogue: micro::Epilogue::default(),
        };
        // SAFETY: groups lie inside of the operand, which lies inside of its buffer or is a copy; the result has memory of its own.
        unsafe { micro::matmul_packed_group(&product, p.group) }.map_err(self.refused())
    }

    fn by_matrix(
        &self,
        a: &Ready<'_, f32>,
        (b, b_strides): (*const f32, Extents),
        p: &Piece,
        c: *mut f32,
    ) -> Result<(), ExecError> {
        let layout = Layout { a: a.strides.clone(), b: b_strides };
        let ([m, n, k], [at_a, at_b]) = (p.sizes, layout.firsts(self.along, p));
        let matrix = |ptr, [row_stride, col_stride]: [isize; 2]| MatRef { ptr, row_stride, col_stride };
        let product = micro::MatmulStrided {
            isa: Isa::best(),
            m,
            n,
            k,
            a: matrix(a.ptr.wrapping_offset(at_a), layout.of_a()),
            b: matrix(b.wrapping_offset(at_b), layout.of_b()),
            c: c.wrapping_add(self.place(p)),
            c_row_stride: n as isize,
            c_col_stride: 1,
            batch: &[],
            epilogue: micro::Epilogue::default(),
        };
        // SAFETY: groups lie inside of the operands, which lie inside of their buffers or are copies; the result has memory of its own.
        unsafe { micro::matmul_strided(&product) }.map_err(self.refused())
    }
}
