"""What Hydra makes of overrides, as a process passes it to another one. It imports no Hydra."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class ComposedValues:
    """The values of overrides on a config tree."""

    values: dict[str, Any]
    refused: list[str]
    """Overrides that cannot be used, with the reason, a line each. `values` is without them."""

    def to_json(self) -> str:
        """Returns these values as JSON, which `ComposedValues.from_json` reads.

        Raises:
            TypeError, ValueError: there is a value that is not plain data, or a key that is no text
                and would come back as one.
        """
        text = json.dumps(asdict(self))
        if ComposedValues.from_json(text) != self:
            raise ValueError("the values are others as JSON")
        return text

    @staticmethod
    def from_json(text: str) -> ComposedValues:
        return ComposedValues(**json.loads(text))
