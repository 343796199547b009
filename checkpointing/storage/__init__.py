"""Where a store's objects lie: one small interface over files, S3 and anything fsspec knows."""

from checkpointing.storage.interface import Buffer, Entry, Storage
from checkpointing.storage.open import open_storage

__all__ = ["Buffer", "Entry", "Storage", "open_storage"]
