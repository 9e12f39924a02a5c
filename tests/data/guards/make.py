"""Writes `guards.zip` beside this file, with PyTorch 2.11 on a CPU: `python make.py`.

Tiny programs whose sizes are guarded, and what PyTorch answers to calls of several sizes: `<name>.pt2` and
`<name>.safetensors` with `s<k>.in<i>`, `s<k>.out<i>`. Metadata `outputs` has for each call how many tensors PyTorch returned, 0
where it raised.
"""

import io
import json
import pathlib
import warnings
import zipfile

import torch
from safetensors.torch import save
from torch.export import Dim, export

warnings.filterwarnings("ignore")
DYN = Dim.DYNAMIC

def slice_add(x, y): return x[: y.size(0)] + y
def narrow_add(x, y): return x.narrow(0, 0, y.size(0)) + y
def view_rows(x, y): return x.view(y.size(0), -1) * 2
def strided(x): return x.as_strided((4, 4), (4, 1)) + 0
def add(x, y): return x + y
def checked(x, y):
    torch._check(x.shape[0] == 2 * y.shape[0])
    return x.reshape(y.shape[0], 2) * y[:, None]
def halves(x):
    a, b = x.chunk(2); return a * b
def matmul(x, y): return x @ y
def cat_rows(x, y): return torch.cat([x, y], 0)
def at_least(x):
    torch._check(x.shape[0] >= 5); return x[3] + x[4]
def mean(x): return x.mean(0), x.sum(0), x.std(0)
def softmax(x): return torch.softmax(x, 0), torch.nn.functional.layer_norm(x, (3,))
def argmax(x): return x.argmax(0)
def conv(x): return torch.nn.functional.conv1d(x, torch.ones(2, 3, 3))
def product(x, y): return x.t() @ y
def flat(x): return x.flatten() + 1
def attention(q): return torch.nn.functional.scaled_dot_product_attention(q, q, q)
def unfold(x): return x.unfold(0, 3, 1).sum(1)
def ends(x): return x[-3:] + x[:3]
def squeeze(x): return x.squeeze(0)
def topk(x): return x.topk(3).values

def r(*s): return torch.randn(*s)
# name, function, example arguments, dynamic dims of each, sizes to call with
CASES = [
 ("slice_add", slice_add, [(10,3),(6,3)], [{0:DYN},{0:DYN}], [[(10,3),(6,3)],[(6,3),(6,3)],[(4,3),(6,3)],[(1,3),(6,3)],[(6,3),(1,3)],[(6,3),(0,3)]]),
 ("narrow_add", narrow_add, [(10,3),(6,3)], [{0:DYN},{0:DYN}], [[(8,3),(5,3)],[(4,3),(6,3)],[(1,3),(1,3)],[(0,3),(0,3)],[(2,3),(7,3)]]),
 ("view_rows", view_rows, [(12,),(6,)], [{0:DYN},{0:DYN}], [[(12,),(4,)],[(12,),(5,)],[(7,),(7,)],[(12,),(1,)],[(0,),(2,)],[(4,),(0,)],[(3,),(6,)]]),
 ("strided", strided, [(20,)], [{0:DYN}], [[(16,)],[(40,)],[(15,)],[(1,)],[(0,)]]),
 ("add", add, [(5,),(5,)], [{0:DYN},{0:DYN}], [[(7,),(7,)],[(5,),(3,)],[(1,),(3,)],[(1,),(1,)],[(0,),(0,)],[(3,),(1,)]]),
 ("add_ranged", add, [(5,),(5,)], [{0:Dim("n",min=3,max=8)}]*2, [[(3,),(3,)],[(8,),(8,)],[(2,),(2,)],[(9,),(9,)]]),
 ("checked", checked, [(12,),(6,)], [{0:DYN},{0:DYN}], [[(8,),(4,)],[(8,),(5,)],[(2,),(1,)],[(0,),(0,)]]),
 ("halves", halves, [(8,)], [{0:DYN}], [[(6,)],[(7,)],[(2,)],[(1,)],[(0,)]]),
 ("matmul", matmul, [(4,5),(5,3)], [{0:DYN,1:DYN},{0:DYN}], [[(2,7),(7,3)],[(2,7),(6,3)],[(0,5),(5,3)],[(2,0),(0,3)],[(1,1),(1,3)]]),
 ("product", product, [(4,5),(4,3)], [{0:DYN},{0:DYN}], [[(0,5),(0,3)],[(1,5),(1,3)],[(2,5),(3,3)]]),
 ("cat_rows", cat_rows, [(4,5),(3,5)], [{0:DYN,1:DYN},{0:DYN,1:DYN}], [[(0,5),(3,5)],[(1,2),(1,2)],[(2,5),(3,4)]]),
 ("at_least", at_least, [(8,)], [{0:DYN}], [[(5,)],[(4,)],[(0,)]]),
 ("mean", mean, [(4,3)], [{0:DYN}], [[(5,3)],[(1,3)],[(0,3)]]),
 ("softmax", softmax, [(4,3)], [{0:DYN}], [[(5,3)],[(1,3)],[(0,3)]]),
 ("argmax", argmax, [(4,3)], [{0:DYN}], [[(5,3)],[(1,3)],[(0,3)]]),
 ("conv", conv, [(4,3,9)], [{0:DYN,2:DYN}], [[(2,3,5)],[(0,3,5)],[(1,3,3)],[(1,3,2)]]),
 ("flat", flat, [(4,3)], [{0:DYN,1:DYN}], [[(5,2)],[(1,1)],[(0,3)],[(2,0)]]),
 ("attention", attention, [(2,4,6,8)], [{0:DYN,2:DYN}], [[(1,4,5,8)],[(0,4,5,8)],[(1,4,1,8)]]),
 ("unfold", unfold, [(8,)], [{0:DYN}], [[(5,)],[(3,)],[(2,)],[(0,)]]),
 ("ends", ends, [(8,)], [{0:DYN}], [[(5,)],[(3,)],[(2,)],[(1,)]]),
 ("squeeze", squeeze, [(4,3)], [{0:DYN}], [[(5,3)],[(1,3)]]),
 ("topk", topk, [(8,)], [{0:DYN}], [[(3,)],[(2,)],[(9,)]]),
]
out = zipfile.ZipFile(pathlib.Path(__file__).parent / "guards.zip", "w", zipfile.ZIP_DEFLATED)
def put(name, data):
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)); info.compress_type = zipfile.ZIP_DEFLATED
    out.writestr(info, data)
for name, f, args, dyn, calls in CASES:
    torch.manual_seed(0)
    n = len(args)
    # Named parameters, as a user's module has.
    src = "class Named(torch.nn.Module):\n    def forward(self, {0}): return f({0})".format(", ".join("xyz"[:n]))
    scope = {"torch": torch, "f": f}; exec(src, scope)
    ep = export(scope["Named"](), tuple(r(*s) for s in args), dynamic_shapes=tuple(dyn), strict=False)
    buf = io.BytesIO(); torch.export.save(ep, buf)
    ep = torch.export.load(io.BytesIO(buf.getvalue()))
    module = ep.module()
    # Without sample inputs and stack traces.
    small = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(buf.getvalue())) as z, zipfile.ZipFile(small, "w", zipfile.ZIP_STORED) as w:
        for e in z.namelist():
            if "sample_inputs" in e: continue
            data = z.read(e)
            if e.endswith(".json") and "/models/" in e:
                j = json.loads(data)
                for node in j["graph_module"]["graph"]["nodes"]: node.get("metadata", {}).pop("stack_trace", None)
                data = json.dumps(j).encode()
            info = zipfile.ZipInfo(e, (1980, 1, 1, 0, 0, 0)); w.writestr(info, data)
    tensors, answers = {}, []
    for k, sizes in enumerate(calls):
        given = [torch.randn(*s) for s in sizes]
        for i, t in enumerate(given): tensors[f"s{k}.in{i}"] = t.contiguous()
        try:
            got = module(*given)
            got = got if isinstance(got, (tuple, list)) else (got,)
            for i, t in enumerate(got): tensors[f"s{k}.out{i}"] = t.contiguous().clone()
            answers.append(f"{len(got)}")
        except Exception:
            answers.append("0")
    put(f"{name}.pt2", small.getvalue())
    put(f"{name}.safetensors", save({k: v for k, v in tensors.items()}, {"outputs": ",".join(answers)}))
