"""Reads and writes objects by key on file systems, S3 and anything that fsspec supports, behind one
small interface. It does not depend on checkpoints, and `data` may import it."""

from checkpointing.storage.backend_selection import open_storage
from checkpointing.storage.interface import Buffer, ObjectInfo, Storage

__all__ = ["Buffer", "ObjectInfo", "Storage", "open_storage"]
