"""Files and folders on NFS that somebody removes, replaces or takes away under readers and writers
of a store."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from checkpointing.errors import DamagedError, StoreError
from checkpointing.storage.posix.posix_storage import PosixStorage
from checkpointing.store import catalog
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.store import Store
from tests.services import nfs_control
from tests.services.nfs_control import NFS, SECOND
from tests.services.nfs_store_calls import CaughtCalls, Hook, Once
from tests.services.nfs_store_saves import KEPT, RUN, big_tensors, check, populate, save, values
from tests.unit.checkpointing.store import saves

# from the third on the first mount is of no use any more
SCENARIOS = ("reads_beside_changes", "saves_beside_changes", "export_made_anew", "broken_disk")
Change = Callable[[Path], None]  # given the store's root as the second client has it


@big_tensors()
def reads_beside_changes() -> dict[str, str]:
    """Another client changes the packs just before one of them is read: how each read ended."""
    changes: dict[str, Change] = {
        "removed": _remove_packs,
        "same file": _copy_packs,
        "other file": _blank_packs,
        "folder": _replace_packs,
    }
    return {
        f"{name}, {when}": _read_beside(f"read-{name.split()[0]}-{when}", when, change)
        for name, change in changes.items()
        for when in ("open", "preadv")
    }


@big_tensors()
def saves_beside_changes() -> dict[str, str]:
    """Another client changes folders under a save: how each ended."""
    moments: dict[str, tuple[str, Change]] = {
        "pack's folder removed": ("create .*packs/", _remove_empty),
        "pack's file removed": ("fsync .*packs/.*tmp", _remove_temporaries),
        "packs replaced": ("link .*packs/", _replace_packs),
        "run's folder removed": (
            "create .*parts/",
            lambda root: shutil.rmtree(root / "runs/a/parts"),
        ),
        "manifest's file removed": ("link .*steps/", _remove_temporaries),
    }
    ends = {}
    for number, (name, (moment, change)) in enumerate(moments.items()):
        place = f"save-{number}"
        populate(NFS / place)
        ends[name] = _save(NFS / place, Once(moment, partial(change, SECOND / place)))
        check(SECOND / place, *KEPT, 3)
    return ends


@big_tensors()
def export_made_anew() -> dict[str, str]:
    """The server comes back without its file system, later with it: clients have to mount anew."""
    for name in ("read", "save", "later"):
        populate(NFS / f"anew-{name}")
    ends = {"save": _save(NFS / "anew-save", Once("link .*packs/", nfs_control.lose_disk))}
    ends["read"] = _read(NFS / "anew-read", lambda call: None)
    nfs_control.find_disk()
    ends["afterwards"] = _save(NFS / "anew-later", lambda call: None)
    mounted = nfs_control.second_client()
    for name in ("read", "save", "later"):
        check(mounted / f"anew-{name}", *KEPT)
        ends[f"{name}, mounted anew"] = _save(mounted / f"anew-{name}", lambda call: None)
        check(mounted / f"anew-{name}", *KEPT, 3)
    return ends


@big_tensors()
def broken_disk() -> dict[str, str]:
    """The server's disk fails under a save, and is repaired and mounted anew."""
    root = nfs_control.second_client() / "broken"
    populate(root)
    ends = {"save": _save(root, Once("fsync .*packs/.*tmp", nfs_control.break_disk))}
    ends["read"] = _read(root, lambda call: None)
    nfs_control.lose_disk()
    nfs_control.heal_disk()
    nfs_control.find_disk()
    nfs_control.second_client()
    check(root, *KEPT)
    ends["mounted anew"] = _save(root, lambda call: None)
    check(root, *KEPT, 3)
    return ends


def _read_beside(place: str, when: str, change: Change) -> str:
    populate(NFS / place)
    hook = Once(f"{when} .*packs/", partial(change, SECOND / place))
    end = _read(NFS / place, hook)
    assert hook.done
    return end


def _read(root: Path, hook: Hook) -> str:
    """Read the newest checkpoint; how that ended. Wrong data is an AssertionError."""
    try:
        store = Store.at(PosixStorage(str(root), syscalls=CaughtCalls(hook)))
        newest = catalog.newest_first(store, RUN)[0]
        read = saves.contents(Checkpoint(store, newest.stored))
    except (DamagedError, StoreError) as error:
        return f"{type(error).__name__}: {error}"
    assert read == saves.expected(values(newest.stored.save.step))
    return "read"


def _save(root: Path, hook: Hook) -> str:
    """Save a step; how that ended."""
    try:
        save(Store.at(PosixStorage(str(root), syscalls=CaughtCalls(hook))), 3)
    except StoreError as error:
        return f"{type(error).__name__}: {error}"
    return "saved"


def _remove_packs(root: Path) -> None:
    for pack in _packs(root):
        pack.unlink()


def _copy_packs(root: Path) -> None:
    """Other files with the same content."""
    for pack in _packs(root):
        _replace(pack, pack.read_bytes())


def _blank_packs(root: Path) -> None:
    """Other files of the same size."""
    for pack in _packs(root):
        _replace(pack, bytes(pack.stat().st_size))


def _packs(root: Path) -> list[Path]:
    return sorted((root / "packs").glob("*/*.pack"))


def _replace(path: Path, data: bytes) -> None:
    """Another file of this name; the old one is removed, not renamed away."""
    path.unlink()
    path.write_bytes(data)


def _replace_packs(root: Path) -> None:
    """A copy in the place of the folder, as somebody makes it who moves a store."""
    (root / "packs").rename(root / "old")
    shutil.copytree(root / "old", root / "packs")
    shutil.rmtree(root / "old")


def _remove_empty(root: Path) -> None:
    """Folders without anything in them."""
    for folder in (root / "packs").iterdir():
        if not any(folder.iterdir()):
            folder.rmdir()


def _remove_temporaries(root: Path) -> None:
    for path in root.rglob("*.tmp"):
        path.unlink()
