"""Packs shards before a run starts, and decides where that is allowed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hpckit.config.config_trees import conf_dir
from hpckit.config.spec import PackSpec

_STDLIB = "stdlib"
"""Name of the source, and of the option of `data` that uses it."""
_NOT_A_FOLDER = ("*", "?", "[", "{", "://")


def packing_problem(pack: PackSpec, shards: str) -> str | None:
    """Returns the reason why nothing may be packed into `shards`, an absolute path or a URL, or
    None.

    Python's sources are packed only into the place that their own option names: a user who names
    another place has their own shards, and would train on the wrong data if these are missing.
    """
    if pack.source == _STDLIB:
        if Path(shards) == (place := stdlib_place()):
            return None
        return (
            f"there is no folder {shards}, and data=stdlib packs Python's standard library into "
            f"{place} alone; give data=shards data.shards=... to train on shards of your own"
        )
    if shards.endswith(".tar") or any(mark in shards for mark in _NOT_A_FOLDER):
        return (
            f"{shards} is not the name of a folder to pack {pack.source} into; give one, or "
            "data.pack=null if these shards exist"
        )
    return None


def is_stdlib_by_default(pack: PackSpec | None, shards: str) -> bool:
    """Returns whether `data` is left at its default, `data=stdlib` in the place that it names."""
    return pack is not None and pack.source == _STDLIB and Path(shards) == stdlib_place()


def stdlib_place() -> Path:
    """Returns the path of the shards of Python's standard library, by the config of
    `data=stdlib`."""
    from omegaconf import OmegaConf  # most runs have shards of their own

    named = OmegaConf.load(conf_dir() / "data" / f"{_STDLIB}.yaml")
    return Path.cwd() / Path(str(OmegaConf.select(named, "shards"))).expanduser()


def pack_shards(pack: PackSpec, out: Path, progress: Callable[[int, int], None] | None) -> None:
    """Packs the source of `pack` into WebDataset shards in the folder `out`.

    Raises:
        DataError: the source is missing or holds nothing to pack.
    """
    from data import pack_folder, python_stdlib

    if pack.source == _STDLIB:
        source, exclude = python_stdlib()
    else:
        source, exclude = Path(pack.source), ()
    pack_folder(
        source,
        out,
        suffixes=pack.suffixes,
        exclude=[*exclude, *pack.exclude],
        samples_per_shard=pack.samples_per_shard,
        progress=progress,
    )
