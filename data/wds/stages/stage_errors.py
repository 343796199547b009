"""The errors of stages, which are also of the classes that webdataset raises."""

from webdataset import autodecode

from data.errors import DataError, SampleError


class StageError(DataError, ValueError):
    """A stage failed on a batch, or on a sample that was split from one; `__cause__` is the
    original exception."""


class SampleStageError(SampleError, ValueError):
    """A stage failed on a sample. webdataset's own stages raise ValueError; `__cause__` is the
    original exception, also of your own stages."""


class SampleDecodingError(SampleStageError, autodecode.DecodingError):
    """A member of a sample could not be decoded; `__cause__` is webdataset's error."""
