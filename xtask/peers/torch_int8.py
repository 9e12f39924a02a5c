"""What TorchInductor makes of a network whose weights and activations are 8-bit integers: the peer `inductor` of `xtask compare --dtype int8`.

usage: torch_int8.py [--threads N] [--seconds S] --helpers DIR CASE.zip ...
       torch_int8.py --helpers DIR --inputs FILE.safetensors CASE.zip

Quantized by torchao's `X86InductorQuantizer` in its default configuration, calibrated on the case's inputs, compiled with frozen weights. One JSON
line per model: median_ms, min_ms, runs, first_call_s, peak_mb, the largest difference to the float network's results relative to the
largest of them. `--inputs` only writes the inputs to a file. `--helpers` is the folder of `corpus.py`. Needs: pip install torch torchao safetensors
"""
import argparse
import operator
import time

import torch
from safetensors.torch import save_file

from cases import case, tensors
from figures import report


def sources():
    """What the quantizer knows operators by: the modules and functions that they came from. Archives have the names alone."""
    ops, nn = torch.ops.aten, torch.nn
    return {
        ops.conv2d.default: nn.Conv2d,
        ops.linear.default: nn.Linear,
        ops.matmul.default: torch.matmul,
        ops.add.Tensor: operator.add,
        ops.add_.Tensor: operator.add,
        ops.relu.default: nn.ReLU,
        ops.relu_.default: nn.ReLU,
        ops.hardtanh.default: nn.Hardtanh,
        ops.hardtanh_.default: nn.Hardtanh,
        ops.hardswish.default: nn.Hardswish,
        ops.hardswish_.default: nn.Hardswish,
        ops.silu.default: nn.SiLU,
        ops.silu_.default: nn.SiLU,
        ops.gelu.default: nn.GELU,
    }


def quantized(program, args, kwargs):
    """The network with quantized layers, compiled; `torch.no_grad` is the caller's."""
    import torch._inductor.config
    from torchao.quantization.pt2e import move_exported_model_to_eval
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    module, known = program.module(), sources()
    for node in module.graph.nodes:
        if node.target in known:
            node.meta["source_fn_stack"] = [(node.name, known[node.target])]
    prepared = prepare_pt2e(module, quantizer)
    prepared(*args, **kwargs)
    converted = convert_pt2e(prepared)
    if not any("quantize_per_tensor" in str(node.target) for node in converted.graph.nodes):
        raise SystemExit("the quantizer has found no layer")
    move_exported_model_to_eval(converted)
    torch._inductor.config.freezing = True
    return torch.compile(converted)


def measure(path, a):
    program, args, kwargs, _ = case(path, a.helpers)
    with torch.no_grad():
        wanted = tensors(program.module()(*args, **kwargs))
        start = time.perf_counter()
        call = quantized(program, args, kwargs)
        got = tensors(call(*args, **kwargs))
        first = time.perf_counter() - start
        error = max(((g - w).abs().max() / (w.abs().max() + 1e-12)).item() for g, w in zip(got, wanted))
        report(path, "inductor", lambda: call(*args, **kwargs), a.seconds, first, error)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--seconds", type=float, default=2.0)
    p.add_argument("--helpers", required=True, help="the folder of corpus.py")
    p.add_argument("--inputs", metavar="FILE", help="only writes the inputs of the case to this file")
    p.add_argument("case", nargs="+")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    for path in a.case:
        if a.inputs:
            inputs = case(path, a.helpers)[3]
            save_file({f"in{i}": v.contiguous() for i, v in enumerate(inputs)}, a.inputs)
            continue
        measure(path, a)


main()
