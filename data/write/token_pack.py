"""Packing token files into WebDataset shards, which may then be moved anywhere."""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

from data.errors import DataError
from data.index.manifest import NAME, save_manifest
from data.index.manifest_rows import ShardRow, row_of
from data.index.shard import sidecar
from data.index.shard.shard_scan import with_tokens
from data.index.shard_listing import Shards
from data.index.token_files.token_file_listing import first_token_file, open_token_files
from data.index.token_files.token_file_options import TokenFiles
from data.index.token_files.token_manifest import EXTENSION
from data.read.dataset import Dataset, open_dataset
from data.write.folder_pack import publish_pack
from data.write.pack_report import PackedShard, PackReport, Vocabulary, write_report
from data.write.shard_file import ShardFile

_TOKENS = "npy"  # the extension of the members, and how they are counted
_MOST = np.iinfo(np.uint32).max


def pack_token_files(
    source: Shards,
    out: Path,
    token_files: TokenFiles | None = None,
    *,
    samples_per_shard: int = 256,
    progress: Callable[[int, int], None] | None = None,
) -> PackReport | None:
    """Pack the documents of token files into shards `out/shard-000000.tar`, …, with their index.

    Each document becomes a member `.npy` of uint16 or uint32, as `pack_folder` makes them of text
    by a tokeniser. The pack is atomic, as that of `pack_folder`. Returns None if `source` is no
    token file. Raises DataError.
    """
    if samples_per_shard < 1:
        raise DataError(f"samples_per_shard must be at least 1, got {samples_per_shard}")
    if first_token_file(source) is None:
        open_token_files(source, token_files)  # refuses options that are only for token files
        return None
    dataset = open_dataset(source, token_files=token_files)
    end = token_files.end_of_text if token_files else None

    def is_same(found: PackReport) -> bool:
        return (found.plan, found.samples_per_shard) == (dataset.fingerprint, samples_per_shard)

    try:
        return publish_pack(
            out.resolve(),
            is_same,
            lambda folder: _write(dataset, folder, end, samples_per_shard, progress),
        )
    except OSError as error:
        raise DataError(f"packing {source} into {out} failed: {error}") from error
    finally:
        dataset.close()


def _write(
    dataset: Dataset,
    folder: Path,
    end: int | None,
    samples_per_shard: int,
    progress: Callable[[int, int], None] | None,
) -> PackReport:
    """Write shards, indexes, manifest and report into `folder`, durably."""
    shards: list[PackedShard] = []
    rows: list[ShardRow] = []
    total, highest = len(dataset), 0
    for first in range(0, total, samples_per_shard):
        path = folder / f"shard-{len(shards):06d}.tar"
        row, most = _write_shard(path, dataset, range(first, min(first + samples_per_shard, total)))
        rows.append(row)
        highest = max(highest, most)
        shards.append(PackedShard(path.name, row.bytes, str(row.hash), row.samples))
        if progress:
            progress(first + row.samples, total)
    report = PackReport(
        plan=dataset.fingerprint,
        samples_per_shard=samples_per_shard,
        shards=tuple(shards),
        samples=total,
        files=len(set(dataset.manifest.urls)),
        bytes=int(dataset.manifest.bytes.sum()),
        skipped={},
        vocabulary=Vocabulary(highest + 1, end, None),
    )
    save_manifest(rows, folder / NAME, _TOKENS)
    write_report(folder, report)
    return report


def _write_shard(path: Path, dataset: Dataset, samples: range) -> tuple[ShardRow, int]:
    """Write one shard; returns its row and its highest token."""
    kind = np.dtype(str(dataset.manifest.tokens).partition(":")[2]).newbyteorder("<")
    shard, counts, highest = ShardFile(path), list[int](), 0
    try:
        for i in samples:
            sample = dataset.read(i)
            tokens = np.frombuffer(sample[EXTENSION], kind)
            if tokens.size and not 0 <= int(tokens.min()) <= int(tokens.max()) <= _MOST:
                problem = f"has tokens {tokens.min()}..{tokens.max()}, and 0..{_MOST} are stored"
                raise DataError(f"{sample['__url__']}: document {i} {problem}")
            highest = max(highest, int(tokens.max(initial=0)))
            counts.append(tokens.size)
            shard.add(f"{sample['__key__']}.{_TOKENS}", _member(tokens))
        index = with_tokens(shard.finish(), counts, _TOKENS)
    except BaseException:
        shard.abort()
        raise
    sidecar.save(str(path), index)
    return row_of(str(path), index), highest


def _member(tokens: npt.NDArray[np.generic]) -> bytes:
    content = BytesIO()
    narrow = np.uint16 if tokens.dtype.itemsize <= 2 else np.uint32
    np.save(content, tokens.astype(narrow), allow_pickle=False)
    return content.getvalue()
