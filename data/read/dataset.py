"""An open dataset: its manifest, its shards, and each sample readable by its number."""

import logging
import operator
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, SupportsIndex, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from data.cache.cached_shard import CachedShard
from data.cache.downloads.download_job import copy_of_error
from data.cache.files.cache_entry import ShardRef
from data.cache.node_store import PIPE_WITHOUT_CACHE, CacheLocal, NodeStore
from data.cache.space import space_reservation
from data.errors import ArgumentError, DataError
from data.index.compressed.compressed_files import Unpacker, unpacked_shards
from data.index.compressed.unpacked_files import FileUses
from data.index.dataset_verification import unlisted_tars
from data.index.in_place_manifest import InPlaceManifest
from data.index.index_build import read_index
from data.index.manifest import Manifest, is_manifest, open_manifest
from data.index.record_files.record_listing import open_record_files
from data.index.record_files.record_manifest import RecordManifest
from data.index.renamed_manifest import renamed_manifest
from data.index.shard.shard_index import ShardIndex
from data.index.shard_access import is_pipe, is_plain_url, is_url
from data.index.shard_listing import Shards, checked_shards, list_shards
from data.index.table_files.table_listing import open_table_files
from data.index.table_files.table_manifest import TableManifest
from data.index.token_files.token_file_listing import open_token_files
from data.index.token_files.token_file_options import TokenFiles
from data.index.token_files.token_manifest import TokenManifest
from data.keyword_options import checks_arguments
from data.read.shards.local_file_samples import Sample
from data.read.shards.open_descriptors import OPEN_SHARDS
from data.read.shards.record_samples import RecordSamples
from data.read.shards.shard_samples import Check, ShardSamples
from data.read.shards.table_samples import TableSamples
from data.read.shards.token_samples import TokenSamples
from data.source.address import masked, split_query
from data.source.sources import Sources

if TYPE_CHECKING:  # of checkpointing, which is imported only if nodes share their caches
    from data.cache.peers.cache_peers import CachePeers

Ints: TypeAlias = npt.NDArray[np.int64]

INDEX_BYTES = 256 << 20
"""The bytes of indexes that a dataset keeps of shards whose files are closed."""

_log = logging.getLogger(__name__)


class Dataset:
    """The samples 0 .. len - 1 of a manifest's shards, in order. Safe to read from many threads."""

    def __init__(
        self,
        manifest: Manifest,
        store: NodeStore,
        check: Check = "auto",
        uses: FileUses | None = None,
    ) -> None:
        _check_choice("check", check, get_args(Check))
        self.manifest = manifest
        self.store = store
        self.check: Check = check
        self._uses = uses
        """What keeps its unpacked files in the cache, for as long as it exists."""
        self.starts: Ints = np.concatenate([[0], np.cumsum(manifest.samples, dtype=np.int64)])
        """Shape (shards + 1,): the number of each shard's first sample."""
        self.first = self.starts.data
        """The numbers in `starts` as plain integers."""
        self._opened = _OpenShardCache(self)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __reduce__(self) -> tuple[type["Dataset"], tuple[Manifest, NodeStore, Check]]:
        """Pickle for another process, where the shards are opened again."""
        return Dataset, (self.manifest, self.store, self.check)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the manifest, which depends on the samples and not on where they are
        stored."""
        return self.manifest.fingerprint

    def opened(self, shard: int) -> ShardSamples:
        """Open shard `shard`; the files of the least recently used shards are closed. Raises
        ShardError, FetchError."""
        return self._opened.get(shard)

    def release(self, shard: int) -> None:
        """Close the file of a shard until it is read again; reads that are under way go on."""
        if (found := self._opened.found.get(shard)) is not None:
            found.release()

    @property
    def open_shards(self) -> Mapping[int, ShardSamples]:
        """The shards that are open, by their numbers, as `opened` returns them."""
        return self._opened.found

    def place(self, index: SupportsIndex) -> tuple[int, int]:
        """Return (shard, sample in it) of a sample. Raises IndexError, ArgumentError."""
        number = _sample_number(index)
        if not 0 <= number < len(self):
            raise IndexError(f"sample {number} is not in 0..{len(self) - 1}")
        shard = int(np.searchsorted(self.starts, number, side="right")) - 1
        return shard, number - int(self.starts[shard])

    def read(self, index: SupportsIndex) -> Sample:
        """Read one sample: its key, its shard and the bytes of each member.

        Raises IndexError outside [0, len), ArgumentError for what is no number, ShardError and
        FetchError as `ShardSamples.read`.
        """
        shard, sample = self.place(index)
        return self.opened(shard).read(sample)[0]

    def __getitem__(self, index: SupportsIndex) -> Sample:
        """Read one sample as `read`; negative numbers count from the end."""
        number = _sample_number(index)
        return self.read(number + len(self) if -len(self) <= number < 0 else number)

    def __iter__(self) -> Iterator[Sample]:
        """Read all samples in stored order, one at a time, without prefetching."""
        return (self.read(number) for number in range(len(self)))

    def index_of(self, key: str) -> int:
        """Return the number of the first sample with this key, for `read`. Shards are searched in
        order, by their indexes. Raises KeyError if there is none, and as `read`."""
        if not isinstance(key, str):
            raise DataError(f"a key is text, got {key!r}; a sample is read by its number by `read`")
        wanted = key.encode("utf-8", "surrogateescape")
        for shard in range(len(self.manifest)):
            sample = self.opened(shard).index.number_of(wanted)
            if sample is not None:
                return self.first[shard] + sample
        raise KeyError(f"no sample of {self.manifest.place} has the key {key!r}")

    def ref(self, shard: int) -> ShardRef:
        """Return what the node store needs to know of a shard."""
        manifest = self.manifest
        size, tag = manifest.file_bytes(shard), int(manifest.columns["tags"][shard]) or None
        return ShardRef(manifest.urls[shard], size, manifest.hash(shard), tag)

    def is_remote(self, shard: int) -> bool:
        """Return whether opening the shard takes requests, as it is neither open nor read in
        place."""
        return not self._opened.has(shard) and not self.store.is_in_place(self.manifest.urls[shard])

    def index(self, shard: int, opened: CachedShard | None = None) -> ShardIndex:
        """Return the index of a shard, which may be made from what is `opened`.

        Raises as `opened`; DataError if it lacks what reads must compare.
        """
        url = self.manifest.urls[shard]
        passing = opened.pread if opened is not None and is_url(url) else None
        index = self.manifest.open_shard(
            shard,
            source=self.store.sources,
            passing=passing,
            whole=opened is not None and opened.local,
            content=self.check == "content",
        )
        if self.check == "content" and not index.has_content_sums:
            raise DataError(
                f"{masked(url)}: its index has no checksums of the contents, which check=content "
                "compares; create them with `hpckit data index --hash`"
            )
        return index

    def close(self) -> None:
        """Close the shards; a later read opens them again."""
        self._opened.clear()


def _sample_number(index: SupportsIndex) -> int:
    try:
        return operator.index(index)
    except TypeError as error:
        hint = "; `index_of` finds the number of a key" if isinstance(index, str) else ""
        raise ArgumentError(
            f"a sample is read by its number, one at a time, got {index!r}{hint}"
        ) from error


class _OpenShardCache:
    """The cache of a dataset's open shards: their indexes, as far as `INDEX_BYTES` allow, and some
    of their files, see `open_descriptors`. Two threads may open different shards at a time."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._found: dict[int, ShardSamples] = {}
        self.found: Mapping[int, ShardSamples] = self._found
        self._bytes = 0  # of the indexes
        self._opening: dict[int, threading.Lock] = {}
        self._failed: dict[int, tuple[DataError, float]] = {}
        self._lock = threading.Lock()

    def has(self, shard: int) -> bool:
        return shard in self._found

    def get(self, shard: int) -> ShardSamples:
        found = self._found.get(shard)  # without the lock: dict operations are atomic
        if found is not None:
            return found
        with self._lock:
            opening = self._opening.setdefault(shard, threading.Lock())
        with opening:
            if (found := self._found.get(shard)) is None:
                found = self._open_guarded(shard)
                self._keep(shard, found)
            return found

    def _open_guarded(self, shard: int) -> ShardSamples:
        """Open a shard. A failure is raised again, without a further try, for as long as the try
        took, since each of the shard's samples asks for it."""
        failed, until_s = self._failed.get(shard, (None, 0.0))
        began_s = time.monotonic()
        if failed is not None and began_s < until_s:
            raise copy_of_error(failed)
        try:
            return OPEN_SHARDS.open(lambda: self._open(shard))
        except DataError as error:
            now_s = time.monotonic()
            self._failed[shard] = (error, now_s + (now_s - began_s))
            raise

    def _open(self, shard: int) -> ShardSamples:
        dataset = self._dataset
        ref = dataset.ref(shard)
        opened = dataset.store.open(ref)
        index = dataset.index(shard, opened)
        store = dataset.store
        return _samples_of(dataset.manifest, shard)(
            index,
            lambda: OPEN_SHARDS.open(lambda: store.open(ref)),
            ref.url,
            opened,
            dataset.check,
        )

    def _keep(self, shard: int, found: ShardSamples) -> None:
        with self._lock:
            self._found[shard] = found
            self._bytes += found.bytes
            self._opening.pop(shard, None)
            for _ in range(len(self._found)):
                if self._bytes <= INDEX_BYTES:
                    break
                oldest = next(iter(self._found))
                one = self._found.pop(oldest)
                if one.is_open:
                    self._found[oldest] = one
                else:
                    self._bytes -= one.bytes

    def clear(self) -> None:
        with self._lock:
            for one in self._found.values():
                one.release()
            self._found.clear()
            self._bytes = 0


def _samples_of(manifest: Manifest, shard: int) -> Callable[..., ShardSamples]:
    """Return what makes the samples of an open shard."""
    if isinstance(manifest, RecordManifest):
        return partial(RecordSamples, manifest.decoder(shard))
    if isinstance(manifest, TableManifest):
        return partial(TableSamples, manifest.shard(shard))
    return TokenSamples if isinstance(manifest, TokenManifest) else ShardSamples


@checks_arguments
def open_dataset(
    shards: Shards,
    *,
    cache: str | Path | None = None,
    cache_bytes: int = 0,
    cache_local: CacheLocal = False,
    sources: Sources | None = None,
    check: Check = "auto",
    token_files: TokenFiles | None = None,
    rows: bool = False,
    broken_shards: Literal["raise", "skip"] = "raise",
    repeated_shards: Literal["raise", "keep"] = "raise",
    rename_files: Callable[[str], str] | None = None,
    peers: "CachePeers | None" = None,
) -> Dataset:
    """Open a manifest, or the shards of a folder, a glob, a `{000000..000012}` pattern or a list.

    A manifest is a file, or a folder or URL that has one (`hpckit data index`). Without one, all
    shards are indexed now, which for URLs reads their headers, and the order is that of the list.

    Args:
        cache: folder on a local disk for shards that are not files of this machine; needed for
            `cache_bytes` > 0, the most that it may hold. Shards of `pipe:` commands need a cache:
            each command runs once to index what it writes, and once into the cache.

        cache_local: copy shards that are files into the cache, too; "auto": those on file systems
            that machines share, such as NFS and Lustre.

        check: what of each sample that is read is compared with the index. "content": its bytes, so
            that any change by a disk is found; that needs indexes with checksums, as hpckit writes
            them with its own shards or `hpckit data index --hash` makes them. "headers": the tar
            headers, which detects another shard or version. "auto": the bytes where the index has
            their checksums.

        token_files: how token files are read, which are given in place of shards: a flat `.bin`
            file as of nanoGPT, Megatron's `.bin` with its `.idx`, an `.arrow` file, or a folder of
            `save_to_disk` of Hugging Face's datasets. They are read in place and never cached; each
            sample is a document, with the member `bin`.

        rows: the rows of an `.arrow` file, or of a folder of `save_to_disk` of Hugging Face's
            datasets, are samples with all columns, and not documents of tokens.

        shards: besides tars, files of records and tables, which are read in place: a folder with
            the `index.json` of MDS or LitData, lines of JSON (`.jsonl`), and Parquet, whose rows
            are read by pyarrow in whole row groups. A sample has their fields as members, and its
            number as key. Compressed tars and lines (`.gz`, `.zst`) are unpacked into the cache,
            once for all processes of the node. They count towards `cache_bytes`, stay while a
            dataset that was opened with them exists in a process, and are evicted later.

        broken_shards: what becomes of shards whose bytes are not a tar of samples, where they are
            indexed now. "skip" leaves them out with a warning; all samples of the others come as if
            there were no other shards. Every rank has to see the same bytes: otherwise, as with a
            shard that is still written, ranks have different datasets.

        repeated_shards: what becomes of a shard that is given several times. "keep" reads its
            samples as often in each epoch, to weight it.

        rename_files: returns the name by which a member of a shard is grouped into samples, given
            its name in the tar. All shards are scanned at each start, and their indexes are kept in
            memory.

        peers: the caches of the other nodes of the job, connected for the folder `cache`.

    Raises DataError if nothing is found, a shard is given twice or is broken.
    """
    _check_choice("broken_shards", broken_shards, ("raise", "skip"))
    _check_choice("repeated_shards", repeated_shards, ("raise", "keep"))
    reach = sources or Sources()
    unpack = Unpacker(None if cache is None else Path(cache), cache_bytes, space_reservation.free)
    skip_broken = broken_shards == "skip"
    shards = unpacked_shards(checked_shards(shards), unpack, skip_broken=skip_broken)
    records: InPlaceManifest | None = None
    if token_files is None:
        records = open_record_files(shards, unpack) or open_table_files(shards, rows=rows)
    records = records or open_token_files(shards, token_files)
    if records is not None:
        for option, is_given, instead in (
            ("rename_files", rename_files is not None, "leave it out"),
            ('broken_shards="skip"', skip_broken, "leave it out"),
            (
                'repeated_shards="keep"',
                repeated_shards == "keep",
                "give each file once, and weight datasets by `mixed`",
            ),
        ):
            if is_given:
                raise DataError(f"{records.place}: {option} is only for tars; {instead}")
        return _in_place(records, cache, cache_local, check, reach, unpack)
    given = [shards] if isinstance(shards, str | Path) else shards
    if not (cache and cache_bytes) and reach.runs_pipes and any(is_pipe(str(s)) for s in given):
        raise DataError(PIPE_WITHOUT_CACHE)
    store = _store(cache, cache_bytes, cache_local, reach, peers)
    keeps = repeated_shards == "keep"
    if rename_files is not None:
        listed = list_shards(shards, repeated=keeps)
        return Dataset(renamed_manifest(listed, rename_files, reach), store, check, unpack.uses)
    manifest = _manifest(shards, reach, skip_broken, keeps)
    return Dataset(manifest, store, check, unpack.uses)


def _check_choice(option: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise DataError(f"{option} must be one of {choices}, got {value!r}")


def _in_place(
    manifest: InPlaceManifest,
    cache: str | Path | None,
    cache_local: CacheLocal,
    check: Check,
    sources: Sources,
    unpack: Unpacker,
) -> Dataset:
    is_tokens = isinstance(manifest, TokenManifest)
    kind = "token files" if is_tokens else "files of records and tables"
    if check == "content":
        raise DataError(
            f"{manifest.place}: {kind} have no checksums, which check=content compares; leave it"
            " out, or `hpckit data pack` the files to shards, which have them"
        )
    if (is_tokens and cache is not None) or cache_local is True:
        _log.warning("%s: %s are read in place, the cache is not used", manifest.place, kind)
    return Dataset(manifest, _store(None, 0, False, sources), check, unpack.uses)


def _manifest(shards: Shards, sources: Sources, skip_broken: bool, repeated: bool) -> Manifest:
    if isinstance(shards, str | Path):
        text = str(shards)
        if is_plain_url(text) and split_query(text)[0].endswith(("/", ".index")):
            return open_manifest(text, source=sources)
        if not is_url(text) and is_manifest(Path(text).expanduser()):
            manifest = open_manifest(Path(text).expanduser())
            _warn_of_others(Path(text).expanduser(), manifest)
            return manifest
    return read_index(shards, source=sources, skip_broken=skip_broken, repeated=repeated)


def _warn_of_others(folder: Path, manifest: Manifest) -> None:
    """Warn of shards in the folder that are not in the manifest, which may have been forgotten."""
    if others := unlisted_tars(folder, manifest):
        _log.warning(
            "%s: tars of this folder that it does not list are not read: %s; `hpckit data index` "
            "adds them",
            manifest.place,
            ", ".join([*others[:3], f"and {len(others) - 3} more"] if len(others) > 3 else others),
        )


def _store(
    cache: str | Path | None,
    cache_bytes: int,
    cache_local: CacheLocal,
    sources: Sources,
    peers: "CachePeers | None" = None,
) -> NodeStore:
    budget = cache_bytes if cache else 0
    if cache and not cache_bytes:
        _log.warning("nothing is cached in %s: give cache_bytes=, too, which is 0", cache)
    if peers is not None and budget == 0:
        raise DataError("peers are the caches of nodes: give cache=FOLDER and cache_bytes=, too")
    return NodeStore(
        Path(cache or "."), budget, sources=sources, cache_local=cache_local, peers=peers
    )
