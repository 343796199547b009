"""pydantic without the search for its plug-ins, of which nothing here needs one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

_SEARCH = "pydantic.plugin._loader"
"""pydantic's module with the function `get_plugins`."""


@contextmanager
def without_plugin_search() -> Iterator[None]:
    """Has a module that finds no plug-in stand for the one that searches them, in the block and
    unless that is imported already: its imports (`importlib.metadata` and with it `email`) take
    10 ms of processor time, and the search reads the metadata of all installed packages."""
    none = ModuleType(_SEARCH)
    vars(none)["get_plugins"] = tuple
    used = sys.modules.setdefault(_SEARCH, none)
    try:
        yield
    finally:
        if used is none:
            del sys.modules[_SEARCH]
