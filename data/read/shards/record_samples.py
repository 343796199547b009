"""The samples of a range of a file of records: their fields as members."""

from collections.abc import Callable

from data.cache.cached_shard import CachedShard
from data.errors import ShardError
from data.index.record_files.record_file import Decoder
from data.index.shard.shard_index import ShardIndex
from data.read.shards.local_file_samples import Sample
from data.read.shards.shard_samples import Check
from data.read.shards.token_samples import TokenSamples


class RecordSamples(TokenSamples):
    """The records of one shard of a `RecordManifest`, read in place as those of `TokenSamples`.

    Args:
        decode: returns the fields of a record.
    """

    def __init__(
        self,
        decode: Decoder,
        index: ShardIndex,
        reopen: Callable[[], CachedShard],
        url: str,
        shard: CachedShard,
        check: Check = "auto",
    ) -> None:
        self._decode = decode
        super().__init__(index, reopen, url, shard, check)

    def _sample(self, i: int, content: bytes) -> Sample:
        try:
            fields = self._decode(content)
        except (ValueError, RecursionError) as error:
            problem = (
                f"record {self._key(i)} cannot be read: {error}; if the file was damaged, copy it "
                "again"
            )
            raise ShardError(self._url, self._offset[i], problem) from error
        return {"__key__": self._key(i), "__url__": self._url, **fields}
