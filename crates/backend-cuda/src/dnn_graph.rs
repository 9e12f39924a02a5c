//! A convolution and its epilogue as an operation graph of cuDNN. No device is needed.

use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as A, cudnnBackendAttributeType_t as T, cudnnConvolutionMode_t,
    cudnnDataType_t as D, cudnnNanPropagation_t, cudnnPointwiseMode_t,
};
use gpu_runtime::GpuError;
use gpu_runtime::convolutions::{Format, Fused, Problem, Role, Uid};
use ir_core::DType;

use crate::dnn_desc::{Desc, Kind};

/// The first number of virtual tensors, which are never in memory.
const VIRTUAL: i64 = 100;

/// The operations of a graph; they keep its tensors alive.
pub(crate) struct Operations {
    pub(crate) ops: Vec<Desc>,
    _tensors: Vec<Desc>,
}

/// The library's name for a dtype that it supports in convolutions.
fn number_type(dtype: DType) -> Option<D> {
    Some(match dtype {
        DType::F16 => D::CUDNN_DATA_HALF,
        DType::BF16 => D::CUDNN_DATA_BFLOAT16,
        DType::F32 => D::CUDNN_DATA_FLOAT,
        _ => return None,
    })
}

/// The operations in order: the convolution, the residual, the bias, the ReLU.
///
/// # Errors
/// An error of the library for shapes or dtypes.
pub(crate) fn operations(fused: &Fused) -> Result<Operations, GpuError> {
    let p = &fused.problem;
    let io = number_type(fused.dtype)
        .ok_or_else(|| GpuError::Malformed(format!("cuDNN has no convolutions of {}", fused.dtype)))?;
    let real = |uid: Uid, sizes: &[i64]| tensor(uid as i64, io, sizes, p.format, false);
    let sizes = p.result().to_vec();
    let mut tensors = vec![real(Uid::X, &p.x)?, real(Uid::W, &p.w)?, real(Uid::Y, &p.y)?];
    let mut ops = Vec::new();
    let mut steps = usize::from(fused.residual) + usize::from(fused.bias) + usize::from(fused.relu);
    let between = |n: usize| tensor(VIRTUAL + n as i64, D::CUDNN_DATA_FLOAT, &sizes, p.format, true);
    let place = match p.role {
        Role::Forward => 2,
        Role::Data => 0,
        Role::Filter => 1,
    };
    // Only the result of the last operation is in memory; the others are virtual.
    let mut current = between(steps)?;
    if steps == 0 {
        ops.push(convolution(p, [&tensors[0], &tensors[1], &tensors[2]])?);
        return Ok(Operations { ops, _tensors: tensors });
    }
    {
        let mut sides = [&tensors[0], &tensors[1], &tensors[2]];
        sides[place] = &current;
        ops.push(convolution(p, sides)?);
    }
    let mut channels = vec![1; sizes.len()];
    channels[1] = sizes[1];
    let addends = [(fused.residual, Uid::Residual, &sizes), (fused.bias, Uid::Bias, &channels)];
    for (_, uid, shape) in addends.into_iter().filter(|(there, ..)| *there) {
        steps -= 1;
        let addend = real(uid, shape)?;
        let next = if steps == 0 { None } else { Some(between(steps)?) };
        ops.push(add(&current, &addend, next.as_ref().unwrap_or(&tensors[place]))?);
        tensors.push(addend);
        tensors.push(std::mem::replace(
            &mut current,
            match next {
                Some(next) => next,
                None => break,
            },
        ));
    }
    if fused.relu {
        ops.push(relu(&current, &tensors[place])?);
    }
    tensors.push(current);
    Ok(Operations { ops, _tensors: tensors })
}

fn convolution(p: &Problem, [x, w, y]: [&Desc; 3]) -> Result<Desc, GpuError> {
    let mut conv = Desc::new(Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?;
    conv.dtype(A::CUDNN_ATTR_CONVOLUTION_COMP_TYPE, D::CUDNN_DATA_FLOAT)?;
    let mode = cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
    conv.set(A::CUDNN_ATTR_CONVOLUTION_CONV_MODE, T::CUDNN_TYPE_CONVOLUTION_MODE, &[mode])?;
    conv.integers(A::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, &[p.stride.len() as i64])?;
    conv.integers(A::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, &p.padding[0])?;
    conv.integers(A::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, &p.padding[1])?;
    conv.integers(A::CUDNN_ATTR_CONVOLUTION_DILATIONS, &p.dilation)?;
    conv.integers(A::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, &p.stride)?;
    let conv = conv.finish()?;
    let (kind, names) = names(p.role);
    let mut op = Desc::new(kind)?;
    let [of_x, of_w, of_y, of_conv, alpha, beta] = names;
    op.refer(of_x, &[x])?;
    op.refer(of_w, &[w])?;
    op.refer(of_y, &[y])?;
    op.refer(of_conv, &[&conv])?;
    op.float(alpha, 1.0)?;
    op.float(beta, 0.0)?;
    op.finish()
}

/// The operation for a role, and its attributes: x, w, y, convolution, alpha, beta.
fn names(role: Role) -> (Kind, [A; 6]) {
    match role {
        Role::Forward => (
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
            [
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
            ],
        ),
        Role::Data => (
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
            [
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
            ],
        ),
        Role::Filter => (
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
            [
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
            ],
        ),
    }
}

/// A dense tensor.
fn tensor(uid: i64, dtype: D, sizes: &[i64], format: Format, is_virtual: bool) -> Result<Desc, GpuError> {
    let mut t = Desc::new(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
    t.dtype(A::CUDNN_ATTR_TENSOR_DATA_TYPE, dtype)?;
    t.integers(A::CUDNN_ATTR_TENSOR_DIMENSIONS, sizes)?;
    t.integers(A::CUDNN_ATTR_TENSOR_STRIDES, &format.strides(sizes))?;
    t.integers(A::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[uid])?;
    t.integers(A::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[16])?;
    t.set(A::CUDNN_ATTR_TENSOR_IS_VIRTUAL, T::CUDNN_TYPE_BOOLEAN, &[is_virtual])?;
    t.finish()
}

fn pointwise(mode: cudnnPointwiseMode_t) -> Result<Desc, GpuError> {
    let mut d = Desc::new(Kind::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?;
    d.set(A::CUDNN_ATTR_POINTWISE_MODE, T::CUDNN_TYPE_POINTWISE_MODE, &[mode])?;
    d.dtype(A::CUDNN_ATTR_POINTWISE_MATH_PREC, D::CUDNN_DATA_FLOAT)?;
    if mode == cudnnPointwiseMode_t::CUDNN_POINTWISE_RELU_FWD {
        // The maximum of `NaN` and 0 is `NaN`, as in all backends.
        let keep = cudnnNanPropagation_t::CUDNN_PROPAGATE_NAN;
        d.set(A::CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, T::CUDNN_TYPE_NAN_PROPOGATION, &[keep])?;
    }
    d.finish()
}

fn add(x: &Desc, b: &Desc, y: &Desc) -> Result<Desc, GpuError> {
    let how = pointwise(cudnnPointwiseMode_t::CUDNN_POINTWISE_ADD)?;
    let mut op = Desc::new(Kind::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)?;
    op.refer(A::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &[&how])?;
    op.refer(A::CUDNN_ATTR_OPERATION_POINTWISE_XDESC, &[x])?;
    op.refer(A::CUDNN_ATTR_OPERATION_POINTWISE_BDESC, &[b])?;
    op.refer(A::CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &[y])?;
    op.float(A::CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, 1.0)?;
    op.float(A::CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, 1.0)?;
    op.finish()
}

fn relu(x: &Desc, y: &Desc) -> Result<Desc, GpuError> {
    let how = pointwise(cudnnPointwiseMode_t::CUDNN_POINTWISE_RELU_FWD)?;
    let mut op = Desc::new(Kind::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)?;
    op.refer(A::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &[&how])?;
    op.refer(A::CUDNN_ATTR_OPERATION_POINTWISE_XDESC, &[x])?;
    op.refer(A::CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &[y])?;
    op.finish()
}
