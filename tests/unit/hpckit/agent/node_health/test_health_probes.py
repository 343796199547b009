"""Looking at a real node, with tools that are missing, fail or hang."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from hpckit.agent.node_health.health_probes import (
    free_bytes,
    node_problems,
    output,
    probe_in_parallel,
    probe_node,
    read,
    write,
)
from hpckit.agent.node_health.health_rules import NodeFacts, ProbeFault, ProgramOutput
from hpckit.rundir.directory import RunDir
from tests.descriptors import opened
from tests.unit.hpckit.specs_and_processes import is_gone, make_spec, until

HEALTHY = """#!/bin/sh
case "$1" in
--query-gpu=*) echo "0, GPU-1, 00000000:3B:00.0, 0, No" ;;
*) echo "GPU-1, 0, 0" ;;
esac
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder that has programs, but for the shell's."""
    found = tmp_path / "bin"
    found.mkdir()
    monkeypatch.setenv("PATH", str(found))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return found


def put(tools: Path, name: str, text: str) -> None:
    (tools / name).write_text(text)
    (tools / name).chmod(0o755)


def found_on(tmp_path: Path, **changes: Any) -> list[str]:
    run, shards = RunDir(tmp_path / "run"), tmp_path / "shards"
    for folder in (run.path, shards):
        folder.mkdir(exist_ok=True)
    values = {"cluster.device": "cuda", "data.shards": str(shards / "{0..9}.tar")}
    values |= {f"health.{key}": value for key, value in changes.items()}
    return node_problems(make_spec(values), run)


def test_a_node_without_tools_is_healthy(tmp_path: Path, tools: Path) -> None:
    assert found_on(tmp_path) == []


def test_a_node_with_tools_is_looked_at_by_them(tmp_path: Path, tools: Path) -> None:
    put(tools, "nvidia-smi", HEALTHY)
    put(tools, "dmesg", "#!/bin/sh\necho '[1.2] eth0: link is up'\n")
    assert found_on(tmp_path) == []
    put(tools, "dmesg", "#!/bin/sh\necho '[1.2] NVRM: Xid (PCI:0000:3b:00): 64, x'\n")
    assert found_on(tmp_path) == [
        "kernel log: Xid 64 of the GPU at 0:3b:00: memory remapping failed"
    ]
    put(tools, "dmesg", "#!/bin/sh\necho 'read kernel buffer failed' >&2\nexit 1\n")
    put(tools, "nvidia-smi", "#!/bin/sh\necho 'NVIDIA-SMI has failed because'\nexit 9\n")
    assert found_on(tmp_path) == ["nvidia-smi: exit status 9: NVIDIA-SMI has failed because"]


def test_a_tool_that_hangs_is_killed_and_holds_nothing_up(tmp_path: Path, tools: Path) -> None:
    pid = tmp_path / "pid"
    put(tools, "nvidia-smi", f"#!/bin/sh\necho $$ > {pid}.$$\nexec /bin/sleep 1000\n")
    assert found_on(tmp_path, probe_s=3.0) == ["nvidia-smi: no answer within 3 s"]
    numbers = [int(path.suffix[1:]) for path in tmp_path.glob("pid.*")]
    assert len(numbers) == 2
    until(lambda: all(is_gone(number) for number in numbers))


@pytest.mark.parametrize(("device", "looks"), [("auto", False), ("cuda", True)])
def test_gpus_that_are_another_jobs_are_none_of_its_affair(
    tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch, device: str, looks: bool
) -> None:
    put(tools, "nvidia-smi", HEALTHY)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    facts = probe_node(make_spec({"cluster.device": device}, "slurm"), RunDir(tmp_path))
    assert (facts.gpus is not None) is looks


def test_a_folder_that_does_not_answer_holds_nothing_up(tmp_path: Path) -> None:
    never = threading.Event()
    found = probe_in_parallel({"dead": never.wait, "alive": lambda: 1}, 2.0)
    assert found == {"dead": ProbeFault("no answer within 2 s"), "alive": 1}
    never.set()


def test_what_is_missing_full_or_closed_is_told(tmp_path: Path, tools: Path) -> None:
    assert found_on(tmp_path) == []
    (tmp_path / "shards").rmdir()
    run = RunDir(tmp_path / "run")
    spec = make_spec(
        {
            "data.shards": str(tmp_path / "shards" / "a.tar"),
            "checkpoint.url": "/proc/store",
            "health.disk_free_gib": 1e9,
        }
    )
    told = node_problems(spec, run)
    assert told[0].startswith(f"disk of {run.path}: ")
    assert f"read {tmp_path}/shards: No such file or directory" in told
    assert any(line.startswith("write to /proc/store: ") for line in told)
    nothing = {"gpus": False, "ecc_errors": None, "xids": False, "disk_free_gib": None}
    nothing |= {"mounts": False}
    changes = {f"health.{key}": value for key, value in nothing.items()}
    assert probe_node(make_spec({"cluster.device": "cuda", **changes}), run) == NodeFacts()


def test_the_probes_leave_nothing_behind(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path / "will" / "be" / "made")
    read(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert opened(tmp_path) == 0
    assert free_bytes(tmp_path / "will" / "be" / "made") > 0


def test_a_program_that_is_not_there_is_no_fault() -> None:
    assert output(("hpckit-no-such-program",), 1.0) is None
    assert output(("sh", "-c", "echo a; echo b >&2; exit 3"), 60.0) == ProgramOutput(
        3, "a\n", "b\n"
    )
