"""The samples of a range of a token file: one member each, without headers or checksums."""

from os import pread

from data.cache.files.file_handle import FileHandle
from data.errors import ShardError
from data.read.shards.local_file_samples import Sample
from data.read.shards.piece_reads import SampleReader, immediate_reader
from data.read.shards.shard_samples import ShardSamples


class TokenSamples(ShardSamples):
    """The documents of one shard of a `TokenManifest`, which are compared with nothing but the size
    of the file. That the file is the same is checked whenever its index is made."""

    def _read(self, i: int) -> tuple[Sample, int]:
        at, length = self._offset[i], self._size[i]
        content = self._pread(at, length)
        return self._sample(i, content), length

    def _direct_reader(self, file: FileHandle) -> SampleReader:
        offsets, sizes = self._offset, self._size

        def read(i: int, _: FileHandle = file) -> tuple[Sample, int]:
            length = sizes[i]
            try:
                content = pread(file.fd, length, offsets[i])
            except OSError:  # the shard reports it
                return self._indirect(i)
            if len(content) != length:
                problem = f"ends within document {self._key(i)}; copy the file again"
                raise ShardError(self._url, offsets[i] + len(content), problem)
            return self._sample(i, content), length

        return immediate_reader(read)

    def _sample(self, i: int, content: bytes) -> Sample:
        return {"__key__": self._key(i), "__url__": self._url, self._names[0]: content}
