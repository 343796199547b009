"""Samples that fail: raised, left out or replaced, counted, and never the end of an epoch."""

import bz2
import gzip
import lzma
import random
from pathlib import Path
from typing import Any

import pytest
import webdataset as wds
from torch.utils.data import DataLoader

from data import DataError, SampleError, ShardError, Sources
from data.errors import IndexingError
from data.wds.dataset import StreamingDataset
from data.wds.loader import WebLoader
from data.wds.pipeline_conversion import from_wds
from tests.integration.data.wds_shards import KEYS, keys_of, write_shards
from tests.unit.data.tars import tar_bytes

BAD = {"k005", "k017", "k030"}


def fail(each: dict[str, Any]) -> dict[str, Any]:
    if each["__key__"] in BAD:
        raise ValueError(f"cannot decode {each['__key__']}")
    return each


def fail_always(each: dict[str, Any]) -> dict[str, Any]:
    raise ValueError("nothing can be decoded")


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_shards(tmp_path_factory.mktemp("shards"))


def pipeline(urls: list[str], handler: Any = None, **kw: Any) -> StreamingDataset:
    handled = {} if handler is None else {"handler": handler}
    base: StreamingDataset = (
        StreamingDataset(urls, **kw).map(fail, **handled).to_tuple("__key__").batched(5)
    )
    return base


def test_an_error_is_raised_with_its_place_and_stays_ahead(urls: list[str]) -> None:
    dataset = pipeline(urls, shuffle=False)
    iterator = iter(dataset)
    assert next(iterator)[0] == [f"k{i:03d}" for i in range(5)]
    with pytest.raises(SampleError, match="cannot decode k005") as caught:
        next(iterator)
    assert (caught.value.position, caught.value.key) == (5, "k005")
    assert isinstance(caught.value.__cause__, ValueError)
    assert dataset.state_dict()["position"] == 5


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_that_a_handler_bears_are_left_out_and_counted(
    urls: list[str], workers: int
) -> None:
    loader = WebLoader(pipeline(urls, wds.ignore_and_continue), num_workers=workers)
    keys = keys_of(loader)
    assert sorted(keys) == [k for i in range(KEYS) if (k := f"k{i:03d}") not in BAD]
    assert loader.errors == 3
    assert loader.state_dict()["position"] == KEYS


def test_other_samples_come_in_the_place_of_bad_ones(urls: list[str]) -> None:
    dataset = pipeline(urls, errors="substitute", streams=4)
    batches = [batch[0] for batch in dataset]
    assert [len(batch) for batch in batches] == [5] * 9 + [2]
    assert set(keys_of([(batch,) for batch in batches])).isdisjoint(BAD)
    assert dataset.errors == 3
    assert batches == [
        batch[0] for batch in WebLoader(pipeline(urls, errors="substitute", streams=4))
    ]


def test_a_substitute_gets_the_random_numbers_of_the_position_that_it_takes(
    urls: list[str],
) -> None:
    def draw(each: dict[str, Any]) -> dict[str, Any]:
        return {**each, "drawn": random.random()}

    def drawn(first: Any) -> list[float]:
        pipeline: Any = StreamingDataset(urls, errors="substitute", streams=4)
        return [number for (number,) in pipeline.map(first).map(draw).to_tuple("drawn")]

    undisturbed = drawn(dict)
    assert len(set(undisturbed)) == KEYS
    assert drawn(fail) == undisturbed


def test_a_budget_ends_it(urls: list[str]) -> None:
    for kw in ({"most_errors": 2}, {"most_errors_in_a_row": 0}):
        with pytest.raises(DataError, match="samples were bad"):
            list(pipeline(urls, wds.ignore_and_continue, **kw))
    everything = StreamingDataset(urls).map(fail_always, handler=wds.ignore_and_continue).batched(5)
    with pytest.raises(DataError, match="11 of them one after another"):
        list(everything)


def test_a_handler_of_ones_own_that_says_stop_is_an_error(urls: list[str]) -> None:
    with pytest.raises(SampleError, match="cannot decode"):
        list(pipeline(urls, lambda error: False))
    stopping = StreamingDataset(urls, exact=False).map(fail, handler=lambda error: False)
    with pytest.raises(DataError, match="a handler stopped"):
        list(stopping)


def test_errors_of_workers_are_the_errors_themselves(urls: list[str]) -> None:
    with pytest.raises(SampleError, match="cannot decode") as caught:
        list(WebLoader(pipeline(urls), num_workers=2))
    assert caught.value.key in BAD
    with pytest.raises(RuntimeError, match="SampleError"):
        list(DataLoader(pipeline(urls), batch_size=None, num_workers=2))


def test_what_collation_and_stages_of_batches_raise_is_told(urls: list[str]) -> None:
    plain = StreamingDataset(urls)
    with pytest.raises(DataError, match=r"collation failed on positions 0\.\.4: .*KeyError"):
        list(plain.batched(5, collation_fn=lambda rows: rows[0]["no such"]))
    with pytest.raises(DataError, match=r"a stage failed on the batch of positions 0\.\.4"):
        list(plain.batched(5).map(lambda batch: batch["no such"]))


def test_steps_of_which_nothing_is_left(urls: list[str]) -> None:
    def some(**kw: Any) -> Any:
        base = StreamingDataset(urls, shuffle=False, **kw).decode(only="cls")
        return base.select(lambda each: not 10 <= each["cls"] < 20).to_tuple("__key__").batched(5)

    expected = [
        [f"k{i:03d}" for i in range(at, min(at + 5, KEYS))] for at in (0, 5, *range(20, 47, 5))
    ]
    for workers in (0, 3):
        assert [batch[0] for batch in WebLoader(some(), num_workers=workers)] == expected
    assert [batch[0] for batch in some()] == expected
    with pytest.raises(DataError, match="WebLoader"):
        list(DataLoader(some(), batch_size=None, num_workers=2))
    with pytest.raises(DataError, match="the other ranks would continue"):
        list(some(rank=0, world_size=2))
    with pytest.raises(DataError, match="would get out of step"):
        list(StreamingDataset(urls, rank=0, world_size=2).select(bool))


def test_damage_is_raised_or_left_out(tmp_path: Path) -> None:
    urls = write_shards(tmp_path)
    base = wds.WebDataset(urls, shardshuffle=False, handler=wds.ignore_and_continue)
    strict = wds.WebDataset(urls, shardshuffle=False).to_tuple("__key__").batched(5)
    bearing, strictly = from_wds(base.to_tuple("__key__").batched(5)), from_wds(strict)
    assert strictly.samples == bearing.samples == KEYS
    found = bytearray(Path(urls[1]).read_bytes())
    found[:2048] = b"x" * 2048
    Path(urls[1]).write_bytes(found)
    with pytest.raises(SampleError) as caught:
        list(strictly)
    assert isinstance(caught.value.__cause__, ShardError | DataError)
    assert len(keys_of(bearing)) == KEYS - 9  # all of that shard
    assert bearing.errors == 9


def test_a_shard_that_is_no_tar_is_left_out_where_a_handler_accepts_it(tmp_path: Path) -> None:
    urls = write_shards(tmp_path)
    Path(urls[1]).write_bytes(b"no tar" * 1000)
    accepting = wds.WebDataset(urls, shardshuffle=False, handler=wds.warn_and_continue)
    found = from_wds(accepting.to_tuple("__key__").batched(5))
    assert found.samples == len(keys_of(found)) == KEYS - 9
    of_two = from_wds(accepting.to_tuple("__key__").batched(5), rank=0, world_size=2)
    with pytest.raises(IndexingError, match="1 of"):  # the other rank may see it whole
        of_two.samples  # noqa: B018
    with pytest.raises(IndexingError, match="1 of"):
        from_wds(wds.WebDataset(urls, shardshuffle=False).batched(5)).samples  # noqa: B018


def test_arguments_that_make_no_sense(urls: list[str]) -> None:
    for kw, said in (
        ({"global_batch": 12, "rank": 0, "world_size": 2}, r"use batched\(6\)"),
        ({"rank": 2, "world_size": 2}, "rank must be"),
        ({"rank": 1}, "both rank and world_size"),
        ({"rank": 0, "world_size": 60}, "too few for 60 ranks"),
        ({"threads": -1}, "at least 0"),
        ({"errors": "ignore"}, "errors must be one of"),
        ({"tail": "cut"}, "tail must be one of"),
    ):
        with pytest.raises(DataError, match=said):
            list(StreamingDataset(urls, **kw).to_tuple("__key__").batched(5))
    with pytest.raises(DataError, match="is not supported here"):
        WebLoader(StreamingDataset(urls), shuffle=True)
    with pytest.raises(DataError, match="straddle"):
        list(StreamingDataset(urls, tail="drop").with_epoch(3))


def test_tars_of_which_webdataset_gives_other_samples_are_refused(tmp_path: Path) -> None:
    divided = [("a.txt", b"1"), ("b.txt", b"2"), ("a.cls", b"3")]
    joined = tar_bytes(divided[:1]) + tar_bytes(divided[1:2])
    cases = {
        "divided": (tar_bytes(divided), ["a", "b", "a"], "continues key 'a' after other samples"),
        "joined": (joined, ["a"], "data after the end"),
    }
    for name, (content, keys, said) in cases.items():
        path = tmp_path / f"{name}.tar"
        path.write_bytes(content)
        theirs = wds.WebDataset(str(path), shardshuffle=False)
        assert [sample["__key__"] for sample in theirs] == keys
        with pytest.raises(IndexingError, match=said):
            list(from_wds(wds.WebDataset(str(path), shardshuffle=False)))


def test_compressed_tars_are_read_or_refused_by_name(tmp_path: Path) -> None:
    content = tar_bytes([(f"{n}.txt", b"%d" % n) for n in range(3)])
    options: dict[str, Any] = {"cache": tmp_path / "cache", "cache_bytes": 1 << 20}

    def texts(samples: Any) -> list[bytes]:
        return [sample["txt"] for sample in samples]

    for end, pack in (("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)):
        path = tmp_path / f"a.tar.{end}"
        path.write_bytes(pack(content))
        theirs = texts(wds.WebDataset(str(path), shardshuffle=False))
        ours = from_wds(wds.WebDataset(str(path), shardshuffle=False), **options)
        if end == "gz":
            assert texts(ours) == theirs
            continue
        with pytest.raises(IndexingError, match=f"compressed with {end[:2]}"):
            list(ours)
        command = f"pipe:{'xz' if end == 'xz' else 'bzip2'} -dc {path}"
        piped = wds.WebDataset(command, shardshuffle=False)
        assert texts(from_wds(piped, sources=Sources(pipes="exec"), **options)) == theirs
    with pytest.raises(DataError, match="only read from a file system"):
        list(from_wds(wds.WebDataset("http://127.0.0.1:9/a.tar.gz", shardshuffle=False), **options))
