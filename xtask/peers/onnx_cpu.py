"""What ONNX Runtime and OpenVINO make of the same archives and inputs on this CPU: the peers of `xtask compare` beside PyTorch.

usage: onnx_cpu.py --modes onnxruntime,openvino [--threads N] [--seconds S] [--dtype bf16] --helpers DIR --models DIR CASE.zip ...

The network is exported by `torch.onnx.export` once, in a process of its own, and kept in the folder of `--models`; so neither memory nor the
time of the first call contain PyTorch. One JSON line per model and mode: median_ms, min_ms, runs, first_call_s (loading the model
included), peak_mb, the largest error against PyTorch's outputs relative to the largest of them. `--helpers` is the folder of `corpus.py`,
which reads cases. Needs: pip install torch numpy safetensors onnx onnxscript onnxruntime openvino
"""
import argparse
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time

import numpy as np


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
    import io
    import zipfile

    import torch
    import torch.utils._pytree as pytree
    from safetensors.torch import load as read

    sys.path.insert(0, helpers)
    from corpus import complete, fill

    archive, golden, meta = complete(path)
    held, formula = read(golden), json.loads(meta.get("inputs", "{}"))
    count = len({k for k in held if k.startswith("in") and k[2:].isdigit()} | set(formula))

    def value(key):
        if key in held:
            return held[key]
        f = formula[key]
        made = fill(f["name"], int(torch.Size(f["shape"]).numel()), f["scale"], f["offset"])
        return torch.from_numpy(made).reshape(f["shape"])

    inputs = [value(f"in{i}") for i in range(count)]
    # PyTorch's reader insists on an entry of sample inputs, which cases leave out.
    out = io.BytesIO(archive)
    with zipfile.ZipFile(out, "a") as z:
        entry = f"{z.namelist()[0].split('/')[0]}/data/sample_inputs/model.pt"
        if entry not in z.namelist():
            empty = io.BytesIO()
            torch.save(((), {}), empty)
            z.writestr(entry, empty.getvalue())
    program = torch.export.load(io.BytesIO(out.getvalue()))
    spec = program.module_call_graph[0].signature.in_spec
    args, kwargs = pytree.tree_unflatten(inputs, spec)
    # It insists on the sample inputs themselves, too.
    program._example_inputs = (tuple(args), dict(kwargs))
    with torch.no_grad():
        outputs = [o for o in pytree.tree_leaves(program.module()(*args, **kwargs)) if isinstance(o, torch.Tensor)]
    torch.onnx.export(program, tuple(args), os.path.join(folder, "model.onnx"), kwargs=dict(kwargs), dynamo=True)
    values = {f"in{i}": v.numpy() for i, v in enumerate(inputs)} | {f"out{i}": v.numpy() for i, v in enumerate(outputs)}
    np.savez(os.path.join(folder, "values.npz"), **values)


def onnxruntime_call(file, values, threads, dtype):
    import onnxruntime

    if dtype != "f32":
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

    config = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": dtype}
    request = openvino.Core().compile_model(file, "CPU", config).create_infer_request()
    return lambda: list(request.infer(values, share_inputs=True).values())


CALLS = {"onnxruntime": onnxruntime_call, "openvino": openvino_call}


def measure(path, mode, a):
    file, values = exported(path, a.models, a.helpers)
    inputs = [values[f"in{i}"] for i in range(sum(k.startswith("in") for k in values.files))]
    wanted = [values[f"out{i}"] for i in range(sum(k.startswith("out") for k in values.files))]
    start = time.perf_counter()
    call = CALLS[mode](file, inputs, a.threads, a.dtype)
    got = call()
    first = time.perf_counter() - start
    error = max(float(np.abs(g - w).max() / (np.abs(w).max() + 1e-12)) for g, w in zip(got, wanted))
    # A peer that computes something else is not timed; bfloat16 is allowed its rounding.
    if len(got) != len(wanted) or not error <= (0.2 if a.dtype == "bf16" else 0.02):
        raise SystemExit(f"{mode}: results differ by {error:.3g} of the largest")
    times, end = [], time.perf_counter() + a.seconds
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    figures = dict(
        model=os.path.basename(path),
        mode=mode,
        median_ms=round(statistics.median(times) * 1e3, 3),
        min_ms=round(min(times) * 1e3, 3),
        runs=len(times),
        first_call_s=round(first, 3),
        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        relative_error=error,
    )
    print(json.dumps(figures), flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--modes", default="onnxruntime,openvino")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--seconds", type=float, default=2.0)
    p.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
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
