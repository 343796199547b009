"""What the rendezvous store holds: keys, values, and who waits for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

Answer = Callable[..., None]
"""Is called once, with what there is to say by keyword."""


class KeyValueTable:
    """Values are text, of numbers too."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._waiting: dict[str, list[tuple[Sequence[str], Answer]]] = defaultdict(list)
        # by the first key that is not there

    def do(self, request: dict[str, Any], answer: Answer) -> None:
        """As `hpckit.agent.rendezvous_store` describes them. A `get` may be answered by a later
        call.

        Raises:
            KeyError, TypeError, ValueError: it is no request.
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
        """Nothing is there any more, and nobody waits."""
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
