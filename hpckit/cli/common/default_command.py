"""Command groups with a default command, whose name need not be typed."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


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
