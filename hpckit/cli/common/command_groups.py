"""Command groups whose commands are imported when the group is used, and not by every command of
the program, and groups with a default command, whose name need not be typed."""

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


class DefaultCommandGroup(TyperGroup):
    """A group that passes arguments to the command `default` if they do not begin with a
    command."""

    default: str
    is_default_alone = False
    """Whether the default command is also run without any arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_command = args and (args[0] in self.commands or args[0] == "--help")
        if not is_command and (args or self.is_default_alone):
            args = [self.default, *args]
        return super().parse_args(ctx, args)
