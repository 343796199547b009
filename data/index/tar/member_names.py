"""webdataset's rule for which tar members form a sample.

Taken from `webdataset/tariterators.py` (`base_plus_ext`, `tar_file_iterator`, `group_by_keys`):
the key is the path up to the first dot of the basename, the extension is the rest, lower-cased.
"""

import re

_BASE_PLUS_EXT = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
_META = re.compile(r"__[^/]*__($|/)")

# Fields that webdataset sets in a sample: an extension of that name would overwrite them.
RESERVED_EXTENSIONS = frozenset({"__key__", "__url__", "__local_path__", "__bad__"})


def split_name(name: str) -> tuple[str, str] | None:
    """Return a member name as (key, lower-case extension); None if it belongs to no sample."""
    base = name.rfind("/") + 1
    dot = name.find(".", base)
    if dot > base and "\n" not in name and name[:2] != "__":  # as in nearly all names
        return name[:dot], name[dot + 1 :].lower()
    if is_meta(name):
        return None
    match = _BASE_PLUS_EXT.match(name)
    return (match.group(1), match.group(2).lower()) if match else None


def is_meta(name: str) -> bool:
    """Return whether webdataset skips this member as metadata (`__x__` or anything under
    `__x__/`)."""
    return _META.match(name) is not None
