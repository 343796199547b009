"""Reading tokens from shards, for datasets whose tokens are counted from their stored form."""

from dataclasses import dataclass
from io import BytesIO

import numpy as np

from data.errors import DataError
from data.read.batch import SampleContext
from data.read.sample_stream import SampleStream
from data.read.sequences.packed_sequences import Tokens
from data.read.shards.local_file_samples import Sample


@dataclass(frozen=True)
class StoredTokens:
    """A transform that returns the tokens in a sample's member `extension`: "npy", or raw numbers
    of a type."""

    extension: str
    dtype: str | None

    def __call__(self, sample: Sample, context: SampleContext) -> Tokens:
        if self.dtype is None:
            return np.asarray(np.load(BytesIO(sample[self.extension]), allow_pickle=False)).ravel()
        return np.frombuffer(sample[self.extension], np.dtype(self.dtype).newbyteorder("<"))


def stored_tokens(stream: SampleStream) -> tuple[StoredTokens, ...]:
    """Return the transform of each dataset of a stream that reads tokens in the way that the
    dataset counts them. Raises DataError."""
    return tuple(_of_way(str(dataset.manifest.tokens or "")) for dataset in stream.datasets)


def _of_way(way: str) -> StoredTokens:
    extension, _, detail = way.partition(":")
    if way == "npy" or (extension != "json" and detail):
        return StoredTokens(extension, detail or None)
    raise DataError(
        f"tokens are counted by {way or None!r}, which does not say where they are stored: packing "
        "requires a transform that makes them"
    )
