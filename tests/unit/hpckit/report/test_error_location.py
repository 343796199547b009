from __future__ import annotations

from pathlib import Path

from hpckit.report.error_location import find_error_line

CODE = Path("/runs/t-1/submissions/002/code")
WORKER = f'  File "{CODE}/hpckit/trainer/worker.py", line 47, in main\n    find_entry(x)\n'
USER = f'  File "{CODE}/mycode/train.py", line 12, in main\n    step()\n'
OURS = f'  File "{CODE}/data/loader.py", line 9, in read\n    raise DataError\n'
TORCH = '  File "/venv/torch/x.py", line 3, in forward\n    f()\n'


def test_the_users_own_line_is_named_even_if_the_error_is_deeper() -> None:
    assert (
        find_error_line(f"Traceback:\n{WORKER}{USER}{OURS}{TORCH}", CODE)
        == "mycode/train.py:12, in main"
    )


def test_else_the_deepest_of_the_snapshot_else_the_deepest() -> None:
    assert find_error_line(f"{WORKER}{OURS}{TORCH}", CODE) == "data/loader.py:9, in read"
    assert find_error_line(TORCH, CODE) == "/venv/torch/x.py:3, in forward"
    assert find_error_line("ValueError: x", CODE) is None


def test_a_run_that_was_moved_or_is_mounted_elsewhere() -> None:
    assert (
        find_error_line(USER, Path("/mnt/runs/t-1/submissions/002/code"))
        == "mycode/train.py:12, in main"
    )
