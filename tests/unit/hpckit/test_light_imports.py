"""What starts a run imports neither torch nor what only its later parts need: each import is time
that every node spends before the first step. A command that only reads imports what it needs, as
its user waits for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from data import pack_folder

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


READING = """
import os, sys
from hpckit.cli import main
def end(status):
    loaded = sorted(set(sys.modules) & set({heavy}))
    print(*loaded, file=sys.stderr)
    real(status if not loaded else 99)
real, os._exit = os._exit, end
sys.argv = ["hpckit", *{words}]
main()
"""
NEVER = ("torch", "numpy", "hydra", "omegaconf", "rich.progress", "importlib.metadata")
WITHOUT_SPEC = ("hpckit.config.spec", "hpckit.events.schema", "psutil", "yaml")


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        (["--help"], (*NEVER, *WITHOUT_SPEC, "pydantic")),
        (["logs", "t-1a2b3c4d"], (*NEVER, *WITHOUT_SPEC)),
        (["status"], NEVER),
    ],
    ids=["help", "logs", "status"],
)
def test_a_command_that_reads_imports_what_it_needs(
    tmp_path: Path, words: list[str], heavy: tuple[str, ...]
) -> None:
    run = tmp_path / "runs" / "t-1a2b3c4d"
    (run / "submissions" / "001").mkdir(parents=True)
    (run / "logs").mkdir()
    (run / "logs" / "supervisor.log").write_text("a line\n")
    program = READING.format(heavy=heavy, words=words)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


LAUNCHING = """
import sys
from hpckit.submit.composition.composition_process import begin_composition
composition = begin_composition({words})
from hpckit.submit.launch_command import main
status = main({words}, composition)
print(*sorted(set(sys.modules) & set({heavy})), file=sys.stderr)
sys.exit(status)
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="it composes beside the command")
def test_a_dry_run_of_indexed_shards_imports_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("x")
    pack_folder(tmp_path / "texts", tmp_path / "shards")
    words = ["--dry-run", "model=gpt_nano", "data=shards", "data.shards=shards", "root=runs"]
    program = LAUNCHING.format(words=words, heavy=(*NEVER, "submitit", "yaml", "jinja2"))
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "\n")
    assert "1 sample in 1 shard" in done.stdout
