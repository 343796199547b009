"""Reads and writes objects by key on files, S3 and anything that fsspec knows, behind one small
interface; it knows nothing of checkpoints, and `data` may import it."""

from checkpointing.storage.backend_selection import open_storage
from checkpointing.storage.interface import Buffer, ObjectInfo, Storage

__all__ = ["Buffer", "ObjectInfo", "Storage", "open_storage"]
