//! Whole fx graphs, run by the interpreter: a custom Dynamo backend as a plugin.

use fx_ir::{Graph, NodeKind, OutputKind};
use plugin_sdk::{Constants, Executable, OwnedTensor, PluginError, Signature, Stream, TensorView};
use tensor::{Storage, Tensor, contiguous_strides};

use crate::fault::{Fault, fault};

/// A graph that was read.
pub(crate) struct GraphExecutable(Graph);

impl GraphExecutable {
    /// Reads the text form.
    pub(crate) fn new(text: &[u8]) -> Result<GraphExecutable, PluginError> {
        let text = std::str::from_utf8(text).map_err(|e| PluginError::invalid(e.to_string()))?;
        let mut graph: Graph =
            text.parse().map_err(|e: fx_ir::text::TextError| PluginError::invalid(e.to_string()))?;
        if fault() == Fault::WrongGraph {
            for (_, node) in graph.nodes.iter_mut() {
                if let NodeKind::Call { target, args } = &mut node.kind
                    && target.ends_with("prims.sub")
                {
                    args.reverse();
                }
            }
        }
        Ok(GraphExecutable(graph))
    }
}

impl Executable for GraphExecutable {
    fn signature(&self) -> Signature {
        let user = self.0.outputs.iter().filter(|o| o.kind == OutputKind::User).count();
        Signature { inputs: self.0.inputs().count(), outputs: user, constants: 0 }
    }

    fn execute(
        &self,
        inputs: &[TensorView<'_>],
        _constants: &Constants<'_>,
        _stream: Stream,
    ) -> Result<Vec<OwnedTensor>, PluginError> {
        let inputs = inputs.iter().map(taken).collect::<Result<Vec<_>, _>>()?;
        let results = interp::run(&self.0, &inputs).map_err(|e| PluginError::invalid(e.to_string()))?;
        results.iter().map(given).collect()
    }
}

/// A tensor of the host's, copied.
fn taken(view: &TensorView<'_>) -> Result<Tensor, PluginError> {
    if !view.is_contiguous() {
        return Err(PluginError::unsupported("an input that is not row-major"));
    }
    let sizes: Vec<usize> = view.sizes().iter().map(|n| *n as usize).collect();
    let n = view.numel() * view.dtype().size();
    let bytes: &[u8] = match n {
        0 => &[],
        // SAFETY: a row-major tensor in host memory, lent for the call.
        _ => unsafe { std::slice::from_raw_parts(view.as_ptr(), n) },
    };
    let made = Storage::from_bytes(bytes)
        .and_then(|s| Tensor::new(s, view.dtype(), &sizes, &contiguous_strides(&sizes), 0));
    made.map_err(|e| PluginError::internal(e.to_string()))
}

/// A tensor for the host.
fn given(tensor: &Tensor) -> Result<OwnedTensor, PluginError> {
    let row_major = tensor.copied().map_err(|e| PluginError::internal(e.to_string()))?;
    let sizes: Vec<i64> = row_major.sizes().iter().map(|n| *n as i64).collect();
    let mut out = OwnedTensor::zeroed(row_major.dtype(), &sizes)?;
    let bytes = row_major.storage().bytes();
    let n = row_major.nbytes().min(bytes.len());
    // SAFETY: both hold this many bytes: one dtype, the same sizes, row-major.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.as_mut_ptr(), n) };
    Ok(out)
}
