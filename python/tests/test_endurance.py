"""Many threads, sizes, errors and compilations: a sample of what ``tools/endurance.py`` runs in full.

Each trial has a process of its own: its memory and its threads are judged, and other tests leave traces in both.
"""

import pathlib
import re
import subprocess
import sys

import pytest

PATH = pathlib.Path(__file__).parents[1] / "tools" / "endurance.py"
TRIALS = re.search(r"^TRIALS = \((.*?)\)", PATH.read_text(), re.M)[1].split(", ")


@pytest.mark.parametrize("trial", TRIALS)
def test_trial(trial):
    command = [sys.executable, str(PATH), "--only", trial, "--part", "0.05"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0 and ran.stdout.startswith(trial), ran.stdout + ran.stderr
