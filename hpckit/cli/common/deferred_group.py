"""Command groups whose commands are imported when the group is used, and not by every command of
the program."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup


class DeferredGroup(TyperGroup):
    """A group that imports its commands at the first look at them."""

    functions: ClassVar[Mapping[str, str]]
    """Where the function of each command is, by the name of the command: "module:function"."""
    _imported: MutableMapping[str, Any] | None = None

    @property
    def commands(self) -> MutableMapping[str, Any]:
        if self._imported is None:
            app = typer.Typer()
            app.callback()(_nothing)  # else one command alone would be no group
            for name, place in self.functions.items():
                module, _, function = place.partition(":")
                app.command(name)(getattr(import_module(module), function))
            group: Any = typer.main.get_command(app)
            self._imported = group.commands
        return self._imported

    @commands.setter
    def commands(self, given: Any) -> None:
        """Typer sets the commands that the group was made with: none."""


def _nothing() -> None:
    pass
