"""Programs of several processes: DDP, `fully_shard`, `parallelize_module` and functional collectives, over gloo, and over NCCL where there
are two CUDA devices."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

HERE = pathlib.Path(__file__).parent
# The operators that torch runs in each case; without any the exchanges are outside of the captured graphs.
CASES = {
    "ddp": [],
    "ddp_in_buckets": [],
    "ddp_captured_backward": ["all_reduce"],
    "fully_shard": [],
    "tensor_parallel": ["all_reduce", "wait_tensor"],
    "sequence_parallel": ["all_gather_into_tensor", "reduce_scatter_tensor", "wait_tensor"],
    "collectives": ["all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast"],
    "unlike_ranks": ["all_reduce", "all_gather_into_tensor"],
    "unlike_graphs": ["all_reduce", "all_gather_into_tensor"],
}
# What compiled code makes by itself on NCCL's communicators, and what is only run there.
TAKEN = ["ddp_captured_backward", "tensor_parallel", "sequence_parallel", "collectives", "unlike_graphs", "ended_group", "recorded"]
LEFT = {"ddp": [], "fully_shard": [], "unlike_ranks": ["all_reduce", "all_gather_into_tensor"]}


@pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="torch without gloo")
@pytest.mark.parametrize("case", CASES)
def test_two_processes(case):
    for said in of_two_processes(case):
        for name in CASES[case]:
            assert name in said


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch sees fewer than two CUDA devices")
@pytest.mark.parametrize("case", [*TAKEN, *LEFT])
def test_two_devices(case):
    for said in of_two_processes(case, "cuda"):
        wanted = LEFT.get(case, [])
        assert all(name in said for name in wanted)
        assert wanted or not said, "compiled code makes all exchanges"


def of_two_processes(case, *device):
    """What torch runs of a case in each of two processes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    settings = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, str(HERE / "ranks.py"), case, *device], env=settings, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-4000:]
    for rank in (0, 1):
        said = re.search(rf"rank {rank}: (\d+) graphs; ([^\n]*(?:\n  .*)*)", done.stdout)
        assert said, done.stdout[-2000:]
        assert int(said[1]) > 0
        yield said[2]
