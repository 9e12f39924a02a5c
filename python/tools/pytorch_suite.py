"""Runs test files of PyTorch's own repository with this backend in the place of TorchInductor.

    python tools/pytorch_suite.py CHECKOUT test/inductor/test_torchinductor.py [-k EXPRESSION] [--part 0/4]
                                [--dynamic] [--json FILE]

CHECKOUT is a checkout of PyTorch (of its folder `test`), best at the version of the installed torch; nothing of it is part of
this repository. `torch._inductor.compile_fx.compile_fx` is replaced, so whatever asks for TorchInductor gets this backend; so are the backend
`aot_eager` and the compiler `nop`, by which tests of AOTAutograd run its graphs. TorchInductor's `fallback_random` is passed on,
and the latter two have the random numbers of eager PyTorch.
`--dynamic` makes all sizes symbolic, as `test_torchinductor_dynamic_shapes.py` does. A test that fails is run once more with
PyTorch's own `aot_eager` in the place of TorchInductor. What fails there too is counted apart, with what it looks at:
TorchInductor's generated code and counters, or names and settings that this version of torch does not have.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import sys
import unittest
import warnings

warnings.simplefilter("ignore")

# What a test that passes with TorchInductor alone looks at, by a pattern on its source.
OWN = {
    "counters of TorchInductor": r"metrics\.|counters\[.inductor|generated_kernel_count",
    "generated code": r"run_and_get_(code|cpp_code|triton_code|kernels)|FileCheck|get_code|run_fw_bw_and_get_code",
    "settings of another version": r"functorch_config|config\.patch|torch\._inductor\.config|inductor_config",
    "internals of TorchInductor": r"torch\._inductor\.|V\.graph|InductorTest|lowering|ir\.",
}
OTHER = "names or messages of another version"


class Rerouted:
    """Stands in the place of TorchInductor: this backend, or for comparison PyTorch's `aot_eager`."""

    def __init__(self) -> None:
        import torch._inductor.compile_fx as inductor
        from torch._dynamo.backends import registry

        from ferroflux.backend import ferroflux

        self.own, self.plain = ferroflux, registry.lookup_backend("aot_eager")
        self.backend = self.own

        def compile_fx(model_, example_inputs_, *rest, **keywords):
            return self.chosen(model_, example_inputs_)

        inductor.compile_fx = compile_fx
        registry._COMPILER_FNS["aot_eager"] = lambda gm, inputs, **_: self.chosen(gm, inputs, "torch")

    def chosen(self, gm, inputs, random=None):
        import torch._inductor.config

        if self.backend is self.plain:
            return self.plain(gm, inputs)
        random = random or ("torch" if torch._inductor.config.fallback_random else "own")
        return self.own(gm, inputs, options={"random": random})

    def compiler(self, gm, inputs):
        """In the place of `nop`: a graph of AOTAutograd, compiled."""
        from ferroflux import fallback
        from ferroflux.options import Options

        if self.backend is self.plain:
            return gm
        call = fallback.compiled(gm, Options(random="torch"), set()).call
        return lambda *args: call(list(args))

    def fails_plainly(self, test) -> bool:
        """Whether a test fails with `aot_eager` too."""
        import torch

        self.backend = self.plain
        torch._dynamo.reset()
        try:
            result = unittest.TestResult()
            type(test)(test._testMethodName).run(result)
            return not result.wasSuccessful()
        finally:
            self.backend = self.own
            torch._dynamo.reset()


# Names of torch's own test helpers that test files of earlier versions import.
EARLIER = {
    "torch.testing._internal.inductor_utils": {"HAS_CUDA": "HAS_CUDA_AND_TRITON"},
}


def without_needless_conditions() -> None:
    """Tests that ask for a GPU for the sake of Triton run on CPUs too: this backend needs none. `-k cpu` leaves out others."""
    from torch.testing._internal import triton_utils

    triton_utils.requires_gpu_and_triton = triton_utils.requires_gpu = lambda test: test


def with_earlier_names() -> None:
    """Lets test files of earlier versions import helpers by the names that they had then."""
    import importlib

    for module, names in EARLIER.items():
        loaded = importlib.import_module(module)
        for earlier, present in names.items():
            if not hasattr(loaded, earlier):
                setattr(loaded, earlier, getattr(loaded, present))


class Results(unittest.TestResult):
    """Counts, with one line a failure."""

    def __init__(self, rerouted: Rerouted) -> None:
        super().__init__()
        self.rerouted = rerouted
        self.kinds: dict[str, list[str]] = collections.defaultdict(list)

    def addSuccess(self, test):
        self.kinds["passed"].append(test.id())

    def addSkip(self, test, reason):
        self.kinds["skipped by PyTorch"].append(test.id())

    def addExpectedFailure(self, test, err):
        self.kinds["skipped by PyTorch"].append(test.id())

    def addUnexpectedSuccess(self, test):
        self.kinds["passed"].append(test.id())

    def addFailure(self, test, err):
        self.judge(test, err)

    def addError(self, test, err):
        self.judge(test, err)

    def judge(self, test, err):
        said = " ".join(str(err[1]).split("To execute this test")[0].split())
        if self.rerouted.fails_plainly(test):
            text = source(test)
            why = next((why for why, pattern in OWN.items() if re.search(pattern, text)), OTHER)
            self.kinds[f"fail with aot_eager too ({why})"].append(test.id())
            return
        self.kinds["failed"].append(test.id())
        print(f"FAILED {test.id()}: {err[0].__name__}: {said[:300]}", flush=True)


def source(test) -> str:
    import inspect

    method = getattr(type(test), test._testMethodName)
    # A copy of another class's test has that as the default of an argument.
    copied = [d for d in getattr(method, "__defaults__", None) or () if callable(d)]
    try:
        return inspect.getsource(inspect.unwrap(copied[0] if copied else method))
    except (OSError, TypeError):
        return ""


def flat(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        else:
            yield test


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout")
    parser.add_argument("file")
    parser.add_argument("-k", default="")
    parser.add_argument("--part", default="0/1", help="every so many-th test from this one on")
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()
    sys.argv = sys.argv[:1]
    folder = os.path.join(args.checkout, "test")
    import importlib.util

    import torch

    sys.path[:0] = [folder, os.path.dirname(os.path.join(args.checkout, args.file))]
    with_earlier_names()
    if not torch.cuda.is_available():
        without_needless_conditions()
    rerouted = Rerouted()
    if args.dynamic:
        torch._dynamo.config.assume_static_by_default = False

    spec = importlib.util.spec_from_file_location("pytorch_suite", os.path.join(args.checkout, args.file))
    module = importlib.util.module_from_spec(spec)
    sys.modules["pytorch_suite"] = module
    spec.loader.exec_module(module)
    if hasattr(module, "nop"):
        module.nop = rerouted.compiler
    tests = [t for t in flat(unittest.defaultTestLoader.loadTestsFromModule(module)) if re.search(args.k, t.id())]
    results = Results(rerouted)
    part, parts = map(int, args.part.split("/"))
    for test in tests[part::parts]:
        test.run(results)
    counts = {kind: len(ids) for kind, ids in results.kinds.items()}
    judged = counts.get("passed", 0) + counts.get("failed", 0)
    print(f"{args.file}: {counts.get('passed', 0)} of {judged} pass; " + ", ".join(f"{n} {k}" for k, n in counts.items()))
    if args.json:
        with open(args.json, "w") as file:
            json.dump(results.kinds, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
