"""What starts a run imports neither torch nor what only its later parts need: each import is time
that every node spends before the first step."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "zstandard", "fsspec", "hydra", "omegaconf", "rich", "tensorboard")


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("hpckit.agent.watchdog", HEAVY),
        ("hpckit.supervisor.supervisor", HEAVY),
        ("hpckit.submit.preparation", ("torch", "numpy", "zstandard", "fsspec", "rich")),
    ],
    ids=["watchdog", "supervisor", "submission"],
)
def test_the_start_of_a_run_imports_little(module: str, heavy: tuple[str, ...]) -> None:
    program = (
        f"import sys, {module}\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        f"assert not loaded & set({heavy}), loaded & set({heavy})\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
