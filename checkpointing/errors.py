"""What can go wrong with a checkpoint, one class per thing that a caller may want to tell apart."""


class CheckpointError(RuntimeError):
    """Base of everything that this package raises on purpose."""


class StoreError(CheckpointError):
    """The store cannot be used at all: unsupported URL, not writable, no hard links."""


class SaveError(CheckpointError):
    """A save failed; nothing was committed and earlier checkpoints are untouched."""


class DamagedError(CheckpointError):
    """Bytes on disk are not what the manifest says, or the manifest is not whole."""


class FormatError(CheckpointError):
    """A checkpoint of a format version, or with a feature, that this version does not know."""


class StructureError(CheckpointError):
    """Checkpoint and state hold different tensors or values: not damage, so never skipped."""
