"""The exceptions of this package, one class for each problem that a caller may handle
separately."""

from collections.abc import Iterator


class CheckpointError(RuntimeError):
    """Base class of all exceptions that this package raises on purpose."""


class StoreError(CheckpointError):
    """The store cannot be used: its URL is unsupported, or it is unreachable, full or not
    writable."""


class StoreFullError(StoreError):
    """The store has no space or is over quota: ENOSPC, EDQUOT, QuotaExceeded."""


class StoreAccessError(StoreError):
    """Access was denied: missing, wrong or expired credentials, permissions, a read-only file
    system."""


class OtherRankError(CheckpointError):
    """Another rank has ended, failed or not answered in time, so that this one cannot go on. Only
    that rank knows whether a retry would help."""


class SaveError(CheckpointError):
    """A save failed; nothing was committed and earlier checkpoints are untouched."""


class DamagedError(CheckpointError):
    """Bytes in a store do not match the manifest, or the manifest is incomplete."""


class FormatError(CheckpointError):
    """A checkpoint has a format version, or uses a feature, that this version does not know."""


class StructureError(CheckpointError):
    """Checkpoint and state hold different tensors or values. This is not damage, so the checkpoint
    is never skipped."""


class ServiceError(CheckpointError):
    """The node's checkpoint service cannot be reached, or does not understand a message."""


class StageError(CheckpointError):
    """No snapshot was staged: there is no memory for it, or the copy is not one consistent
    state."""


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, then the error that caused it, and so on."""
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__
