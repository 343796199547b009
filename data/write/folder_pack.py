"""Packing any folder of files into WebDataset shards, atomically."""

import logging
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from data.durable_files import fsync_path, locked, write_atomically
from data.errors import DataError
from data.index.index_build import build_index
from data.index.manifest import NAME, save_manifest
from data.index.manifest_rows import ShardRow, row_of
from data.index.shard import sidecar
from data.index.shard.sample_token_counts import of_sample
from data.index.shard.shard_index import ShardIndex
from data.index.shard.shard_scan import with_tokens
from data.write.pack_plan import (
    BROKEN_LINK,
    FOLDER_LINK,
    FolderPlan,
    SourceFile,
    look_alike,
    plan_folder,
)
from data.write.pack_report import PackedShard, PackReport, read_report, write_report
from data.write.shard_file import ShardFile
from data.write.tokeniser import Tokeniser

# Debris of this host is dead once the lock is held. Where locks do not reach other hosts, one of
# their folders counts as dead only after longer than any pack takes.
DEBRIS_AGE_S = 7 * 24 * 3600

TOKENIZER = "tokenizer.json"
_TOKENS = "npy"  # the extension of their members, and how they are counted

_log = logging.getLogger(__name__)


def pack_folder(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    suffixes: Sequence[str] = (),
    exclude: Sequence[str] = (),
    samples_per_shard: int = 256,
    tokeniser: Tokeniser | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PackReport:
    """Pack the files under `source` into shards `out/shard-000000.tar`, …, with their index.

    Files are grouped into samples by webdataset's rule (`a.py` and `a.txt` of one folder are one
    sample of key `a`). `suffixes` selects files by their end, `exclude` drops files and folders by
    glob; hidden files, names without an extension and the like are counted in the report.
    `progress(done, total)` is called with numbers of samples, after each shard.

    With a `tokeniser`, each sample's one file is text, and becomes a member `.npy` of tokens, which
    the index counts; the report names the vocabulary, and its file is copied to the shards.

    The pack is atomic: `out` appears whole or not at all. An `out` that already holds exactly this
    pack is returned as it is, even if another process made it in the meantime. Raises DataError if
    `out` holds other things, if there is nothing to pack, or if reading or writing fails.
    """
    if samples_per_shard < 1:
        raise DataError(f"samples_per_shard must be at least 1, got {samples_per_shard}")
    files, shards = Path(source).resolve(), Path(out).resolve()
    if shards.is_relative_to(files):
        raise DataError(f"cannot pack {files} into {shards}, which lies inside it")
    for name, given in (("suffixes", suffixes), ("exclude", exclude)):
        if isinstance(given, str):  # whose letters would be taken for patterns
            raise DataError(f"{name} is a list of texts, got the text {given!r}: give [{given!r}]")
    try:
        return _pack(files, shards, suffixes, exclude, samples_per_shard, tokeniser, progress)
    except OSError as error:
        raise DataError(f"packing {source} into {out} failed: {error}") from error


def _pack(
    source: Path,
    out: Path,
    suffixes: Sequence[str],
    exclude: Sequence[str],
    samples_per_shard: int,
    tokeniser: Tokeniser | None,
    progress: Callable[[int, int], None] | None,
) -> PackReport:
    plan = plan_folder(source, suffixes, exclude)
    _warn_of_links(source, plan)
    _warn_of_merged_files(source, plan)
    report = publish_pack(
        out,
        lambda found: _is_same(found, plan, samples_per_shard, tokeniser),
        lambda folder: _write(plan, source, folder, samples_per_shard, tokeniser, progress),
    )
    if not (out / NAME).exists():  # of an older hpckit
        build_index(out)
    return report


def publish_pack(
    out: Path, is_same: Callable[[PackReport], bool], write: Callable[[Path], PackReport]
) -> PackReport:
    """Have a pack written into a new folder that then becomes `out`, unless `out` holds the same
    one; returns its report. Raises DataError if `out` holds other things, OSError."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with locked(out.with_name(f".{out.name}.pack-lock")) as alone:
        if alone:
            _remove_debris(out)
        found = read_report(out)
        if found and is_same(found):
            return found
        temporary = out.with_name(f"{_temporary_prefix(out)}{uuid.uuid4().hex}")
        try:
            temporary.mkdir()
            return _publish(temporary, out, write(temporary))
        finally:
            if temporary.exists():
                shutil.rmtree(temporary)


def _is_same(
    found: PackReport, plan: FolderPlan, samples_per_shard: int, tokeniser: Tokeniser | None
) -> bool:
    vocabulary = tokeniser.vocabulary if tokeniser else None
    wanted = plan.digest, samples_per_shard, vocabulary
    return (found.plan, found.samples_per_shard, found.vocabulary) == wanted


def _write(
    plan: FolderPlan,
    source: Path,
    folder: Path,
    samples_per_shard: int,
    tokeniser: Tokeniser | None,
    progress: Callable[[int, int], None] | None,
) -> PackReport:
    """Write shards, indexes, manifest and report into `folder`, durably."""
    shards: list[PackedShard] = []
    rows: list[ShardRow] = []
    total = len(plan.samples)
    for first in range(0, total, samples_per_shard):
        samples = plan.samples[first : first + samples_per_shard]
        path = folder / f"shard-{len(shards):06d}.tar"
        index = _write_shard(path, source, samples, tokeniser)
        sidecar.save(str(path), index)
        rows.append(row_of(str(path), index))
        shards.append(PackedShard(path.name, index.bytes, str(index.hash), len(samples)))
        if progress:
            progress(first + len(samples), total)
    report = PackReport(
        plan=plan.digest,
        samples_per_shard=samples_per_shard,
        shards=tuple(shards),
        samples=total,
        files=sum(len(sample) for sample in plan.samples),
        bytes=sum(file.size for sample in plan.samples for file in sample),
        skipped=plan.skipped,
        vocabulary=tokeniser.vocabulary if tokeniser else None,
    )
    save_manifest(rows, folder / NAME, _TOKENS if tokeniser else None)
    if tokeniser:
        write_atomically(folder / TOKENIZER, tokeniser.content)
    write_report(folder, report)
    return report


def _write_shard(
    path: Path,
    source: Path,
    samples: Sequence[Sequence[SourceFile]],
    tokeniser: Tokeniser | None,
) -> ShardIndex:
    """Write one shard. Raises DataError for a file whose length differs from the plan."""
    shard, counts = ShardFile(path), []
    try:
        if tokeniser is None:
            for name, content in _files(source, samples):
                shard.add(name, content)
            return shard.finish()
        for name, content in _tokens(source, samples, tokeniser):
            shard.add(name, content)
            counts.append(of_sample({_TOKENS: content}, _TOKENS))
        return with_tokens(shard.finish(), counts, _TOKENS)
    except BaseException:
        shard.abort()
        raise


def _files(source: Path, samples: Sequence[Sequence[SourceFile]]) -> Iterator[tuple[str, bytes]]:
    for file in (file for sample in samples for file in sample):
        content = (source / file.name).read_bytes()
        if len(content) != file.size:
            raise DataError(f"{source / file.name} changed while packing; pack again")
        yield file.name, content


def _tokens(
    source: Path, samples: Sequence[Sequence[SourceFile]], tokeniser: Tokeniser
) -> Iterator[tuple[str, bytes]]:
    for sample in samples:
        if len(sample) > 1:
            names = ", ".join(file.name for file in sample)
            raise DataError(
                f"{source}: {names} would be one sample, but tokens are made from samples with one "
                "file; choose files by their suffix"
            )
    texts = [_text(source / name, content) for name, content in _files(source, samples)]
    keys = (sample[0].key for sample in samples)
    for key, content in zip(keys, tokeniser.members(texts), strict=True):
        yield f"{key}.{_TOKENS}", content


def _text(path: Path, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error}; exclude it") from error


def _publish(temporary: Path, out: Path, report: PackReport) -> PackReport:
    """Rename the finished folder to `out`; if another process was faster, its content must be the
    same."""
    found = read_report(out)
    if found is None:
        try:
            temporary.rename(out)  # replaces an empty folder, fails on any other
        except OSError:
            found = read_report(out)
            if found is None:
                raise
        else:
            fsync_path(out.parent)
            return report
    if (found.shards, found.vocabulary) != (report.shards, report.vocabulary):
        raise DataError(f"{out} already contains another pack; remove it or choose another folder")
    return found


def _temporary_prefix(out: Path) -> str:
    return f".{out.name}.packing-{socket.gethostname()}-"


def _remove_debris(out: Path) -> None:
    """Remove what killed packers of `out` left behind."""
    for path in out.parent.iterdir():
        if not path.name.startswith(f".{out.name}.packing-"):
            continue
        ours = path.name.startswith(_temporary_prefix(out))
        if ours or time.time() - path.stat().st_mtime > DEBRIS_AGE_S:
            _log.info("removing %s, which a killed packer left", path)
            shutil.rmtree(path)


def _warn_of_links(source: Path, plan: FolderPlan) -> None:
    if count := plan.skipped.get(FOLDER_LINK, 0):
        _log.warning("%s: %d %s not followed", source, count, _links(count, "to folders"))
    if count := plan.skipped.get(BROKEN_LINK, 0):
        what = _links(count, "to files that do not exist")
        _log.warning("%s: %d %s skipped", source, count, what)


def _links(count: int, where: str) -> str:
    return f"link {where} was" if count == 1 else f"links {where} were"


def _warn_of_merged_files(source: Path, plan: FolderPlan) -> None:
    """Warn of files that are one sample by webdataset's rule, and look like several."""
    if found := look_alike(plan.samples):
        one, two = found[0]
        _log.warning(
            "%s: %s files that look like several samples, such as %s and %s, which both belong "
            "to sample %s, because a key ends at the first dot; if they are samples of their own, "
            "rename them, such as to %s",
            source,
            "1 sample has" if len(found) == 1 else f"{len(found)} samples have",
            one.name,
            two.name,
            one.key,
            _without_inner_dots(one if "." in one.extension else two),
        )


def _without_inner_dots(file: SourceFile) -> str:
    stem, _, kind = file.extension.rpartition(".")
    return f"{file.key}-{stem.replace('.', '-')}.{kind}"
