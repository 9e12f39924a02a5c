//! Indices from data that are out of bounds: the call ends with an error that reports them, inputs stay unchanged, and the
//! next call succeeds. Masked-out lanes are not checked. For plugins that read programs with index checks (1.6).

use ir_core::{DType, Scalar, SymExpr};
use kernel_ir::{BodyBuilder, InstKind, Program, ScalarOp, Site, StoreMode, Val};
use plugin_host::{KERNEL_IR, LoadedExecutable};
use tensor::Tensor;

use super::Cx;
use crate::build::{Build, exprs, i, loops, shape};
use crate::case::{Case, Fault, Tolerance, compare};
use crate::values::{filled, tensor};

/// Rows that may be indexed: the first four of six, as in a part of a larger buffer.
const ROWS: i64 = 4;

pub(super) fn indices(cx: &mut Cx) -> Result<(), Fault> {
    let (backend, device) = cx.device()?;
    if !backend.reads().iter().any(|own| own.reads(KERNEL_IR)) {
        return Err(Fault::Declined(format!(
            "the plugin does not read {KERNEL_IR}, which has checks of indices"
        )));
    }
    for (name, program) in [("rows that are read", read()), ("rows that are added to", added())] {
        let executable = Case::new(name, program.clone(), vec![]).compile(&backend, &device)?;
        for bad in [ROWS, ROWS + 1, -1, 1_000_000_000, i64::MIN] {
            cx.case(&format!("{name}: {bad}"), || refused(&executable, bad));
            cx.case(&format!("{name}: good ones after {bad}"), || agrees(&executable, &program, 0, true));
        }
        for unseen in [ROWS, -1, i64::MAX] {
            let case = format!("{name}: {unseen} where the mask is false");
            cx.case(&case, || agrees(&executable, &program, unseen, false));
        }
    }
    Ok(())
}

fn site(b: &mut Build) -> u32 {
    b.program.sites.push(Site { operator: "rows".into(), origin: "here".into(), ..Site::default() });
    0
}

/// The checked row of a point, where its mask holds.
fn row(body: &mut BodyBuilder, b: &Build, site: u32) -> (Val, Val) {
    let (index, mask) = (b.program.inputs[1].buf, b.program.inputs[2].buf);
    let at = body.load(index, DType::I64, exprs([i(0)]));
    let mask = body.load(mask, DType::Bool, exprs([i(0)]));
    (body.check(at, SymExpr::from_i64(ROWS), Some(mask), site), mask)
}

fn inputs_of(b: &mut Build) {
    b.input(DType::F32, shape(&[6, 5]));
    b.input(DType::I64, shape(&[9]));
    b.input(DType::Bool, shape(&[9]));
}

fn read() -> Program {
    let mut b = Build::new("read rows");
    inputs_of(&mut b);
    let (table, y, site) = (b.program.inputs[0].buf, b.output(DType::F32, shape(&[9, 5])), site(&mut b));
    let mut body = BodyBuilder::new();
    let (row, mask) = row(&mut body, &b, site);
    let row = body.as_index(row);
    let v = body.load_masked(table, DType::F32, exprs([row, i(1)]), mask);
    body.store(y, loops(2), v, StoreMode::Write);
    b.point(shape(&[9, 5]), body);
    b.finish()
}

fn added() -> Program {
    let mut b = Build::new("added rows");
    inputs_of(&mut b);
    let (x, y, site) = (b.program.inputs[0].buf, b.output(DType::F32, shape(&[6, 5])), site(&mut b));
    let mut copy = BodyBuilder::new();
    let v = copy.load(x, DType::F32, loops(2));
    let v = copy.op(ScalarOp::Neg, &[v]);
    copy.store(y, loops(2), v, StoreMode::Write);
    b.point(shape(&[6, 5]), copy);
    let mut body = BodyBuilder::new();
    let (row, mask) = row(&mut body, &b, site);
    let row = body.as_index(row);
    let value = body.constant(1.0, DType::F32);
    let kind =
        InstKind::Store { buf: y, index: exprs([row, i(1)]), value, mask: Some(mask), mode: StoreMode::Add };
    body.push(DType::F32, kind);
    b.point(shape(&[9, 5]), body);
    b.finish()
}

/// Valid rows except for the fifth, which the mask includes or excludes.
fn inputs(fifth: i64, looked_at: bool) -> Result<Vec<Tensor>, Fault> {
    let rows = [3, 0, 2, 2, fifth, 1, 3, 0, 1].map(Scalar::Int);
    let mut mask = [Scalar::Bool(true); 9];
    mask[4] = Scalar::Bool(looked_at);
    let (rows, mask) = (tensor(DType::I64, &[9], &rows)?, tensor(DType::Bool, &[9], &mask)?);
    Ok(vec![filled(DType::F32, &[6, 5], 71)?, rows, mask])
}

fn refused(executable: &LoadedExecutable, bad: i64) -> Result<(), Fault> {
    let inputs = inputs(bad, true)?;
    let before: Vec<Vec<u8>> = inputs.iter().map(|t| t.storage().bytes().to_vec()).collect();
    let Err(error) = executable.execute(&inputs.iter().collect::<Vec<_>>()) else {
        return Err(Fault::wrong(format!("index {bad} of {ROWS} is taken")));
    };
    let message = error.to_string();
    if !["rows", "here", &bad.to_string()].iter().all(|part| message.contains(part)) {
        return Err(Fault::wrong(format!("the error does not name operator, origin and index: {message}")));
    }
    let same = inputs.iter().zip(&before).all(|(t, b)| t.storage().bytes() == b);
    if same { Ok(()) } else { Err(Fault::wrong("a call that fails changes an input")) }
}

fn agrees(
    executable: &LoadedExecutable,
    program: &Program,
    fifth: i64,
    looked_at: bool,
) -> Result<(), Fault> {
    let call = inputs(fifth, looked_at)?;
    let got = executable.execute(&call.iter().collect::<Vec<_>>())?;
    let expected = Case::new("rows", program.clone(), call).oracle()?;
    expected.first().map_or(Ok(()), |expected| compare(&got, expected, Tolerance::CLOSE))
}
