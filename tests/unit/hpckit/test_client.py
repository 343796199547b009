"""The client does nothing where hpckit has not started the program, and imports no torch."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.unit.hpckit.specs_and_processes import CHECKOUT

ALONE = """
import sys
from hpckit import client
client.step(1, loss=2.0)
client.checkpointed(1)
client.finished()
with client.validating(), client.saving():
    pass
assert not client.is_launched() and not client.should_stop() and client.deadline_s() is None
loaded = {"torch", "numpy", "pydantic", "checkpointing", "data"} & set(sys.modules)
assert not loaded, loaded
"""


def test_without_hpckit_it_does_nothing() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("HPCKIT_")}
    subprocess.run([sys.executable, "-c", ALONE], check=True, cwd=CHECKOUT, env=env)
