//! Inputs stay unchanged, and nothing is written beyond the memory that the plugin was lent or has allocated. This check
//! runs with an allocator that verifies guard bytes when memory is freed, where there is one.

use ir_core::DType;
use plugin_abi::{FFX_OK, FfxExecutableInfo};
use tensor::Tensor;

use super::{Cx, reduce, support};
use crate::case::Fault;
use crate::raw::{ErrorPlace, Raw};

pub(super) fn bounds(cx: &mut Cx) -> Result<(), Fault> {
    let raw = Raw::open(cx.library(), None)?;
    let device = raw.usable()?;
    let dtypes = [DType::F32, DType::F64, DType::I16, DType::U8];
    let mut cases = dtypes.iter().map(|d| support::doubled_of(*d, 61)).collect::<Result<Vec<_>, _>>()?;
    cases.extend([support::doubled(16)?, support::doubled(1000)?, reduce::softmax([5, 33])?]);
    for case in cases {
        let name = format!("`{}`", case.name);
        cx.case(&name, || {
            let form = raw.form(&case.program)?;
            let executable = raw.compiled(&form.request(device))?;
            let counts = executable.info(size_of::<FfxExecutableInfo>())?;
            let inputs: Vec<&Tensor> = case.calls[0].iter().collect();
            let before: Vec<Vec<u8>> = inputs.iter().map(|t| t.storage().bytes().to_vec()).collect();
            let mut error = ErrorPlace::whole();
            for _ in 0..3 {
                let (status, outputs) = executable.execute(&inputs, counts[1], error.pointer())?;
                if status != FFX_OK {
                    return Err(Fault::wrong(format!("execute fails: {}", error.message())));
                }
                // The allocator verifies the guard bytes when memory is freed.
                drop(outputs);
            }
            error.expect_intact()?;
            let same = inputs.iter().zip(&before).all(|(t, b)| t.storage().bytes() == b);
            if same { Ok(()) } else { Err(Fault::wrong("execute changes an input, or memory around it")) }
        });
    }
    Ok(())
}
