//! PyTorch's autocast lists (2.11): in which precision an operator runs. Source: the registrations of the dispatch keys
//! `AutocastCUDA` and `AutocastCPU` (`aten/src/ATen/autocast_mode.h`). Operators on no list take what comes.
//!
//! Names are without overload: all overloads of one operator have one policy. The last list of each device has
//! composites that PyTorch runs as operators of the lists.

/// What happens to the floating-point operands of an operator (those of double precision are left alone).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    /// Cast to the 16-bit type.
    Lower,
    /// Cast to `float32`.
    Float32,
    /// Cast to `float32` if the first operand is a float and the call names no dtype.
    Float32Result,
    /// Cast to the widest type among them.
    Widest,
}

/// Whose lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutocastDevice {
    /// `torch.autocast("cpu")`.
    Cpu,
    /// `torch.autocast("cuda")`, also for ROCm.
    Cuda,
}

/// The policy of an operator (`aten.add.Tensor`), where it is on a list.
pub(super) fn policy(device: AutocastDevice, target: &str) -> Option<Policy> {
    let name = target.strip_prefix("aten.")?.split('.').next()?;
    let lists: &[(Policy, &[&str])] = match device {
        AutocastDevice::Cpu => CPU,
        AutocastDevice::Cuda => CUDA,
    };
    let (policy, _) = lists.iter().find(|(_, names)| names.contains(&name))?;
    Some(*policy)
}

const CUDA: &[(Policy, &[&str])] = &[
    (
        Policy::Lower,
        &[
            "_convolution",
            "_cudnn_rnn",
            "_scaled_dot_product_flash_attention",
            "_thnn_fused_gru_cell",
            "_thnn_fused_lstm_cell",
            "addbmm",
            "addmm",
            "addmv",
            "addr",
            "baddbmm",
            "bmm",
            "chain_matmul",
            "conv1d",
            "conv2d",
            "conv3d",
            "conv_tbc",
            "conv_transpose1d",
            "conv_transpose2d",
            "conv_transpose3d",
            "convolution",
            "cudnn_convolution",
            "cudnn_convolution_transpose",
            "einsum",
            "gru_cell",
            "linalg_multi_dot",
            "linalg_vecdot",
            "linear",
            "lstm_cell",
            "matmul",
            "mm",
            "mv",
            "prelu",
            "rnn_relu_cell",
            "rnn_tanh_cell",
            "scaled_dot_product_attention",
        ],
    ),
    (
        Policy::Float32,
        &[
            "_upsample_bicubic2d_aa",
            "_upsample_bilinear2d_aa",
            "_upsample_nearest_exact1d",
            "_upsample_nearest_exact2d",
            "_upsample_nearest_exact3d",
            "acos",
            "asin",
            "binary_cross_entropy_with_logits",
            "cdist",
            "cosh",
            "cosine_embedding_loss",
            "cosine_similarity",
            "dist",
            "erfinv",
            "exp",
            "expm1",
            "frobenius_norm",
            "group_norm",
            "hinge_embedding_loss",
            "huber_loss",
            "kl_div",
            "l1_loss",
            "layer_norm",
            "log",
            "log10",
            "log1p",
            "log2",
            "logsumexp",
            "margin_ranking_loss",
            "mse_loss",
            "multi_margin_loss",
            "multilabel_margin_loss",
            "native_layer_norm",
            "nll_loss",
            "nll_loss2d",
            "norm",
            "nuclear_norm",
            "pdist",
            "poisson_nll_loss",
            "pow",
            "reciprocal",
            "renorm",
            "rsqrt",
            "sinh",
            "smooth_l1_loss",
            "soft_margin_loss",
            "softplus",
            "tan",
            "triplet_margin_loss",
            "upsample_bicubic2d",
            "upsample_bilinear2d",
            "upsample_linear1d",
            "upsample_nearest1d",
            "upsample_nearest2d",
            "upsample_nearest3d",
            "upsample_trilinear3d",
        ],
    ),
    (
        Policy::Float32Result,
        &[
            "cumprod",
            "cumsum",
            "linalg_matrix_norm",
            "linalg_vector_norm",
            "log_softmax",
            "prod",
            "softmax",
            "sum",
        ],
    ),
    (
        Policy::Widest,
        &[
            "addcdiv",
            "addcmul",
            "atan2",
            "bilinear",
            "cat",
            "cross",
            "dot",
            "grid_sampler",
            "index_put",
            "scatter_add",
            "stack",
            "tensordot",
            "vdot",
        ],
    ),
    // Composites of the above.
    (Policy::Lower, &["_convolution_mode", "gru", "inner", "linalg_matmul", "lstm", "rnn_relu", "rnn_tanh"]),
    (Policy::Float32, &["cross_entropy_loss", "nll_loss_nd", "linalg_norm", "pairwise_distance"]),
    (Policy::Float32Result, &["special_log_softmax", "special_softmax"]),
];

const CPU: &[(Policy, &[&str])] = &[
    (
        Policy::Lower,
        &[
            "_addmm_activation",
            "_convolution",
            "_native_multi_head_attention",
            "addbmm",
            "addmm",
            "baddbmm",
            "bmm",
            "conv1d",
            "conv2d",
            "conv3d",
            "conv_tbc",
            "conv_transpose1d",
            "conv_transpose2d",
            "conv_transpose3d",
            "linalg_vecdot",
            "linear",
            "matmul",
            "mkldnn_rnn_layer",
            "mm",
            "prelu",
            "scaled_dot_product_attention",
        ],
    ),
    (
        Policy::Float32,
        &[
            "_grid_sampler_2d_cpu_fallback",
            "_lu_with_info",
            "adaptive_avg_pool3d",
            "adaptive_max_pool3d",
            "avg_pool3d",
            "binary_cross_entropy",
            "binary_cross_entropy_with_logits",
            "cdist",
            "cholesky",
            "cholesky_inverse",
            "cholesky_solve",
            "cosine_embedding_loss",
            "cross_entropy_loss",
            "ctc_loss",
            "fake_quantize_per_tensor_affine",
            "fft_fft",
            "fft_fft2",
            "fft_fftn",
            "fft_hfft",
            "fft_ifft",
            "fft_ifft2",
            "fft_ifftn",
            "fft_ihfft",
            "fft_irfft",
            "fft_irfft2",
            "fft_irfftn",
            "fft_rfft",
            "fft_rfft2",
            "fft_rfftn",
            "fractional_max_pool2d",
            "fractional_max_pool3d",
            "geqrf",
            "grid_sampler",
            "grid_sampler_2d",
            "grid_sampler_3d",
            "hinge_embedding_loss",
            "huber_loss",
            "inverse",
            "kl_div",
            "l1_loss",
            "linalg_cholesky",
            "linalg_cholesky_ex",
            "linalg_cond",
            "linalg_eig",
            "linalg_eigh",
            "linalg_eigvals",
            "linalg_eigvalsh",
            "linalg_householder_product",
            "linalg_inv",
            "linalg_inv_ex",
            "linalg_lstsq",
            "linalg_matrix_rank",
            "linalg_qr",
            "linalg_solve",
            "linalg_svd",
            "linalg_svdvals",
            "linalg_tensorinv",
            "linalg_tensorsolve",
            "lu_solve",
            "margin_ranking_loss",
            "max_pool3d",
            "max_unpool2d",
            "max_unpool3d",
            "mse_loss",
            "multi_margin_loss",
            "multilabel_margin_loss",
            "multilabel_margin_loss_forward",
            "nanquantile",
            "nll_loss",
            "nll_loss2d",
            "orgqr",
            "ormqr",
            "pinverse",
            "poisson_nll_loss",
            "polar",
            "prod",
            "qr",
            "quantile",
            "reflection_pad1d",
            "reflection_pad2d",
            "replication_pad1d",
            "replication_pad2d",
            "replication_pad3d",
            "smooth_l1_loss",
            "soft_margin_loss",
            "stft",
            "svd",
            "trace",
            "triangular_solve",
            "triplet_margin_loss",
            "view_as_complex",
        ],
    ),
    (Policy::Widest, &["cat", "index_copy", "stack"]),
    // Composites of the above. Recurrent layers of the CPU are products and arithmetic, of which the products count.
    (Policy::Lower, &["_convolution_mode", "inner", "linalg_matmul"]),
    (Policy::Float32, &["nll_loss_nd"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_on_one_list() {
        for lists in [CPU, CUDA] {
            let mut all: Vec<&str> = lists.iter().flat_map(|(_, names)| names.iter().copied()).collect();
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), count, "a name is on two lists");
        }
    }

    #[test]
    fn devices_differ() {
        use AutocastDevice::*;
        assert_eq!(policy(Cuda, "aten.softmax.int"), Some(Policy::Float32Result));
        assert_eq!(policy(Cpu, "aten.softmax.int"), None);
        assert_eq!(policy(Cuda, "aten.pow.Tensor_Scalar"), Some(Policy::Float32));
        assert_eq!(policy(Cpu, "aten.linear.default"), Some(Policy::Lower));
        assert_eq!(policy(Cpu, "aten.relu.default"), None);
        assert_eq!(policy(Cpu, "prims.matmul"), None);
    }
}
