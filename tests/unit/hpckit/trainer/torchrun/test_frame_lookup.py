"""The import of torch searches neither modules nor source lines for frames."""

from __future__ import annotations

import inspect
import sys
from types import FrameType

import pytest
import torch

from hpckit.trainer.torchrun.frame_lookup import module_of, quick_frame_lookup


def here() -> FrameType:
    return sys._getframe()


def test_a_frame_has_its_module_its_file_and_its_line_as_before() -> None:
    frame = here()  # that has ended, and so stays at its line
    before, its_module = inspect.getframeinfo(frame), inspect.getmodule(frame)
    with quick_frame_lookup():
        found = inspect.getframeinfo(frame)
        assert (found.filename, found.lineno) == (before.filename, before.lineno)
        assert found.function == before.function
        assert found.code_context is None
        assert inspect.getmodule(frame) is its_module is sys.modules[__name__]
        assert inspect.getmodule(here) is its_module, "of others than frames as before"
        assert inspect.getframeinfo(frame, 1).code_context
    assert inspect.getframeinfo(frame).code_context


def test_what_a_module_took_of_inspect_answers_as_before_after_the_import() -> None:
    """As torch.distributed.elastic.timer takes getframeinfo."""
    with quick_frame_lookup():
        getframeinfo, getmodule = inspect.getframeinfo, inspect.getmodule
    frame = eval("(lambda: sys._getframe())()", vars(sys.modules[__name__]))
    assert getframeinfo(frame) == inspect.getframeinfo(frame)
    assert getmodule(frame) is inspect.getmodule(frame) is None, "its file is not that of a module"
    assert getframeinfo(here()).code_context


def test_code_of_no_module_is_searched_for() -> None:
    space = {"sys": sys, "__name__": __name__}
    frame = eval("(lambda: sys._getframe())()", space)
    assert module_of(frame) is None, "its globals are not those of the module of that name"
    with quick_frame_lookup():
        assert inspect.getmodule(frame) is None


def test_torch_registers_an_operator_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the paths of all modules are resolved")

    torch.library.define("hpckit_frame_lookup::one", "(Tensor x) -> Tensor")
    monkeypatch.setattr(inspect, "getabsfile", refuse)
    with quick_frame_lookup():
        torch.library.register_fake("hpckit_frame_lookup::one", lambda x: x)
