"""Groups of commands of which most people mean one, and need not type its name."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


class DefaultCommandGroup(TyperGroup):
    """Takes what is no command for the words of `default`."""

    default: str
    is_default_alone = False
    """Whether that is meant by no words at all, too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_command = args and (args[0] in self.commands or args[0] == "--help")
        if not is_command and (args or self.is_default_alone):
            args = [self.default, *args]
        return super().parse_args(ctx, args)
