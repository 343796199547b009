"""Checks whether a node sees the folders of a run as this machine does."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from checkpointing import local_folder
from hpckit.config.spec import RunSpec
from hpckit.doctor.finding import Finding, Level


@dataclass(frozen=True)
class FolderIdentity:
    """The identity of a folder, or of its nearest existing parent."""

    folder: str
    above: str
    inode: int
    """Inode number of `above`, which is the same on all machines that share the folder."""
    is_writable: bool


def identify_folder(folder: str) -> FolderIdentity:
    """Return the identity of a folder on this machine."""
    above = Path(folder).absolute()
    while not above.is_dir() and above != above.parent:
        above = above.parent
    is_writable = os.access(above, os.W_OK | os.X_OK)
    return FolderIdentity(folder, str(above), above.stat().st_ino, is_writable)


def shared_folders(spec: RunSpec) -> dict[str, str]:
    """Return the folders of a run that all its nodes must share, by the config key that names
    them."""
    found = {"root": spec.root}
    if spec.checkpoint.url is not None and (store := local_folder(spec.checkpoint.url)) is not None:
        found["checkpoint.url"] = str(store)
    return found


def own_folders(spec: RunSpec) -> dict[str, str]:
    """Return the folders that are local to each node, if they are set and contain no variable."""
    assert spec.cluster.slurm is not None
    named = {"data.cache": spec.data.cache, "cluster.slurm.scratch": spec.cluster.slurm.scratch}
    return {key: str(one) for key, one in named.items() if one is not None and "$" not in str(one)}


def judge_shared(key: str, here: FolderIdentity, there: FolderIdentity) -> Finding:
    """Compare a shared folder on this machine and on a node. Pure.

    Args:
        here, there: the same folder from this machine and from a node.
    """
    if (here.above, here.inode) != (there.above, there.inode):
        what = f"{key}: a node does not see {here.above}"
        if here.above == there.above:
            what = f"{key}: {here.above} on a node is another folder than on this machine"
        return Finding(Level.FAIL, "folders", what, f"set {key} to a folder that all nodes share")
    if not there.is_writable:
        what = f"{key}: a node may not write to {there.above}"
        return Finding(
            Level.FAIL, "folders", what, "mount it there for writing, or use another folder"
        )
    return Finding(Level.OK, "folders", f"{key}: a node sees {there.above} and may write to it")


def judge_own(key: str, there: FolderIdentity) -> Finding:
    """Check a folder that is local to each node. Pure."""
    if there.is_writable:
        return Finding(Level.OK, "folders", f"{key}: can be created below {there.above}")
    do = f"set {key} to a folder on a disk of the node, or to null for the session's own"
    return Finding(Level.FAIL, "folders", f"{key}: a node may not write to {there.above}", do)


def judge_places(
    shared: dict[str, str],
    own: dict[str, str],
    here: Sequence[FolderIdentity],
    there: Sequence[FolderIdentity],
) -> Iterator[Finding]:
    """Compare the folders of all keys on both machines. Pure."""
    mine, theirs = ({one.folder: one for one in seen} for seen in (here, there))
    for key, folder in shared.items():
        yield judge_shared(key, mine[folder], theirs[folder])
    for key, folder in own.items():
        yield judge_own(key, theirs[folder])
