//! A node's metadata (module stack, traced function, stack trace) as an [`Origin`].

use ir_core::{Origin, Precisions};

use crate::schema::Metadata;

/// Reads what PyTorch's serializer wrote; anything unexpected gives empty parts, never an error.
pub(super) fn read(metadata: &Metadata<'_>, precisions: Precisions) -> Origin {
    Origin {
        module: metadata.nn_module_stack.as_deref().map_or_else(String::new, module),
        function: metadata.torch_fn.as_deref().map_or_else(String::new, function),
        source: metadata.stack_trace.as_deref().and_then(source),
        operator: String::new(),
        precisions,
    }
}

/// `L__self__,,M;L__self__layer1.0,layer1.0,torch.nn.Conv2d`: key, path and type of each level; the last path counts.
fn module(stack: &str) -> String {
    let last = stack.rsplit(';').next().unwrap_or_default();
    let path = last.split(',').nth(1).unwrap_or_default();
    // A placeholder of PyTorch for nodes that it inserted itself.
    if path.starts_with("_empty_nn_module_stack") { String::new() } else { path.to_owned() }
}

/// `conv2d_1;builtin_function_or_method.conv2d`: a numbered name and its class.
fn function(torch_fn: &str) -> String {
    torch_fn.split(';').next().unwrap_or_default().to_owned()
}

/// The innermost frame of a Python stack trace: `model.py:12 in forward, x = self.conv(x)`.
fn source(trace: &str) -> Option<String> {
    let start = trace.rfind("File \"")?;
    let (head, code) = trace[start + 6..].split_once('\n').unwrap_or((&trace[start + 6..], ""));
    let (file, rest) = head.split_once("\", line ")?;
    let (line, function) = rest.split_once(", in ").unwrap_or((rest, ""));
    let mut text = format!("{file}:{line}");
    if !function.is_empty() {
        text.push_str(" in ");
        text.push_str(function);
    }
    let code = code.lines().next().unwrap_or_default().trim();
    if !code.is_empty() {
        text.push_str(", ");
        text.push_str(code);
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_and_traces() {
        assert_eq!(module("L__self__,,m.Net;L__self__a.0,a.0,torch.nn.Conv2d"), "a.0");
        assert_eq!(module("L__self__,,m.Net"), "");
        assert_eq!(
            module("_empty_nn_module_stack_from_metadata_hook,_empty_nn_module_stack_from_metadata_hook,x"),
            ""
        );
        assert_eq!(function("conv2d_1;builtin_function_or_method.conv2d"), "conv2d_1");
        let trace = "  File \"/a/outer.py\", line 3, in call\n    f(x)\n  File \"/a/m.py\", line 12, in forward\n    z=y*2";
        assert_eq!(source(trace).as_deref(), Some("/a/m.py:12 in forward, z=y*2"));
        assert_eq!(source("nothing"), None);
    }
}
