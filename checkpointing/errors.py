"""What can go wrong with a checkpoint, one class per thing that a caller may want to tell apart."""


class CheckpointError(RuntimeError):
    """Base of everything that this package raises on purpose."""


class StoreError(CheckpointError):
    """The store cannot be used: unsupported URL, out of reach, full, not writable."""


class StoreFullError(StoreError):
    """No space, or over quota: ENOSPC, EDQUOT, QuotaExceeded."""


class StoreAccessError(StoreError):
    """Not allowed: missing, wrong or expired credentials, permissions, a read-only file system."""


class SaveError(CheckpointError):
    """A save failed; nothing was committed and earlier checkpoints are untouched."""


class DamagedError(CheckpointError):
    """Bytes in a store are not what the manifest says, or the manifest is not whole."""


class FormatError(CheckpointError):
    """A checkpoint of a format version, or with a feature, that this version does not know."""


class StructureError(CheckpointError):
    """Checkpoint and state hold different tensors or values: not damage, so never skipped."""


class ServiceError(CheckpointError):
    """The node's checkpoint service cannot be reached, or does not understand."""


class StageError(CheckpointError):
    """No snapshot was staged: no memory for it, or what was copied is not one state."""
