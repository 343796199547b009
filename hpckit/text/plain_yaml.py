"""Loads YAML documents of plain data without aliases, such as the spec of a run. A command that
reads none does not import this module: PyYAML costs 10 ms of processor time."""

from __future__ import annotations

from typing import Any

import yaml


class _PlainLoader(yaml.SafeLoader):
    """A YAML loader that refuses aliases, because a few lines of them can expand to gigabytes. No
    spec is written with aliases."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias, which a spec may not have")
        return super().compose_node(parent, index)


_FAST_LOADER: Any = getattr(yaml, "CSafeLoader", None)
"""libyaml's loader, which takes a tenth of the time; None: PyYAML was built without libyaml."""
_MAX_DEPTH = 100
"""The depth of nesting up to which libyaml's loader is used, as that recurses on the stack of C."""


def load_plain(text: str) -> Any:
    """Returns the value of a YAML document without aliases.

    Raises:
        yaml.YAMLError: it is not valid, or has an alias.
    """
    if _FAST_LOADER is not None and _is_plain(text):
        return yaml.load(text, _FAST_LOADER)
    return yaml.load(text, _PlainLoader)


def _is_plain(text: str) -> bool:
    """Returns whether libyaml's loader may load a text: it is one valid document, flat enough and
    without aliases. What is not, `_PlainLoader` refuses, with its own words."""
    depth, documents = 0, 0
    try:
        for event in yaml.parse(text, _FAST_LOADER):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            documents += isinstance(event, yaml.DocumentStartEvent)
            if depth > _MAX_DEPTH or documents > 1 or isinstance(event, yaml.AliasEvent):
                return False
    except yaml.YAMLError:
        return False
    return True
