"""Token files through the loader: every token once per epoch, on any topology, from any state."""

from __future__ import annotations

import json
import os
import pickle
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data import (
    DataError,
    Dataset,
    FingerprintError,
    Loader,
    Packing,
    SampleError,
    TokenFiles,
    mixed,
    open_dataset,
    pack_token_files,
)
from data.index.token_files import token_documents
from tests.unit.data.token_files import write_arrow, write_flat, write_megatron

LENGTH, BATCH = 8, 6
KINDS = ["ended", "windows", "megatron", *(["arrow"] if find_spec("pyarrow") else [])]
sizes = st.lists(st.integers(1, 20), min_size=1, max_size=60)


def documents_of(lengths: list[int]) -> list[list[int]]:
    """Token t of document d says both, and 60000 ends each document."""
    return [[*(d * 32 + t for t in range(n - 1)), 60000] for d, n in enumerate(lengths)]


def make(folder: Path, kind: str, documents: list[list[int]]) -> Dataset:
    if kind == "megatron":
        return open_dataset(write_megatron(folder / "x", documents))
    if kind == "arrow":
        return open_dataset(write_arrow(folder / "x.arrow", documents))
    ended: dict[str, Any] = {"end_of_text": 60000} if kind == "ended" else {"block_size": LENGTH}
    path = write_flat(folder / "train.bin", documents)
    return open_dataset(path, token_files=TokenFiles(**ended))


def taken(
    dataset: Dataset, worlds: list[int], steps: list[int], **options: Any
) -> tuple[list[Any], list[dict[str, Any]]]:
    """What the ranks of one world after the other take of one epoch, and the state after each."""
    found: list[Any] = []
    states: list[dict[str, Any]] = []
    for world, most in zip(worlds, steps, strict=True):
        state: dict[str, Any] = {}
        for rank in range(world):
            loader = Loader(
                dataset,
                global_batch=BATCH,
                streams=4,
                window=2,
                seed=3,
                threads=0,
                epochs=1,
                tail="pad",
                rank=rank,
                world_size=world,
                **options,
            )
            if states:
                loader.load_state_dict(json.loads(json.dumps(states[-1])))
            for _, batch in zip(range(most), loader, strict=False):
                if "pack" in options:
                    found += batch.data.tokens[batch.mask].ravel().tolist()
                else:
                    found += [
                        s["__key__"] for s, m in zip(batch.data, batch.mask, strict=True) if m
                    ]
            state = loader.state_dict()
            loader.close()
        states.append(state)
    return found, states


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25
)
@given(sizes, st.sampled_from(KINDS), st.permutations([1, 2, 3]), st.integers(0, 9))
def test_an_epoch_has_each_document_once_on_any_worlds(
    tmp_path: Path, lengths: list[int], kind: str, worlds: list[int], first: int
) -> None:
    dataset = make(tmp_path, kind, documents_of(lengths))
    keys, states = taken(dataset, worlds, [first, 2, 10**6])
    assert sorted(keys) == [f"{n:012d}" for n in range(len(dataset))]
    assert all(len(json.dumps(state)) < 200 for state in states)
    (tmp_path / "train.bin.index").unlink(missing_ok=True)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25
)
@given(sizes, st.sampled_from(KINDS), st.permutations([1, 2, 3]), st.integers(0, 9))
def test_an_epoch_has_each_token_once_in_packed_sequences(
    tmp_path: Path, lengths: list[int], kind: str, worlds: list[int], first: int
) -> None:
    documents = documents_of(lengths)
    dataset = make(tmp_path, kind, documents)
    pack = Packing(LENGTH, block=16, pad=-1)
    tokens, _ = taken(dataset, worlds, [first, 2, 10**6], pack=pack)
    due = sorted(token for one in documents for token in one)
    assert sorted(token for token in tokens if token != -1) == due
    (tmp_path / "train.bin.index").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("kind", "reading"),
    [*((kind, {"threads": 3}) for kind in KINDS), ("ended", {"workers": 2})],
)
def test_threads_and_processes_read_the_same(
    tmp_path: Path, kind: str, reading: dict[str, int]
) -> None:
    dataset = make(tmp_path, kind, documents_of([3, 9, 1, 14] * 20))

    def tokens(**options: Any) -> list[list[int]]:
        loader = Loader(dataset, global_batch=5, epochs=1, tail="drop", **options)
        try:
            found = [s["bin"] for batch in loader for s in batch.data]
        finally:
            loader.close()
        assert dataset.manifest.tokens is not None
        return [np.frombuffer(one, dataset.manifest.tokens[4:]).tolist() for one in found]

    assert tokens(**reading) == tokens(threads=0)


def test_large_files_have_more_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_documents, "SHARD_BYTES", 100)
    monkeypatch.setattr(token_documents, "SHARD_DOCUMENTS", 7)
    documents = documents_of([2, 3, 9, 1] * 20)
    for kind in ("ended", "megatron"):
        dataset = make(tmp_path, kind, documents)
        assert len(dataset.manifest) == 12  # of 80 documents
        found = [np.frombuffer(dataset.read(i)["bin"], "u2").tolist() for i in range(80)]
        assert found == documents
        keys, _ = taken(dataset, [2], [10**6])
        assert sorted(keys) == [f"{n:012d}" for n in range(80)]


def test_more_documents_than_can_be_held(tmp_path: Path) -> None:
    path = tmp_path / "huge.bin"
    path.touch()
    os.truncate(path, 1 << 40)  # without blocks on the disk
    with pytest.raises(DataError, match="has 549755813888 documents"):
        open_dataset(path, token_files=TokenFiles(block_size=1))


def test_a_state_of_another_file_is_refused(tmp_path: Path) -> None:
    """A file with as many documents, of the same lengths; and another cut of the same file."""
    documents = documents_of([5] * 30)
    _, states = taken(make(tmp_path, "ended", documents), [1], [2])
    other = make(tmp_path, "ended", documents[::-1])
    for dataset in (other, make(tmp_path, "windows", documents)):
        with pytest.raises(FingerprintError, match="the state was saved for another stream"):
            Loader(dataset, global_batch=BATCH, streams=4, window=2, seed=3).load_state_dict(
                states[0]
            )


def test_the_place_of_a_file_does_not_matter(tmp_path: Path) -> None:
    documents = documents_of([4, 5, 6])
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    for kind in KINDS:
        one, two = (make(tmp_path / name, kind, documents) for name in ("a", "b"))
        assert one.fingerprint == two.fingerprint


def test_files_are_mixed_and_joined(tmp_path: Path) -> None:
    documents = documents_of([4, 5, 6])
    write_megatron(tmp_path / "a", documents)
    write_megatron(tmp_path / "b", documents)
    dataset = open_dataset([tmp_path / "a.bin", tmp_path / "b.bin"])
    assert len(dataset) == 6
    assert dataset.read(3)["__key__"] == "000000000003"
    assert dataset.fingerprint == open_dataset(f"{tmp_path}/*.bin").fingerprint
    both = mixed([dataset, make(tmp_path, "ended", documents)], weights=[1, 1])
    loader = Loader(both, global_batch=4, pack=Packing(LENGTH, block=16), threads=0)
    assert next(iter(loader)).data.tokens.shape == (4, LENGTH)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_mixture_packs_tokens_that_are_stored_in_several_ways(
    tmp_path: Path, workers: int
) -> None:
    """Tars of `npy` and flat files of two types: each is read as its own dataset counts it."""
    narrow = write_flat(tmp_path / "narrow.bin", [[n, 0] for n in range(1, 41)])
    wide = write_flat(tmp_path / "wide.bin", [[70_000 + n, 0] for n in range(40)], "uint32")
    source = write_flat(tmp_path / "source.bin", [[200 + n, 0] for n in range(40)])
    ended = TokenFiles(end_of_text=0)
    pack_token_files(source, tmp_path / "tars", ended)
    files = {narrow: ended, wide: TokenFiles(dtype="uint32", end_of_text=0)}
    datasets = [open_dataset(path, token_files=options) for path, options in files.items()]
    stream = mixed([*datasets, open_dataset(tmp_path / "tars")], [1, 1, 1], block=12)
    with Loader(stream, global_batch=4, pack=Packing(2, block=12), workers=workers) as loader:
        batches = list(islice(loader, 30))
    tokens = [token for batch in batches for token in batch.data.tokens.ravel().tolist() if token]
    assert sorted(tokens) == [*range(1, 41), *range(200, 240), *range(70_000, 70_040)]


def test_a_dataset_is_sent_to_another_process(tmp_path: Path) -> None:
    for kind in KINDS:
        dataset = make(tmp_path, kind, documents_of([4, 5, 6]))
        sent = pickle.loads(pickle.dumps(dataset))
        assert sent.read(1) == dataset.read(1)
        assert sent.fingerprint == dataset.fingerprint


@pytest.mark.parametrize(
    ("shards", "options", "message"),
    [
        ("s3://bucket/train.bin", {}, "only read from a file system"),
        ("https://host/x.arrow?token=1", {}, "only read from a file system"),
        ("{folder}", {"end_of_text": 3}, "end_of_text=3 is given, but it is not a token file"),
        ("{folder}/none-*.bin", {}, "nothing is there"),
        (
            ["{folder}/a.tar", "{folder}/x.bin"],
            {},
            "a.tar is not a token file, and other shards are",
        ),
        (["{folder}/x.bin", "{folder}/x.bin"], {}, "x.bin is given twice"),
        ("{folder}/tokens", {}, "holds no tars, but token files such as y.bin"),
        (["{folder}/x.bin", "{folder}/tokens/y.bin"], {}, "open them as two datasets"),
    ],
)
def test_shards_that_are_refused(
    tmp_path: Path, shards: Any, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "a.tar").write_bytes(b"")
    (tmp_path / "tokens").mkdir()
    write_megatron(tmp_path / "x", [[1]])
    write_megatron(tmp_path / "tokens" / "y", [[1]], "int32")
    items = [shards] if isinstance(shards, str) else shards
    with pytest.raises(DataError, match=message):
        open_dataset(
            [item.format(folder=tmp_path) for item in items], token_files=TokenFiles(**options)
        )


def test_what_only_shards_have_is_refused(tmp_path: Path) -> None:
    path = write_megatron(tmp_path / "x", [[1]])
    with pytest.raises(DataError, match="token files have no checksums"):
        open_dataset(path, check="content")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float32"}, "is not a type of tokens; choose one of uint8"),
        ({"end_of_text": -1}, "end_of_text=-1 is not a token"),
        ({"block_size": 0}, "block_size must be in 1"),
        ({"column": ""}, "column is empty"),
    ],
)
def test_impossible_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        TokenFiles(**options)


def test_a_token_beyond_the_vocabulary_is_named(tmp_path: Path) -> None:
    dataset = make(tmp_path, "ended", documents_of([4, 5, 6]))
    loader = Loader(dataset, global_batch=2, pack=Packing(LENGTH, vocab=60000), threads=0)
    with pytest.raises(SampleError, match="60000 are not of a vocabulary of 60000"):
        next(iter(loader))


def test_a_cache_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_megatron(tmp_path / "x", [[1, 2]])
    dataset = open_dataset(path, cache=tmp_path / "cache", cache_bytes=10**9, cache_local=True)
    assert len(dataset.read(0)["bin"]) == 4
    assert "are read in place, the cache is not used" in caplog.text
    assert not (tmp_path / "cache").exists()
