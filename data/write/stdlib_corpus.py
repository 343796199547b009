"""The Python standard library as a corpus: real text that is on every machine."""

import sysconfig
from pathlib import Path

_EXCLUDE = (
    "__pycache__",
    "__phello__",  # webdataset takes `__x__/` for metadata
    "config-*",
    "dist-packages",
    "idle_test",
    "idlelib",
    "lib-dynload",
    "site-packages",
    "test",
    "tests",
    "turtledemo",
)


def python_stdlib() -> tuple[Path, tuple[str, ...]]:
    """Return the folder of the running Python's standard library, and what `pack_folder` should
    exclude.

    With `suffixes=(".py",)` this gives several hundred modules of source text.
    """
    return Path(sysconfig.get_path("stdlib")), _EXCLUDE
