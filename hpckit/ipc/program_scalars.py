"""Steps and metrics of a program in the event files that it writes for TensorBoard."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

PATTERN = "*events.out.tfevents.*"
"""Pattern of the names of event files."""
_SCALARS = "scalars"  # the plugin of SummaryWriter.add_scalar
_OTHER_SPLITS = frozenset(("val", "valid", "validation", "eval", "evaluation", "test", "dev"))
_WORD = re.compile(r"[a-z0-9]+")


def loss_tag(tags: Iterator[str] | set[str]) -> str | None:
    """Returns the tag of the training loss among `tags`: the shortest one with the word "loss" and
    no word such as "val"; None if there is none."""
    found = [tag for tag in tags if _is_loss(tag)]
    return min(found, key=lambda tag: (len(tag), tag), default=None)


def _is_loss(tag: str) -> bool:
    words = set(_WORD.findall(tag.lower()))
    return "loss" in words and not words & _OTHER_SPLITS


class ScalarFiles:
    """The scalars that a program appends to event files in a folder and the folders below it.

    Files of earlier attempts are left out. A new file with steps that the program repeats after a
    restart is read like any other.

    Args:
        folder: it need not exist yet.

    Raises:
        ImportError: TensorBoard is not installed.
    """

    def __init__(self, folder: Path) -> None:
        from google.protobuf.message import DecodeError  # of tensorboard
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.compat.tensorflow_stub.errors import OpError

        self._load: Any = EventFileLoader
        self._damages = (DecodeError, OpError, OSError, ValueError)
        self._folder = folder
        self._known = set(self._paths())
        self._loaders: dict[Path, Any] = {}
        self._tags: set[str] = set()

    def read(self) -> Iterator[tuple[int, Mapping[str, float]]]:
        """Yields the new steps of each file, in the order of their steps, with their scalars by
        tag. The training loss is also there as `loss`."""
        for path in self._paths():
            if path not in self._known:
                self._known.add(path)
                self._loaders[path] = self._load(str(path))
        for path, loader in list(self._loaders.items()):
            try:
                yield from self._steps_of(loader)
            except self._damages as error:
                log.warning("%s: is not read any more, because it is damaged: %s", path, error)
                del self._loaders[path]

    def _paths(self) -> list[Path]:
        return sorted(self._folder.rglob(PATTERN)) if self._folder.is_dir() else []

    def _steps_of(self, loader: Any) -> Iterator[tuple[int, Mapping[str, float]]]:
        steps: dict[int, dict[str, float]] = {}
        for event in loader.Load():
            for value in event.summary.value:
                number = _number(value)
                if number is not None:
                    steps.setdefault(int(event.step), {})[value.tag] = number
                    self._tags.add(value.tag)
        tag = loss_tag(self._tags)
        for step, values in sorted(steps.items()):
            loss = {"loss": values[tag]} if tag is not None and tag in values else {}
            yield step, values | loss


def _number(value: Any) -> float | None:
    """Returns the number in a value of a summary, or None if it is no scalar."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if not value.HasField("tensor") or len(value.tensor.float_val) != 1:
        return None
    plugin = value.metadata.plugin_data.plugin_name
    return float(value.tensor.float_val[0]) if plugin in ("", _SCALARS) else None
