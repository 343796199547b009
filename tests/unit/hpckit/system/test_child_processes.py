"""Children that die with their parent, and the end of those that did not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from hpckit.system import child_processes
from hpckit.system.child_processes import (
    kill_all,
    kill_strays,
    kill_tree,
    spawn,
    spawn_piped,
)
from tests.unit.hpckit.specs_and_processes import is_gone, line_of, python, until

CHAIN = """
import os, sys, time; from pathlib import Path; from hpckit.system.child_processes import spawn
folder, depth, code = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if depth:
    spawn([sys.executable, "-c", code, str(folder), str(depth - 1), code], os.environ,
          folder / "output")
draft = folder / f".{depth}"
draft.write_text(str(os.getpid()))
draft.rename(folder / str(depth))
time.sleep(600)
"""
SPREADING = """
import subprocess, sys
print("up", flush=True)
for _ in range(300):
    subprocess.Popen(["/bin/sleep", "600"], stdout=sys.stderr)
input()
"""
SWEEP = """
import sys; from pathlib import Path; from hpckit.system.child_processes import kill_strays
print(*kill_strays(Path(sys.argv[1])), flush=True)
"""
STAY = "print('up', flush=True); input()"
PIPES = """
import fcntl, os; from pathlib import Path
from hpckit.system.child_processes import enlarge_pipe, kill_all, spawn_piped
if os.getuid() == 0: os.setuid(65534)  # root may have pipes of any size
children = [
    spawn_piped(["/bin/sleep", "600"], {}, Path(os.devnull), is_written_to=True) for _ in range(40)
]
ends = [os.pipe()[1] for _ in range(80)]
for end in ends: enlarge_pipe(end)
kill_all(children)
sizes = [fcntl.fcntl(end, fcntl.F_GETPIPE_SZ) for end in ends]
print(max(sizes) == 1 << 20, min(sizes) < 1 << 20, flush=True)
"""


def test_a_killed_parent_takes_child_and_grandchild_with_it(tmp_path: Path) -> None:
    with python(CHAIN, tmp_path, 2, CHAIN) as parent:
        until(lambda: all((tmp_path / str(depth)).exists() for depth in range(3)))
        child, grandchild = (int((tmp_path / name).read_text()) for name in ("1", "0"))
        assert not is_gone(child)
        assert not is_gone(grandchild)
        parent.kill()
        parent.wait()
        until(lambda: is_gone(child) and is_gone(grandchild))


def test_a_child_has_its_own_session_the_given_environment_and_no_input(tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.write_text("before\n")
    code = "import os, sys; print(os.getsid(0) == os.getpid(), os.environ['X'], sys.stdin.read())"
    child = spawn([sys.executable, "-c", code], {**os.environ, "X": "y"}, output)
    assert child.wait() == 0
    assert output.read_text() == "before\nTrue y \n"


def test_a_piped_child_leaves_only_its_errors_in_the_file(tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    code = "import sys; print('out'); print('err', file=sys.stderr)"
    child = spawn_piped([sys.executable, "-c", code], os.environ, errors)
    assert child.communicate()[0] == b"out\n"
    assert errors.read_text() == "err\n"


def test_a_piped_child_can_be_written_to(tmp_path: Path) -> None:
    code = "import sys; print(sys.stdin.read().upper())"
    command = [sys.executable, "-c", code]
    child = spawn_piped(command, os.environ, tmp_path / "errors", is_written_to=True)
    assert child.communicate(b"in")[0] == b"IN\n"


def test_kill_all_ends_the_living_and_passes_over_the_dead(tmp_path: Path) -> None:
    living = spawn(["sleep", "600"], os.environ, tmp_path / "output")
    dead = spawn(["false"], os.environ, tmp_path / "output")
    dead.wait()
    kill_all([living, dead])
    assert (living.returncode, dead.returncode) == (-signal.SIGKILL, 1)


def test_a_sweep_kills_exactly_what_carries_the_run(tmp_path: Path) -> None:
    mine, other = {"HPCKIT_RUN": str(tmp_path)}, {"HPCKIT_RUN": f"{tmp_path}-other"}
    with (
        python(STAY, env=mine) as first,
        python(STAY, env=mine) as second,
        python(STAY, env=other) as another,
        python(STAY) as stranger,
    ):
        everyone = [first, second, another, stranger]
        assert [line_of(process) for process in everyone] == ["up"] * 4
        assert sorted(kill_strays(tmp_path)) == sorted([first.pid, second.pid])
        assert first.wait() == second.wait() == -signal.SIGKILL
        assert another.poll() is stranger.poll() is None
        assert kill_strays(tmp_path) == []


def test_a_sweep_of_one_node_spares_the_others(tmp_path: Path) -> None:
    run = {"HPCKIT_RUN": str(tmp_path)}
    with (
        python(STAY, env={**run, "HPCKIT_NODE": "1"}) as mine,
        python(STAY, env={**run, "HPCKIT_NODE": "11"}) as other,
        python(STAY, env=run) as nobodys,
    ):
        everyone = [mine, other, nobodys]
        assert [line_of(process) for process in everyone] == ["up"] * 3
        assert kill_strays(tmp_path, 1) == [mine.pid]
        assert mine.wait() == -signal.SIGKILL
        assert other.poll() is nobodys.poll() is None


def test_a_user_has_many_piped_children_and_pipes_that_are_larger_as_far_as_possible() -> None:
    """The pipes of a user may take 64 MiB: enlarged, those of a 33rd child were refused."""
    with python(PIPES) as user:
        assert line_of(user) == "True True"


def test_what_starts_processes_all_the_time_is_killed_with_all_of_them(tmp_path: Path) -> None:
    try:
        with python(SPREADING, env={"HPCKIT_RUN": str(tmp_path)}) as top:
            assert line_of(top) == "up"
            kill_tree(psutil.Process(top.pid))
            assert top.wait() == -signal.SIGKILL
        until(lambda: all(is_gone(one.pid) for one in child_processes.strays(tmp_path)))
    finally:
        kill_strays(tmp_path)


def test_a_sweep_spares_itself_and_those_it_descends_from(tmp_path: Path) -> None:
    env = {**os.environ, "HPCKIT_RUN": str(tmp_path)}
    with python(STAY, env=env) as stray:
        assert line_of(stray) == "up"
        done = subprocess.run(
            ["sh", "-c", '"$@"; echo "still here"', "sh", sys.executable, "-c", SWEEP, tmp_path],
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        assert stray.wait() == -signal.SIGKILL
    assert done.stdout.splitlines() == [str(stray.pid), "still here"]


def test_a_stray_that_dies_by_itself_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killing a torchrun kills its workers, which are on the list too: that race cannot be forced,
    so the look is made before the death here."""
    with python(STAY, env={"HPCKIT_RUN": str(tmp_path)}) as stray:
        assert line_of(stray) == "up"
        seen = child_processes.strays(tmp_path)
        assert [process.pid for process in seen] == [stray.pid]
    assert not psutil.pid_exists(stray.pid)
    monkeypatch.setattr(child_processes, "strays", lambda run, node, spared: seen)
    assert kill_strays(tmp_path) in ([], [stray.pid])
