"""Many threads, sizes, errors and compilations: a sample of what ``tools/endurance.py`` runs in full."""

import importlib.util
import pathlib

import pytest

PATH = pathlib.Path(__file__).parents[1] / "tools" / "endurance.py"
spec = importlib.util.spec_from_file_location("endurance", PATH)
endurance = importlib.util.module_from_spec(spec)
spec.loader.exec_module(endurance)


@pytest.mark.parametrize("trial", [t.__name__ for t in endurance.TRIALS])
def test_trial(trial):
    getattr(endurance, trial)(0.05)
