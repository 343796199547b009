"""Stacks as faulthandler and py-spy write them."""

from __future__ import annotations

from hpckit.hangs.hang_snapshot import StackFrame
from hpckit.hangs.stack_text import main_stack, parse_threads, render_threads

FAULTHANDLER = """
process 4711 was here before
Thread 0x00007f430601d6c0 (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 359 in wait
  File "/usr/lib/python3.12/threading.py", line 1032 in _bootstrap

Current thread 0x00007f4306a99b80 (most recent call first):
  Garbage-collecting
  File "/home/u/my data.py", line 88 in next
  File "/home/u/train.py", line 30 in <module>
"""
PY_SPY = """Process 4711: python train.py
Python v3.12.3 (/usr/bin/python3.12)

Thread 4712 (idle): "Thread-1"
    wait (threading.py:359)
    _bootstrap (threading.py:1032)
Thread 4711 (active): "MainThread"
    next (/home/u/my data.py:88)
    <module> (/home/u/train.py:30)
"""
MAIN = (
    StackFrame("/home/u/my data.py", 88, "next"),
    StackFrame("/home/u/train.py", 30, "<module>"),
)


def test_the_main_thread_is_found() -> None:
    assert main_stack(FAULTHANDLER) == MAIN
    assert main_stack(PY_SPY) == MAIN
    assert len(parse_threads(FAULTHANDLER)) == 2


def test_of_several_dumps_the_last_one_counts() -> None:
    later = 'Current thread 0x1 (most recent call first):\n  File "x.py", line 1 in f\n'
    assert main_stack(FAULTHANDLER + later) == (StackFrame("x.py", 1, "f"),)


def test_what_is_no_stack_has_none() -> None:
    for text in ("", "process 5 does not answer: it is stopped\n", "Thread 1\n  <no Python frame>"):
        assert main_stack(text) == ()


def test_what_is_written_is_read() -> None:
    assert main_stack(render_threads([("MainThread of rank 3", MAIN)])) == MAIN
