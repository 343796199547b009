"""Detection of the type of a folder's file system."""

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
"""File systems that other machines share, or that are as slow to reach as the source of the
shards."""


def kind_of(path: Path) -> str:
    """Return the type, such as "ext4" or "nfs4"; "" if it is not known."""
    try:
        return find_kind(path.resolve(), _MOUNTINFO.read_text())
    except OSError:
        return ""


def find_kind(path: Path, mountinfo: str) -> str:
    """Return the type of the mount that holds the absolute `path`; of several, the latest mount
    counts."""
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
