"""The errors of pipelines, which are also of the classes that webdataset raises."""

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager

from webdataset import autodecode

from data.errors import BrokenTarError, DataError, IndexingError, SampleError


class BatchStageError(DataError, ValueError):
    """A stage failed on a batch, or on a sample that was split from one; `__cause__` is the
    original exception."""


class StageSampleError(SampleError, ValueError):
    """A stage failed on a sample. webdataset's own stages raise ValueError; `__cause__` is the
    original exception, also of your own stages."""


class DecodingSampleError(StageSampleError, autodecode.DecodingError):  # type: ignore[misc]
    """A member of a sample could not be decoded; `__cause__` is webdataset's error."""


class UnreadableShardsError(IndexingError, FileNotFoundError):
    """Some shards are missing or cannot be read; webdataset raises FileNotFoundError."""


class BrokenShardsError(IndexingError, tarfile.ReadError):
    """Some shards are no tars; webdataset raises `tarfile.ReadError`, where it reads so far."""


@contextmanager
def webdataset_errors() -> Iterator[None]:
    """Raise errors of opening shards as those that webdataset raises."""
    try:
        yield
    except IndexingError as error:
        are_broken = all(isinstance(one, BrokenTarError) for one in error.errors)
        kind = BrokenShardsError if are_broken else UnreadableShardsError
        raise kind(error.errors, error.total) from error
