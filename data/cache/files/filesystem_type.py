"""Which kind of file system a folder is on."""

import re
from pathlib import Path

_MOUNTINFO = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\(\d{3})")

SHARED = frozenset(
    {
        "nfs",
        "nfs4",
        "lustre",
        "gpfs",
        "beegfs",
        "beegfs_nodev",
        "ceph",
        "cifs",
        "smb3",
        "pvfs2",
        "panfs",
        "wekafs",
        "afs",
        "9p",
        "glusterfs",
        "fuse.glusterfs",
        "fuse.ceph",
        "fuse.quobyte",
        "fuse.sshfs",
        "fuse.s3fs",
        "fuse.mount-s3",
        "fuse.juicefs",
    }
)
"""Kinds that other machines share, or that are as far away as the shards themselves."""


def kind_of(path: Path) -> str:
    """Such as "ext4" or "nfs4"; "" if that cannot be known."""
    try:
        return find_kind(path.resolve(), _MOUNTINFO.read_text())
    except OSError:
        return ""


def find_kind(path: Path, mountinfo: str) -> str:
    """The kind of the mount that `path`, absolute, is below; the latest one of several counts."""
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        words = fields.split()
        if len(words) < 5 or not rest:
            continue
        point = Path(_OCTAL.sub(lambda code: chr(int(code[1], 8)), words[4]))
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), rest.split()[0]
    return kind
