"""The content of the rendezvous store: keys, values, and pending requests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

Answer = Callable[..., None]
"""Called once with the fields of an answer as keywords."""


class KeyValueTable:
    """A table of keys and values, which are text, also for numbers."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._waiting: dict[str, list[tuple[Sequence[str], Answer]]] = defaultdict(list)
        # by their first missing key

    def do(self, request: dict[str, Any], answer: Answer) -> None:
        """Carries out a request as `hpckit.agent.rendezvous_store` describes it. A later call may
        answer a `get`.

        Raises:
            KeyError, TypeError, ValueError: the request is invalid.
        """
        match request["do"]:
            case "set":
                self._set(str(request["key"]), str(request["value"]))
                answer()
            case "add":
                key = str(request["key"])
                value = str(int(self._values.get(key, "0")) + int(request["by"]))
                self._set(key, value)
                answer(value=value)
            case "get":
                self._get([str(key) for key in request["keys"]], answer)
            case other:
                raise ValueError(f"do: {other!r}")

    def clear(self) -> None:
        """Removes all keys and pending requests."""
        self._values.clear()
        self._waiting.clear()

    def _set(self, key: str, value: str) -> None:
        self._values[key] = value
        for keys, answer in self._waiting.pop(key, ()):
            self._get(keys, answer)

    def _get(self, keys: Sequence[str], answer: Answer) -> None:
        missing = next((key for key in keys if key not in self._values), None)
        if missing is None:
            answer(values=[self._values[key] for key in keys])
        else:
            self._waiting[missing].append((keys, answer))
