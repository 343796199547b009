"""The classes of which the states of Megatron Energon's loaders consist, as plain values.

`save_state_rank` of such a loader returns dataclasses and dicts of classes of its own, and
`restore_state_rank` takes only these. A checkpoint holds plain values with the names of the classes
in the table here; nothing else is ever imported by a name from a checkpoint.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

from hpckit.trainer.errors import TrainingError

CLASSES = {
    "FlexState": ("state", "flavors.base_dataset"),
    "SavableDataLoaderState": ("savable_loader",),
    "SavableDatasetCheckpoint": ("savable_loader",),
    "SavableDatasetState": ("savable_loader",),
    "SystemRngState": ("rng",),
}
"""Names of the classes, with the modules of megatron.energon that may have them."""
_PACKAGE = "megatron.energon"
_OBJECT = "megatron.energon object"


def parts_of_object(value: Any) -> tuple[str, str, dict[str, Any]] | None:
    """Return a mark, the name and the fields of an object of a class in `CLASSES`; None if `value`
    is no such object."""
    kind = type(value)
    if kind.__name__ not in CLASSES or not kind.__module__.startswith(f"{_PACKAGE}."):
        return None
    if isinstance(value, dict):
        return _OBJECT, kind.__name__, dict(value)
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return _OBJECT, kind.__name__, fields


def is_object(value: Any) -> bool:
    """Return whether `value` is what `parts_of_object` has returned."""
    return type(value) is tuple and len(value) == 3 and value[0] == _OBJECT


def made_object(name: str, fields: dict[str, Any]) -> Any:
    """Return the object of these fields.

    Raises:
        TrainingError: Megatron Energon is not installed, or this release of it has no such class.
    """
    for module in CLASSES.get(name, ()):
        try:
            found = getattr(importlib.import_module(f"{_PACKAGE}.{module}"), name, None)
        except ImportError:
            continue
        if found is not None:
            return found(**fields)
    raise TrainingError(
        f"the state of the loader has a {name} of {_PACKAGE}, which is not installed or has no "
        "such class; install the release of megatron-energon with which the checkpoint was saved"
    )
