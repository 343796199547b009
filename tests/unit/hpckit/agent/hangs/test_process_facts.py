"""What the kernel says about processes, by real ones."""

from __future__ import annotations

import os

from hpckit.agent.hangs.process_facts import children_by_parent, name_of, process_facts
from hpckit.hangs.hang_snapshot import ProcessState
from tests.unit.hpckit.specs_and_processes import line_of, python

NAMED = """
from pathlib import Path
Path("/proc/self/comm").write_bytes(b"python-gr\\xc3\\xb6\\xc3\\x9fe-\\xc3")
print("up", flush=True)
input()
"""


def test_a_process_whose_name_ends_within_a_character_is_one_like_others() -> None:
    with python(NAMED) as process:
        assert line_of(process) == "up"
        assert name_of(process.pid).startswith("python-größe-")
        assert process.pid in children_by_parent()[os.getpid()]
        assert process_facts(process.pid).state is ProcessState.ALIVE
