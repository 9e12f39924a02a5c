"""Cases of the corpus as PyTorch's exported programs with their inputs: what the peers of `xtask compare` in this folder share.

`helpers` is the folder of `corpus.py`, which reads cases. Not here: what is measured.
"""
import io
import json
import sys
import zipfile

import torch
import torch.utils._pytree as pytree
from safetensors.torch import load as read


def case(path, helpers):
    """The program, its arguments, its keyword arguments, and all inputs as a flat list."""
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
    return program, tuple(args), dict(kwargs), inputs


def tensors(values):
    """The tensors among a program's results."""
    return [v for v in pytree.tree_leaves(values) if isinstance(v, torch.Tensor)]
