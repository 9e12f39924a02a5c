"""What ONNX Runtime and OpenVINO make of the same archives and inputs on this CPU: the peers of `xtask compare` beside PyTorch.

usage: onnx_cpu.py --modes onnxruntime,openvino [--threads N] [--seconds S] [--dtype bf16|int8] --helpers DIR --models DIR CASE.zip ...

The network is exported by `torch.onnx.export` once, in a process of its own, and kept in the folder of `--models`; so neither memory nor the
time of the first call contain PyTorch. One JSON line per model and mode: median_ms, min_ms, runs, first_call_s (loading the model
included), peak_mb, the largest error against PyTorch's outputs relative to the largest of them. `--helpers` is the folder of `corpus.py`,
which reads cases. In int8 both run the network as ONNX Runtime's tools quantize it: weights by channels, activations by what they are on the case's inputs. Needs: pip install torch numpy safetensors onnx onnxscript onnxruntime openvino
"""
import argparse
import hashlib
import os
import subprocess
import sys
import time

import numpy as np

from figures import report


def exported(path, models, helpers):
    """The exported network's file; it is made where it is not there or older than the case."""
    name = os.path.splitext(os.path.basename(path))[0]
    key = hashlib.sha256(os.path.abspath(path).encode()).hexdigest()[:8]
    folder = os.path.join(models, f"{name}-{key}")
    done = os.path.join(folder, "values.npz")
    if not os.path.exists(done) or os.path.getmtime(done) < os.path.getmtime(path):
        os.makedirs(folder, exist_ok=True)
        command = [sys.executable, os.path.abspath(__file__), "--export", folder, "--helpers", helpers, path]
        subprocess.run(command, check=True, stdout=sys.stderr)
    return os.path.join(folder, "model.onnx"), np.load(done)


def export(path, folder, helpers):
    """Writes the network, its inputs and PyTorch's outputs; the values last, because they say that all is there."""
    import torch

    from cases import case, tensors

    program, args, kwargs, inputs = case(path, helpers)
    with torch.no_grad():
        outputs = tensors(program.module()(*args, **kwargs))
    torch.onnx.export(program, args, os.path.join(folder, "model.onnx"), kwargs=kwargs, dynamo=True)
    values = {f"in{i}": v.numpy() for i, v in enumerate(inputs)} | {f"out{i}": v.numpy() for i, v in enumerate(outputs)}
    np.savez(os.path.join(folder, "values.npz"), **values)


def quantized(file, values):
    """The network with quantized layers beside the exported one; it is made where it is not there or older."""
    made = os.path.join(os.path.dirname(file), "int8.onnx")
    if os.path.exists(made) and os.path.getmtime(made) >= os.path.getmtime(file):
        return made
    import onnx
    import onnxruntime
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    names = [i.name for i in onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"]).get_inputs()]

    class Once(CalibrationDataReader):
        """The case's inputs, once."""

        def __init__(self):
            self.left = [dict(zip(names, values))]

        def get_next(self):
            return self.left.pop() if self.left else None

    # The tools copy the network elsewhere without the file that its weights are in: here they are within it.
    whole, prepared = (os.path.join(os.path.dirname(file), name) for name in ("whole.onnx", "prepared.onnx"))
    onnx.save_model(onnx.load(file), whole)
    quant_pre_process(whole, prepared, skip_symbolic_shape=True)
    quantize_static(
        prepared,
        made,
        Once(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    return made


def onnxruntime_call(file, values, threads, dtype):
    import onnxruntime

    if dtype == "bf16":
        raise SystemExit("onnxruntime: its CPU kernels have no " + dtype)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    if len(session.get_inputs()) != len(values):
        raise SystemExit(f"the exported model takes {len(session.get_inputs())} inputs, the archive {len(values)}")
    inputs = {i.name: v for i, v in zip(session.get_inputs(), values)}
    return lambda: session.run(None, inputs)


def openvino_call(file, values, threads, dtype):
    import openvino

    config = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "bf16" if dtype == "bf16" else "f32"}
    request = openvino.Core().compile_model(file, "CPU", config).create_infer_request()
    return lambda: list(request.infer(values, share_inputs=True).values())


CALLS = {"onnxruntime": onnxruntime_call, "openvino": openvino_call}


def measure(path, mode, a):
    file, values = exported(path, a.models, a.helpers)
    inputs = [values[f"in{i}"] for i in range(sum(k.startswith("in") for k in values.files))]
    wanted = [values[f"out{i}"] for i in range(sum(k.startswith("out") for k in values.files))]
    if a.dtype == "int8":
        file = quantized(file, inputs)
    start = time.perf_counter()
    call = CALLS[mode](file, inputs, a.threads, a.dtype)
    got = call()
    first = time.perf_counter() - start
    error = max(float(np.abs(g - w).max() / (np.abs(w).max() + 1e-12)) for g, w in zip(got, wanted))
    # A peer that computes something else is not timed; what rounds is allowed its rounding, which grows with a network's depth.
    if len(got) != len(wanted) or not error <= {"f32": 0.02, "bf16": 0.2, "int8": 1.0}[a.dtype]:
        raise SystemExit(f"{mode}: results differ by {error:.3g} of the largest")
    report(path, mode, call, a.seconds, first, error)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--modes", default="onnxruntime,openvino")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--seconds", type=float, default=2.0)
    p.add_argument("--dtype", choices=["f32", "bf16", "int8"], default="f32")
    p.add_argument("--helpers", required=True, help="the folder of corpus.py")
    p.add_argument("--models", help="where exported networks are kept")
    p.add_argument("--export", metavar="FOLDER", help="only exports the case to this folder")
    p.add_argument("case", nargs="+")
    a = p.parse_args()
    for path in a.case:
        if a.export:
            export(path, a.export, a.helpers)
            continue
        for mode in a.modes.split(","):
            measure(path, mode, a)


main()
