"""The folder of the suspect list, with one file for each record.

    FOLDER/CLUSTER/NODE@SOURCE.json

A record is written to a temporary file and renamed, which needs no lock on any file system: SOURCE
has the user and, for a report, the run, so that no two processes replace each other's file. The
folder is private to the user; with a group, its members may add files and read all, and delete
their own (mode 3770).
"""

from __future__ import annotations

import grp
import hashlib
import logging
import os
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hpckit.config.spec import SuspectsSpec
from hpckit.slurm.cluster_config import CONFIG, parse_config
from hpckit.slurm.slurm_query import query
from hpckit.suspects.suspect_record import (
    MOST_BYTES,
    SuspectRecord,
    SuspectView,
    decode,
    encode,
    is_node_name,
    view_of,
)
from hpckit.system.atomic_files import write_text

log = logging.getLogger(__name__)

MOST_FILES = 2000
"""Number of files of a cluster beyond which the others are ignored."""
UNKNOWN_CLUSTER = "unknown"
_TIMEOUT_S = 10.0
_SUFFIX = ".json"


class SuspectListError(RuntimeError):
    """Raised if the folder of the suspect list must not be used; the message says why."""


def list_folder(spec: SuspectsSpec) -> Path:
    """Returns the folder of the list: the given one, or the user's own."""
    if spec.folder is not None:
        return Path(spec.folder)
    state = os.environ.get("XDG_STATE_HOME") or ""
    base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return base / "hpckit" / "suspects"


def cluster_name() -> str:
    """Returns the name of the cluster, as nodes of several clusters may have one name."""
    name = os.environ.get("SLURM_CLUSTER_NAME") if "SLURM_JOB_ID" in os.environ else None
    if not name:
        try:
            name = parse_config(query(CONFIG, _TIMEOUT_S)).get("ClusterName")
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("the name of the cluster is unknown: Slurm does not answer: %s", error)
    name = (name or UNKNOWN_CLUSTER).lower()
    return name if is_node_name(name) else UNKNOWN_CLUSTER


class SuspectFolder:
    """The suspect list of one cluster."""

    def __init__(self, spec: SuspectsSpec, cluster: str, root: Path) -> None:
        """
        Args:
            root: the result of `list_folder`.

        Raises:
            SuspectListError: there is no such group.
        """
        self.root, self.path = root, root / cluster
        self._group: int | None = None
        if spec.group is not None:
            try:
                self._group = grp.getgrnam(spec.group).gr_gid
            except KeyError:
                raise SuspectListError(
                    f"cluster.slurm.suspects.group: there is no group {spec.group}"
                ) from None

    def view(self, now: float | None = None) -> SuspectView:
        """Returns what the list says; nothing if there is no folder.

        Raises:
            SuspectListError: others than those who may can write to the folder.
            OSError: it cannot be read.
        """
        problems: list[str] = []
        records = list(self._records(problems))
        return view_of(records, time.time() if now is None else now, problems)

    def has(self, record: SuspectRecord) -> bool:
        """Returns whether the list has this record, or a newer one of its source."""
        found = self._read(self._file(record), [])
        return found is not None and found.time >= record.time

    def write(self, record: SuspectRecord) -> Path:
        """Writes a record in place of the earlier one of its source, and returns its file. Expired
        records of this user are removed.

        Raises:
            SuspectListError, OSError: it cannot be written.
        """
        self._make()
        path = self._file(record)
        write_text(path, encode(record), mode=0o600 if self._group is None else 0o640)
        self._remove_expired(time.time())
        return path

    def _file(self, record: SuspectRecord) -> Path:
        who = f"{os.getuid()}:{record.run if record.kind == 'report' else ''}"
        source = hashlib.sha256(who.encode()).hexdigest()[:12]
        return self.path / f"{record.node}@{record.kind}-{source}{_SUFFIX}"

    def _make(self) -> None:
        for folder in (self.root, self.path):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
                if self._group is not None:
                    os.chown(folder, -1, self._group)
                    folder.chmod(0o3770)
            self._require_safe(folder)

    def _require_safe(self, folder: Path) -> None:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise SuspectListError(f"{folder} is not a folder")
        if self._group is not None:
            if found.st_mode & stat.S_IWOTH or found.st_gid != self._group:
                raise SuspectListError(
                    f"{folder} must belong to the group of cluster.slurm.suspects.group, and "
                    "others must not write to it: chgrp it, and chmod 3770"
                )
        elif found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise SuspectListError(
                f"{folder} must be yours and not writable for others (chmod 700), unless "
                "cluster.slurm.suspects.group names the group that shares it"
            )

    def _records(self, problems: list[str]) -> Iterator[SuspectRecord]:
        for folder in (self.root, self.path):
            try:
                self._require_safe(folder)
            except FileNotFoundError:
                return
        names = sorted(path.name for path in self.path.iterdir() if path.suffix == _SUFFIX)
        if len(names) > MOST_FILES:
            problems.append(f"{self.path} has {len(names)} files: {MOST_FILES} of them are read")
        for name in names[:MOST_FILES]:
            if not name.startswith("."):
                found = self._read(self.path / name, problems)
                if found is not None:
                    yield found

    def _read(self, path: Path, problems: list[str]) -> SuspectRecord | None:
        """Returns the record in a file, which somebody else may have made: a link, a pipe, or a
        large file."""
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None  # removed meanwhile
        except OSError as error:
            problems.append(f"{path}: {error.strerror}")
            return None
        found, record = os.fstat(handle), None
        if stat.S_ISREG(found.st_mode) and found.st_size <= MOST_BYTES:
            with os.fdopen(handle, "rb") as file:
                record = decode(file.read(MOST_BYTES).decode(errors="replace"))
        else:
            os.close(handle)
        if record is None or record.node != path.name.partition("@")[0]:
            problems.append(f"{path} is not a record of the suspect list, and is ignored")
            return None
        return record

    def _remove_expired(self, now: float) -> None:
        """Removes this user's records that count no more."""
        with suppress(OSError), os.scandir(self.path) as entries:
            for entry in entries:
                is_mine = entry.stat(follow_symlinks=False).st_uid == os.getuid()
                if is_mine and entry.name.endswith(_SUFFIX) and not entry.name.startswith("."):
                    record = self._read(Path(entry.path), [])
                    if record is not None and record.expires < now:
                        Path(entry.path).unlink()


def open_folder(spec: SuspectsSpec) -> SuspectFolder:
    """Returns the suspect list of this cluster.

    Raises:
        SuspectListError: there is no such group.
    """
    return SuspectFolder(spec, cluster_name(), list_folder(spec))


def read_view(spec: SuspectsSpec | None) -> SuspectView:
    """Returns what the suspect list of this cluster says; nothing without a list, and a problem if
    it cannot be read. Slurm is asked for the cluster's name only if there is a list."""
    try:
        if spec is None or not list_folder(spec).is_dir():
            return SuspectView()
        return open_folder(spec).view()
    except (SuspectListError, OSError) as error:
        return SuspectView(problems=(f"the suspect list is not read: {error}",))
