"""Plain values as an item of a Checkpointer's state."""

from __future__ import annotations

from typing import Any


class ValueItem:
    """An item that saves `value`, and sets `value` to what was loaded."""

    def __init__(self, value: dict[str, Any] | None = None) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.value = state_dict["value"]
