//! Matrix products by the calls of hipBLASLt and rocBLAS, and by generated kernels where a library is missing, broken, silent or
//! without kernels for the device: the numbers are the same, judged by sums in double precision.

use backend_rocm::Library;
use ir_core::DType;
use kernel_ir::Program;
use tensor::Tensor;

use crate::Case;
use crate::machine::{
    Outcome, counted, ensure, standin, with_both, with_broken_libraries, with_hipblaslt, with_rocblas,
    with_rocblas_for_others,
};
use crate::program::{epilogue, fill, gives};
use crate::runs::MODES;

type Error = Box<dyn std::error::Error>;

pub(crate) fn cases() -> Vec<Case> {
    let case = |name, devices, rocm, body| Case { name, devices, rocm, body };
    vec![
        case("products_by_hipblaslt", "gfx942", with_hipblaslt, || products([true, false])),
        case("products_by_rocblas", "gfx942", with_rocblas, || products([false, true])),
        case("products_by_the_first_library", "gfx942", with_both, || products([true, false])),
        case("products_that_hipblaslt_does_not_propose", "gfx942,silent=hipblaslt", with_both, || {
            products([false, true])
        }),
        case("products_without_kernels_of_rocblas", "gfx942", with_rocblas_for_others, none),
        case("products_with_broken_libraries", "gfx942", with_broken_libraries, none),
        case("products_without_libraries", "gfx942", standin, none),
    ]
}

/// No library of the machine's own, if it has ROCm, changes what is expected.
fn none() -> Outcome {
    let there = |library| backend_rocm::find(library).is_ok();
    products([there(Library::Blas), false])
}

/// Products in four dtypes; whether hipBLASLt and rocBLAS computed any of them.
fn products(by: [bool; 2]) -> Outcome {
    for (dtype, relative) in
        [(DType::F32, 1e-6), (DType::F64, 1e-12), (DType::F16, 1e-3), (DType::BF16, 1e-2)]
    {
        multiplies(dtype, relative)?;
    }
    let counts = [counted("products", 0)?, counted("rocblas_products", 0)?];
    ensure(counts.map(|count| count > 0) == by, (counts, by))
}

/// A product with biases along its columns and a ReLU, and products of a batch with an addend, in all modes, twice each.
pub(crate) fn multiplies(dtype: DType, relative: f64) -> Outcome {
    let ((a, x), (b, y)) = (fill("a", dtype, &[36, 40])?, fill("b", dtype, &[40, 24])?);
    let (c, z) = fill("c", dtype, &[24])?;
    let element = |i: usize, j: usize| (0..40).map(|k| x[40 * i + k] * y[24 * k + j]).sum::<f64>() + z[j];
    let wanted = (0..36 * 24).map(|n| element(n / 24, n % 24).max(0.0)).collect();
    let wanted = Tensor::from_vec::<f64>(wanted, &[36, 24])?;
    gives(&product(&dtype.to_string())?, &MODES, &[&a, &b, &c], &wanted, relative)?;

    let ((a, x), (b, y)) = (fill("a", dtype, &[3, 36, 40])?, fill("b", dtype, &[3, 40, 24])?);
    let (c, z) = fill("c", dtype, &[3, 36, 24])?;
    let element = |n: usize| {
        let (batch, i, j) = (n / (36 * 24), n / 24 % 36, n % 24);
        (0..40).map(|k| x[1440 * batch + 40 * i + k] * y[960 * batch + 24 * k + j]).sum::<f64>() + z[n]
    };
    let wanted = Tensor::from_vec::<f64>((0..3 * 36 * 24).map(element).collect(), &[3, 36, 24])?;
    gives(&added(&dtype.to_string())?, &MODES, &[&a, &b, &c], &wanted, relative)
}

/// `y = relu(a · b + c)` of `[36, 40]`, `[40, 24]` and `[24]` in a dtype; the biases go along the columns.
fn product(dtype: &str) -> Result<Program, Error> {
    let (acc, epilogue) = epilogue(dtype, Some("b2[i1]"), true, "b3[i0, i1]");
    let text = format!(
        r#"kir 1.3
program "product"
buffer b0 "a" {dtype}[36, 40]{{40, 1}}+0 input 0
buffer b1 "b" {dtype}[40, 24]{{24, 1}}+0 input 1
buffer b2 "c" {dtype}[24]{{1}}+0 input 2
buffer b3 "y" {dtype}[36, 24]{{24, 1}}+0 output
input "a" b0
input "b" b1
input "c" b2
output "y" b3[36, 24]{{24, 1}}+0
init:
steps:
matmul "m" acc {acc}
  a b0[36, 40]{{40, 1}}+0
  b b1[40, 24]{{24, 1}}+0
  epilogue [36, 24]
{epilogue}plan bytes 0:
"#
    );
    Ok(text.parse()?)
}

/// `y = a · b + c` of `[3, 36, 40]`, `[3, 40, 24]` and `[3, 36, 24]` in a dtype.
fn added(dtype: &str) -> Result<Program, Error> {
    let (acc, epilogue) = epilogue(dtype, Some("b2[i0, i1, i2]"), false, "b3[i0, i1, i2]");
    let text = format!(
        r#"kir 1.3
program "added"
buffer b0 "a" {dtype}[3, 36, 40]{{1440, 40, 1}}+0 input 0
buffer b1 "b" {dtype}[3, 40, 24]{{960, 24, 1}}+0 input 1
buffer b2 "c" {dtype}[3, 36, 24]{{864, 24, 1}}+0 input 2
buffer b3 "y" {dtype}[3, 36, 24]{{864, 24, 1}}+0 output
input "a" b0
input "b" b1
input "c" b2
output "y" b3[3, 36, 24]{{864, 24, 1}}+0
init:
steps:
matmul "m" acc {acc}
  a b0[3, 36, 40]{{1440, 40, 1}}+0
  b b1[3, 40, 24]{{960, 24, 1}}+0
  epilogue [3, 36, 24]
{epilogue}plan bytes 0:
"#
    );
    Ok(text.parse()?)
}
