"""Runs test files of PyTorch's own repository with this backend in the place of TorchInductor.

    python tools/pytorch_suite.py CHECKOUT test/inductor/test_torchinductor.py [-k EXPRESSION] [--json FILE]

CHECKOUT is a checkout of PyTorch at the version of the installed torch; nothing of it is part of this repository.
`torch._inductor.compile_fx.compile_fx` is replaced, so whatever asks for TorchInductor gets this backend. Tests of
TorchInductor's own output (generated code, counters, FileCheck) cannot pass and are counted apart, with the reason.
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

# What a test asserts about TorchInductor itself, by a pattern on its source or on its failure.
OWN = {
    "generated code": r"run_and_get_(code|cpp_code|triton_code|kernels)|FileCheck|get_code|run_fw_bw_and_get_code",
    "counters of TorchInductor": r"metrics\.|counters\[.inductor|generated_kernel_count",
    "settings of TorchInductor": r"config\.patch|torch\._inductor\.config|inductor_config",
    "internals of TorchInductor": r"torch\._inductor\.|V\.graph|InductorTest|lowering|ir\.",
}


def rerouted() -> None:
    """Puts this backend in the place of TorchInductor."""
    import torch._inductor.compile_fx as inductor

    from ferroflux.backend import ferroflux

    def compile_fx(model_, example_inputs_, *rest, **keywords):
        return ferroflux(model_, example_inputs_)

    inductor.compile_fx = compile_fx


# Names of torch's own test helpers that test files of earlier versions import.
EARLIER = {
    "torch.testing._internal.inductor_utils": {"HAS_CUDA": "HAS_CUDA_AND_TRITON"},
}


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

    def __init__(self) -> None:
        super().__init__()
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
        for why, pattern in OWN.items():
            if re.search(pattern, source(test)):
                self.kinds[why].append(test.id())
                return
        self.kinds["failed"].append(test.id())
        said = " ".join(str(err[1]).split("To execute this test")[0].split())
        print(f"FAILED {test.id()}: {err[0].__name__}: {said[:300]}", flush=True)


def source(test) -> str:
    import inspect

    try:
        return inspect.getsource(getattr(test, test._testMethodName))
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
    parser.add_argument("--limit", type=int)
    parser.add_argument("--json")
    args = parser.parse_args()
    sys.argv = sys.argv[:1]
    folder = os.path.join(args.checkout, "test")
    sys.path[:0] = [folder, os.path.dirname(os.path.join(args.checkout, args.file))]
    with_earlier_names()
    rerouted()
    import importlib.util

    spec = importlib.util.spec_from_file_location("pytorch_suite", os.path.join(args.checkout, args.file))
    module = importlib.util.module_from_spec(spec)
    sys.modules["pytorch_suite"] = module
    spec.loader.exec_module(module)
    tests = [t for t in flat(unittest.defaultTestLoader.loadTestsFromModule(module)) if re.search(args.k, t.id())]
    results = Results()
    for test in tests[: args.limit]:
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
