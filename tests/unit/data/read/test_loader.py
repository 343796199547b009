"""The loader: one position of state, errors on their batch, no thread left behind."""

import gc
import inspect
import json
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data import (
    ORDER,
    Batch,
    DataError,
    Dataset,
    FingerprintError,
    Loader,
    LoaderOptions,
    Sample,
    SampleContext,
    SampleError,
    open_dataset,
    pack_folder,
)
from data.read.batches.grouped_prefetch import GroupedPrefetcher
from data.read.batches.thread_prefetch import make_prefetcher
from data.read.loader import _grouping

N = 23


def make(tmp_path: Path, count: int = N) -> Dataset:
    """`count` samples in shards of 5; the sample of key `i` holds the number i."""
    source = tmp_path / f"src{count}"
    source.mkdir()
    for i in range(count):
        (source / f"{i:03d}.txt").write_bytes(str(i).encode())
    pack_folder(source, tmp_path / f"out{count}", samples_per_shard=5)
    return open_dataset(tmp_path / f"out{count}")


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return make(tmp_path)


def reader_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("hpckit-data")]


def reader_threads_end() -> bool:
    """Whether all of them do soon."""
    deadline_s = time.monotonic() + 60.0
    while reader_threads() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return not reader_threads()


@pytest.fixture(autouse=True)
def earlier_readers() -> None:
    """Those of the tests before are told to end with their loaders, and not waited for there."""
    if reader_threads():
        gc.collect()
        reader_threads_end()


def take(loader: Loader, count: int) -> list[Batch]:
    return list(islice(loader, count))


def numbers(batches: list[Batch]) -> list[int]:
    return [int(sample["txt"]) for batch in batches for sample in batch.data]


def test_each_epoch_has_every_sample_once_and_batches_straddle(dataset: Dataset) -> None:
    batches = take(Loader(dataset, global_batch=7, seed=1), 23)
    at = [position for batch in batches for position in batch.positions]
    stream = [number for _, number in sorted(zip(at, numbers(batches), strict=True))]
    for epoch in range(7):
        assert sorted(stream[epoch * N : (epoch + 1) * N]) == list(range(N))
    assert [sorted(batch.positions) for batch in batches] == [
        list(range(p, p + 7)) for p in range(0, 161, 7)
    ]
    assert [batch.epoch for batch in batches] == [p // N for p in range(0, 161, 7)]
    assert batches[0].keys == tuple(sample["__key__"] for sample in batches[0].data)
    assert batches[0].data[0]["__url__"].endswith(".tar")


def test_a_batch_may_be_larger_than_the_dataset(dataset: Dataset) -> None:
    (batch,) = take(Loader(dataset, global_batch=3 * N), 1)
    assert Counter(numbers([batch])) == dict.fromkeys(range(N), 3)


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize(("prefetch", "threads"), [(1, 1), (5, 3), (1, 0)])
def test_topology_and_threads_do_not_change_the_stream(
    dataset: Dataset, world: int, prefetch: int, threads: int
) -> None:
    ranks = [
        take(
            Loader(
                dataset,
                global_batch=7,
                rank=rank,
                world_size=world,
                uneven="ragged",
                prefetch=prefetch,
                threads=threads,
            ),
            5,
        )
        for rank in range(world)
    ]
    steps = [numbers(list(step)) for step in zip(*ranks, strict=True)]
    assert steps == [numbers([batch]) for batch in take(Loader(dataset, global_batch=7), 5)]


def test_augmentation_is_the_same_on_any_topology(dataset: Dataset) -> None:
    def draw(sample: Sample, context: SampleContext) -> tuple[int, int, float]:
        return context.position, context.epoch, float(context.rng.random())

    one = take(Loader(dataset, global_batch=6, seed=9, transform=draw), 8)
    both = [
        take(Loader(dataset, global_batch=6, rank=r, world_size=2, seed=9, transform=draw), 8)
        for r in (0, 1)
    ]
    flat = [item for batch in one for item in batch.data]
    assert sorted(i for batches in both for b in batches for i in b.data) == sorted(flat)
    assert sorted((p, e) for p, e, _ in flat) == [(p, p // N) for p in range(48)]
    assert len({value for *_, value in flat}) == 48


def test_collate_and_bytes(dataset: Dataset) -> None:
    loader = Loader(
        dataset, global_batch=N, transform=lambda sample, _: int(sample["txt"]), collate=sum
    )
    (batch,) = take(loader, 1)
    assert batch.data == sum(range(N))
    assert loader.bytes_read == 10 + 2 * 13
    assert loader.wait_s >= 0


def test_the_state_is_small_and_counts_what_was_delivered(dataset: Dataset) -> None:
    loader = Loader(dataset, global_batch=7, seed=2**64 - 1, prefetch=4)
    iterator = iter(loader)
    assert loader.state_dict()["position"] == 0
    next(iterator)
    next(iterator)
    state = loader.state_dict()
    assert state == {
        "order": ORDER,
        "fingerprint": dataset.fingerprint[:32],
        "seed": 2**64 - 1,
        "streams": 48,
        "window": 8,
        "position": 14,
    }
    assert len(json.dumps({**state, "position": 2**62})) < 200
    other = Loader(dataset, global_batch=7, rank=1, world_size=3, seed=2**64 - 1, uneven="ragged")
    take(other, 2)
    assert other.state_dict() == state


def test_resume_goes_on_at_the_next_sample(dataset: Dataset) -> None:
    whole = numbers(take(Loader(dataset, global_batch=1), 80))
    loader = Loader(dataset, global_batch=4)
    take(loader, 7)
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = Loader(dataset, global_batch=13)
    resumed.load_state_dict(state)
    for step, batch in enumerate(take(resumed, 4)):
        first = 28 + 13 * step
        assert numbers([batch]) == [whole[position] for position in batch.positions]
        assert sorted(batch.positions) == list(range(first, first + 13))


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_left_out_stays_left_out_on_any_world(dataset: Dataset, workers: int) -> None:
    before = Loader(dataset, global_batch=4, seed=1)
    every = numbers(take(Loader(dataset, global_batch=1, seed=1), 5 * N))
    assert sorted(numbers(take(before, 2))) == sorted(every[:8])
    state = before.state_dict()
    cured = Loader(dataset, global_batch=4, seed=1)
    cured.load_state_dict(state)
    cured.skip(12, 20)
    assert sorted(numbers(take(cured, 1))) == sorted(every[8:12])
    assert cured.state_dict()["skipped"] == [[12, 20]]
    later = json.loads(json.dumps(cured.state_dict()))
    got = []
    for rank in range(3):
        resumed = Loader(dataset, global_batch=6, seed=1, rank=rank, world_size=3, workers=workers)
        resumed.load_state_dict(later)
        got += numbers(take(resumed, 10))
        resumed.close()
        assert resumed.state_dict()["skipped"] == [[12, 20]]
    kept = [number for number in every[20:] if number not in every[12:20]]  # in each epoch
    assert sorted(got) == sorted(kept[:60])


def test_no_loader_is_left_without_samples(dataset: Dataset) -> None:
    loader = Loader(dataset, global_batch=4)
    loader.skip(0, N - 1)
    with pytest.raises(DataError, match="none would be left"):
        loader.skip(N - 1, N)
    assert {len(set(batch.keys)) for batch in take(loader, 2)} == {1}


def test_nothing_is_left_out_once_iteration_began(dataset: Dataset) -> None:
    loader = Loader(dataset, global_batch=4)
    with pytest.raises(DataError, match="a range of positions"):
        loader.skip(3, 3)
    take(loader, 1)
    with pytest.raises(DataError, match="after iteration began"):
        loader.skip(3, 5)


def test_a_second_iteration_goes_on(dataset: Dataset) -> None:
    loader = Loader(dataset, global_batch=4)
    first = iter(loader)
    got = [next(first), next(first)]
    second = iter(loader)
    got += [next(second), next(second)]
    assert numbers(got) == numbers(take(Loader(dataset, global_batch=4), 4))
    with pytest.raises(DataError, match="another iteration"):
        next(first)


def test_a_state_is_not_taken_once_iteration_began(dataset: Dataset) -> None:
    loader = Loader(dataset, global_batch=4)
    state = loader.state_dict()
    loader.load_state_dict(state)
    take(loader, 1)
    loader.close()
    with pytest.raises(DataError, match="after iteration began"):
        loader.load_state_dict(state)


def test_a_state_of_another_stream_says_what_differs(dataset: Dataset, tmp_path: Path) -> None:
    state = Loader(dataset, global_batch=4, seed=3).state_dict()
    with pytest.raises(FingerprintError, match="seed is 3 in the state, but 4 here"):
        Loader(dataset, global_batch=4, seed=4).load_state_dict(state)
    with pytest.raises(FingerprintError, match="order is 'order-x' in the state, but 'order-1'"):
        Loader(dataset, global_batch=4, seed=3).load_state_dict({**state, "order": "order-x"})
    other = make(tmp_path, 9)
    with pytest.raises(FingerprintError, match="fingerprint is '") as caught:
        Loader(other, global_batch=4, seed=3).load_state_dict(state)
    found = caught.value.differences["fingerprint"]
    assert found == (dataset.fingerprint[:32], other.fingerprint[:32])


def test_a_state_of_before_with_the_whole_fingerprint_is_taken(dataset: Dataset) -> None:
    state = {**Loader(dataset, global_batch=4).state_dict(), "fingerprint": dataset.fingerprint}
    loader = Loader(dataset, global_batch=4)
    loader.load_state_dict({**state, "position": 8})
    assert sorted(take(loader, 1)[0].positions) == [8, 9, 10, 11]


def test_numbers_of_numpy_are_numbers_and_others_are_refused(dataset: Dataset) -> None:
    numbers = {"seed": np.int64(2), "streams": np.uint8(3), "window": np.int32(2)}
    loader = Loader(dataset, global_batch=np.int64(4), **numbers)  # type: ignore[arg-type]
    assert len(next(iter(loader)).keys) == 4
    loader.close()
    assert json.loads(json.dumps(loader.state_dict())) == loader.state_dict()
    for name in ("global_batch", "rank", "seed", "streams", "window", "remix_every", "epochs"):
        with pytest.raises(DataError, match=rf"{name} must be a whole number( or None)?, got 1\.5"):
            Loader(dataset, **{"global_batch": 4, name: 1.5})  # type: ignore[arg-type]


def test_a_state_of_an_impossible_window_is_refused(dataset: Dataset) -> None:
    loader = Loader(dataset, global_batch=4)
    with pytest.raises(DataError, match="window must be in 1"):
        loader.load_state_dict({**loader.state_dict(), "window": 2**63})


@pytest.mark.parametrize("change", [{"position": -1}, {"position": "3"}, {"position": 2**62}])
def test_what_is_no_state_is_refused(dataset: Dataset, change: dict[str, Any]) -> None:
    loader = Loader(dataset, global_batch=4)
    with pytest.raises(DataError, match="not a loader's state"):
        loader.load_state_dict({**loader.state_dict(), **change})
    with pytest.raises(DataError, match="not a loader's state"):
        loader.load_state_dict({})
    with pytest.raises(DataError, match="not a loader's state: None"):
        loader.load_state_dict(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments",
    [
        {"global_batch": 0},
        {"global_batch": 2, "world_size": 3},
        {"global_batch": 4, "streams": 0},
        {"global_batch": 4, "window": 0},
        {"global_batch": 4, "epochs": 0},
        {"global_batch": 4, "uneven": "odd"},
        {"global_batch": 4, "tail": "odd"},
        {"global_batch": 4, "errors": "odd"},
        {"global_batch": 4, "most_errors": -1},
        {"global_batch": 4, "rank": 1},
        {"global_batch": 4, "rank": -1},
        {"global_batch": 4, "seed": -1},
        {"global_batch": 4, "prefetch": 0},
        {"global_batch": 4, "threads": -1},
    ],
)
def test_impossible_arguments_are_refused(dataset: Dataset, arguments: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"must be|must not be|no step|cannot be shared evenly"):
        Loader(dataset, **arguments)


def test_an_empty_dataset_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "empty.tar", "w"):
        pass
    with pytest.raises(DataError, match=r"no samples in its 1 shards, such as .*empty\.tar"):
        Loader(open_dataset(tmp_path), global_batch=4)


def failing_at(position: int) -> Callable[[Sample, SampleContext], Sample]:
    def transform(sample: Sample, context: SampleContext) -> Sample:
        if context.position == position:
            raise ZeroDivisionError("boom")
        return sample

    return transform


def test_an_error_comes_on_its_batch_and_names_the_sample(dataset: Dataset) -> None:
    loader = Loader(dataset, global_batch=4, transform=failing_at(9), prefetch=5)
    iterator = iter(loader)
    got = [next(iterator), next(iterator)]
    with pytest.raises(SampleError, match=r"position 9, sample '.*ZeroDivisionError: boom") as one:
        next(iterator)
    loader.close()
    assert not reader_threads()
    assert isinstance(one.value.__cause__, ZeroDivisionError)
    number = numbers(take(Loader(dataset, global_batch=1), 10))[9]
    assert one.value.key == f"{number:03d}"
    assert Path(one.value.shard).name == f"shard-{number // 5:06d}.tar"
    assert loader.state_dict()["position"] == 8
    assert numbers(got) == numbers(take(Loader(dataset, global_batch=4), 2))
    with pytest.raises(DataError, match="ended with an error"):
        next(iterator)
    with pytest.raises(SampleError, match="position 9"):
        take(loader, 1)


def test_a_failed_batch_can_be_tried_again(dataset: Dataset) -> None:
    fail = [True]

    def once(sample: Sample, context: SampleContext) -> Sample:
        if fail and context.position == 5:
            raise OSError(fail.pop())
        return sample

    loader = Loader(dataset, global_batch=4, transform=once)
    with pytest.raises(SampleError):
        take(loader, 2)
    rest = take(loader, 2)
    assert sorted(rest[0].positions) == [4, 5, 6, 7]


def test_a_failing_collate_is_named(dataset: Dataset) -> None:
    loader = Loader(dataset, global_batch=4, collate=lambda items: items[99])
    with pytest.raises(DataError, match=r"collate failed on positions \d\.\.\d: IndexError"):
        take(loader, 1)


def test_threads_end_with_close(dataset: Dataset) -> None:
    loader = Loader(dataset, global_batch=4, threads=3, prefetch=6)
    iterator = iter(loader)
    next(iterator)
    assert reader_threads()
    loader.close()
    assert not reader_threads()
    with pytest.raises(DataError, match="was closed"):
        next(iterator)
    loader.close()
    assert sorted(take(loader, 1)[0].positions) == [4, 5, 6, 7]
    loader.close()


def test_the_end_of_a_with_block_closes_a_loader(dataset: Dataset) -> None:
    with Loader(dataset, global_batch=4) as loader:
        batches = iter(loader)
        next(batches)
    with pytest.raises(DataError, match="the loader was closed"):
        next(batches)


def test_threads_end_with_the_iterator(dataset: Dataset) -> None:
    loader = Loader(dataset, global_batch=4, threads=3)
    for _ in loader:
        break
    gc.collect()
    assert reader_threads_end()  # they are told, not waited for


def test_without_threads_the_consumer_reads(dataset: Dataset) -> None:
    """One batch when it is asked for, with the same errors and the same end."""
    seen: dict[int, int] = {}

    def note(sample: Sample, context: SampleContext) -> Sample:
        seen[context.position] = threading.get_ident()
        return failing_at(9)(sample, context)

    loader = Loader(dataset, global_batch=4, transform=note, threads=0, prefetch=5)
    iterator = iter(loader)
    for delivered in (4, 8):
        next(iterator)
        assert len(seen) == delivered
    assert set(seen.values()) == {threading.get_ident()}
    with pytest.raises(SampleError, match="position 9"):
        next(iterator)
    with pytest.raises(DataError, match="ended with an error"):
        next(iterator)
    assert loader.state_dict()["position"] == 8
    loader.close()
    assert [len(b.data) for b in Loader(dataset, global_batch=23, epochs=2, threads=0)] == [N, N]


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_what_comes_before_an_error_of_the_plan_is_delivered(threads: int) -> None:
    def steps() -> Iterator[int]:
        yield from range(3)
        raise DataError("no more of these")

    made = make_prefetcher(str, steps(), depth=4, threads=threads)
    assert [made.next() for _ in range(3)] == ["0", "1", "2"]
    with pytest.raises(DataError, match="no more of these"):
        made.next()
    with pytest.raises(DataError, match="ended with an error"):
        made.next()
    made.close("it is over")


@pytest.mark.parametrize("last", [DataError, None])
@pytest.mark.parametrize("most", [1, 4])
def test_threads_end_with_what_they_have_to_do(last: type[DataError] | None, most: int) -> None:
    """And not only when somebody collects the garbage."""

    def load(number: int) -> int:
        if number == 9 and last is not None:
            raise last
        return number

    gc.collect()
    gc.disable()
    try:
        made = GroupedPrefetcher(load, iter(range(10)), most=most, depth=2, threads=2)
        with suppress(StopIteration, DataError):
            while True:
                made.next()
        assert reader_threads_end()
    finally:
        gc.enable()


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_results_come_in_order_and_then_the_end(threads: int) -> None:
    made = make_prefetcher(str, iter(range(200)), depth=5, threads=threads)
    assert [made.next() for _ in range(200)] == [str(i) for i in range(200)]
    for _ in range(2):
        with pytest.raises(StopIteration):
            made.next()
    assert made.ready == 0
    made.close("it is over")


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("most", [1, 4])
def test_groups_change_neither_the_order_nor_where_an_error_comes(threads: int, most: int) -> None:
    def load(number: int) -> int:
        return number // (number != 41)

    made = GroupedPrefetcher(load, iter(range(60)), most=most, depth=2, threads=threads)
    assert [made.next() for _ in range(41)] == list(range(41))
    with pytest.raises(ZeroDivisionError):
        made.next()
    with pytest.raises(DataError, match="ended with an error"):
        made.next()
    made.close("it is over")


def test_a_consumer_is_to_read_by_itself_only_what_takes_python_longest(dataset: Dataset) -> None:
    def may(**more: Any) -> bool:
        return _grouping(Loader(dataset, global_batch=1, **more))[1] is not None

    assert may()
    assert not may(transform=lambda s, _: s)
    assert not may(collate=list)
    dataset.manifest.bytes = dataset.manifest.bytes + 10 * 40_000  # what two samples would have
    assert not may()


def test_small_batches_go_in_groups_if_nobody_can_tell(dataset: Dataset) -> None:
    """The position is that of what was delivered, not of what is there."""
    loader = Loader(dataset, global_batch=1, threads=1, prefetch=1)
    assert _grouping(loader)[0] > 8
    assert _grouping(Loader(dataset, global_batch=1, transform=lambda s, _: s))[0] == 1
    assert _grouping(Loader(dataset, global_batch=200))[0] == 1
    iterator = iter(loader)
    for delivered in range(1, 20):
        next(iterator)
        assert loader.state_dict()["position"] == delivered
    loader.close()
    assert [b.positions for b in take(loader, 2)] == [(19,), (20,)]


def test_close_wakes_a_waiting_consumer(dataset: Dataset) -> None:
    hold, entered = threading.Event(), threading.Event()

    def block(sample: Sample, context: SampleContext) -> Sample:
        entered.set()
        hold.wait()
        return sample

    loader = Loader(dataset, global_batch=1, transform=block, threads=1, prefetch=3)
    iterator = iter(loader)
    errors: list[Exception] = []

    def consume() -> None:
        try:
            while True:
                next(iterator)
        except (DataError, RuntimeError) as error:
            errors.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    entered.wait()
    closer = threading.Thread(target=loader.close)
    closer.start()
    hold.set()
    closer.join()
    consumer.join()
    assert len(errors) == 1
    assert isinstance(errors[0], DataError), errors
    assert not reader_threads()


def test_prefetch_is_bounded(dataset: Dataset) -> None:
    seen: list[int] = []

    def note(sample: Sample, context: SampleContext) -> Sample:
        seen.append(context.position)
        return sample

    loader = Loader(dataset, global_batch=1, transform=note, prefetch=3, threads=2)
    iterator = iter(loader)
    for delivered in range(1, 30):
        next(iterator)
        assert max(seen) < delivered + 3
    loader.close()


def test_a_state_from_inside_a_step_is_refused(dataset: Dataset) -> None:
    loader = Loader(dataset, global_batch=4)
    state = {**loader.state_dict(), "within": 2, "layout": [4, 1]}
    with pytest.raises(DataError, match="by a StreamingDataset inside a step"):
        loader.load_state_dict(state)


def test_a_loader_takes_its_options_as_keywords_or_as_one_object(dataset: Dataset) -> None:
    options = LoaderOptions(global_batch=7, seed=3, streams=2, window=1)
    one = Loader.from_options(dataset, options)
    other = Loader(dataset=dataset, **vars(options))  # type: ignore[call-arg]
    assert numbers(take(one, 5)) == numbers(take(other, 5))
    with pytest.raises(TypeError, match="missing a required argument: 'global_batch'"):
        Loader(dataset)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="no argument is named shuffled; did you mean shuffle"):
        Loader(dataset, global_batch=7, shuffled=True)  # type: ignore[call-arg]
    fields = [name for name in inspect.signature(Loader).parameters if name != "dataset"]
    assert set(fields) == set(vars(options))
