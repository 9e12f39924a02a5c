"""Runs PyTorch's samples of modules (`module_db`) and optimizers (`optim_db`) through torch.compile with this backend.

    python tools/modules.py [--database modules|optimizers] [--only REGEX] [--fallback torch]

Of a module its results and the gradients of its inputs and parameters are compared with eager PyTorch's, in training and in
evaluation; of an optimizer the parameters after three compiled steps. Comparison and kinds of failure are those of
`opinfo.py`.
"""

from __future__ import annotations

import argparse
import collections
import copy
import logging
import re
import sys
import time
import warnings

warnings.simplefilter("ignore")

import torch  # noqa: E402
from opinfo import compare, copied, leaves, reason  # noqa: E402


def compiled(function, args):
    return torch.compile(function, backend="ferroflux", options={"fallback": args.fallback})


def module_cases():
    """A name and a function that checks it, for each module."""
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        if torch.float32 in info.dtypes:
            yield info.name, lambda args, info=info: all([check_module(info, t, args) for t in (True, False)])


def check_module(info, training: bool, args) -> bool:
    torch.manual_seed(0)
    samples = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
    seen = False
    for sample in list(samples)[: args.samples]:
        make, given = sample.constructor_input, sample.forward_input
        if given is None:
            continue
        torch._dynamo.reset()
        eager = info.module_cls(*make.args, **make.kwargs).train(training)
        ours = copy.deepcopy(eager)
        a, b = results(eager, eager, given), results(ours, compiled(ours, args), given)
        names = " ".join(type(m).__name__ for m in eager.modules())
        random = training and ("Dropout" in names or "RReLU" in names) or "Fractional" in names
        compare(b, a, lambda: results(copy.deepcopy(eager).double(), None, given, torch.float64), random, 10)
        seen = True
    return seen


def results(module, function, given, dtype=None):
    """Results, and gradients of inputs and parameters."""
    given = copied((given.args, given.kwargs), dtype, grad=True)
    torch.manual_seed(0)
    out = (module if function is None else function)(*given[0], **given[1])
    outs = [t for t in leaves(out) if t.requires_grad]
    wrt = [t for t in (*leaves(given), *module.parameters()) if t.requires_grad]
    if not outs or not wrt:
        return leaves(out)
    grads = torch.autograd.grad([t.sum() for t in outs], wrt, allow_unused=True)
    return [t.detach() for t in leaves(out)] + [g for g in grads if g is not None]


def optimizer_cases():
    from torch.testing._internal.common_optimizers import optim_db

    for info in optim_db:
        yield info.optim_cls.__name__, lambda args, info=info: check_optimizer(info, args)


def check_optimizer(info, args) -> bool:
    for given in list(info.optim_inputs_func(device="cpu"))[: args.samples]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        eager = [torch.randn(4, 3, requires_grad=True), torch.randn(5, requires_grad=True)]
        if info.optim_cls.__name__ == "Muon":
            # It takes matrices, and multiplies them in bfloat16.
            eager = eager[:1]
        if info.optim_cls.__name__ == "SparseAdam":
            return False
        ours = [p.detach().clone().requires_grad_() for p in eager]
        for p, q in zip(eager, ours):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        a, b = (info.optim_cls(params, **given.kwargs) for params in (eager, ours))
        step = compiled(b.step, args)
        closure = (lambda: torch.tensor(1.0),) if info.step_requires_closure else ()
        for _ in range(3):
            a.step(*closure)
            step(*closure)
        compare([p.detach() for p in ours], [p.detach() for p in eager], lambda: None, False, 10 if info.optim_cls.__name__ != "Muon" else 1000)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=["modules", "optimizers"], default="modules")
    parser.add_argument("--only", default="")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--fallback", choices=["error", "torch"], default="error")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    torch._dynamo.config.recompile_limit = 64
    cases = module_cases() if args.database == "modules" else optimizer_cases()
    counts, start = collections.Counter(), time.time()
    for name, check in cases:
        if not re.search(args.only, name):
            continue
        try:
            counts["passed" if check(args) else "no samples"] += 1
        except Exception as e:
            kind, why = reason(e)
            counts[kind] += 1
            print(f"{kind:<12} {name}: {why}", flush=True)
    judged = sum(counts.values()) - counts["no samples"]
    rest = ", ".join(f"{n} {k}" for k, n in counts.items() if k != "passed")
    print(f"{args.database}: {counts['passed']} of {judged} pass; {rest}; {time.time() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
