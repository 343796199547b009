"""Batches of real reader processes: the same ones, their errors, their deaths, nothing left."""

import gc
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import data
from data import Batch, DataError, Dataset, Loader, SampleError, open_dataset, pack_folder
from data.errors import ReaderProcessError
from tests.integration.data import reader_functions as functions
from tests.services.processes import bound
from tests.services.range_server import range_server

N = 160
ROOT = Path(data.__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of 20 samples; the sample of key `i` holds the number i."""
    place = tmp_path_factory.mktemp("processes")
    (place / "src").mkdir()
    for i in range(N):
        (place / "src" / f"{i:03d}.txt").write_bytes(str(i).encode())
    pack_folder(place / "src", place / "out", samples_per_shard=20)
    return place / "out"


@pytest.fixture
def dataset(folder: Path) -> Dataset:
    return open_dataset(folder)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pids: list[int], within_s: float = 120) -> bool:
    deadline = time.monotonic() + within_s
    while any(map(alive, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def batch_of(dataset: Dataset, number: int) -> int:
    """Which batch of 8 has the sample `number` in the first epoch."""
    loader = Loader(dataset, global_batch=8, epochs=1)
    (found,) = [i for i, batch in enumerate(loader) if number in batch.indices]
    return found


def test_processes_make_the_batches_of_threads(dataset: Dataset) -> None:
    common: dict[str, Any] = {"global_batch": 12, "seed": 3, "epochs": 2, "tail": "pad"}
    common |= {"transform": functions.number, "rank": 1, "world_size": 2}
    threads = Loader(dataset, **common)
    want = [(batch, threads.state_dict()) for batch in threads]
    loader = Loader(dataset, workers=3, **common)
    batches = iter(loader)
    found = [(batch, loader.state_dict()) for batch in islice(batches, 9)]
    state = loader.state_dict()
    loader.close()
    assert multiprocessing.active_children() == []
    again = Loader(dataset, workers=1, prefetch=3, **common)
    again.load_state_dict(state)
    found += [(batch, again.state_dict()) for batch in again]
    assert [same(batch) for batch, _ in found] == [same(batch) for batch, _ in want]
    assert [state for _, state in found] == [state for _, state in want]
    assert loader.usage.bytes + again.usage.bytes == threads.usage.bytes
    with pytest.raises(StopIteration):
        next(iter(again))


def same(batch: Batch) -> tuple[Any, ...]:
    return (batch.data, batch.keys, batch.positions, batch.mask.tolist(), batch.weight, batch.bytes)


def test_what_processes_fetch_is_counted_here(folder: Path, tmp_path: Path) -> None:
    with range_server() as server:
        urls = [
            server.put(f"/{tar.name}", tar.read_bytes()) for tar in sorted(folder.glob("*.tar"))
        ]
        dataset = open_dataset(urls, cache=tmp_path / "cache", cache_bytes=10**8)
        with dataset.store:
            loader = Loader(dataset, global_batch=16, epochs=1, workers=2, collate=functions.arrays)
            batches = list(loader)
            numbers = sorted(n for batch in batches for n in batch.data["numbers"].tolist())
            assert numbers == list(range(N))
            assert len({batch.data["pid"] for batch in batches} - {os.getpid()}) == 2
            metrics, size = (
                dataset.store.metrics,
                sum(t.stat().st_size for t in folder.glob("*.tar")),
            )
            # who comes late may find it whole; each shard is fetched once, by whichever process
            assert metrics.bytes_fetched == size or (
                metrics.bypasses and metrics.bytes_fetched > size
            ), "a slow download is read past"
            loader.close()


def test_an_error_comes_on_its_batch_with_its_cause(dataset: Dataset) -> None:
    where = batch_of(dataset, 77)
    loader = Loader(dataset, global_batch=8, workers=2, transform=functions.bad_at_77)
    batches = iter(loader)
    for _ in range(where):
        next(batches)
    with pytest.raises(SampleError, match="OddError: seventy-seven") as raised:
        next(batches)
    assert isinstance(raised.value.__cause__, functions.OddError)
    assert "in bad_at_77" in raised.value.__cause__.__notes__[0]
    assert loader.state_dict()["position"] == where * 8
    with pytest.raises(DataError, match="ended with an error"):
        next(batches)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("transform", "words", "code"),
    [
        (functions.dies_at_77, "killed by SIGKILL: .*out of memory", -9),
        (functions.exits_at_77, "exit code 3", 3),
    ],
    ids=["killed", "exit"],
)
def test_a_death_is_told_on_its_batch(
    dataset: Dataset, transform: Callable[..., Any], words: str, code: int
) -> None:
    where = batch_of(dataset, 77)
    loader = Loader(dataset, global_batch=8, workers=2, prefetch=3, transform=transform)
    batches = iter(loader)
    assert len(list(islice(batches, where))) == where
    with pytest.raises(ReaderProcessError, match=words) as raised:
        next(batches)
    assert raised.value.code == code
    assert loader.state_dict()["position"] == where * 8
    assert multiprocessing.active_children() == []


def test_a_death_is_told_though_a_child_of_the_dead_lives_on(dataset: Dataset) -> None:
    loader = Loader(dataset, global_batch=8, workers=1, collate=functions.leaves_a_child_and_dies)
    with pytest.raises(ReaderProcessError, match="exit code 9"):
        next(iter(loader))


def test_what_cannot_begin_says_why(dataset: Dataset) -> None:
    loader = Loader(dataset, global_batch=8, workers=1, transform=functions.Unimportable())
    with pytest.raises(DataError, match=r"cannot start: .*No module named 'decoder'") as raised:
        next(iter(loader))
    assert isinstance(raised.value.__cause__, ModuleNotFoundError)
    loader = Loader(dataset, global_batch=8, workers=1, transform=lambda sample, _: sample)
    with pytest.raises(DataError, match=r"transform \(<function .*lambda.*start_method="):
        iter(loader)
    with pytest.raises(DataError, match="start_method one of"):
        Loader(dataset, global_batch=8, workers=1, start_method="vfork")  # type: ignore[arg-type]


def test_a_batch_that_cannot_be_handed_over(dataset: Dataset) -> None:
    loader = Loader(dataset, global_batch=8, workers=1, collate=functions.unpicklable)
    with pytest.raises(DataError, match=r"cannot send a batch, positions \d+\.\.\d+: .*lambda"):
        next(iter(loader))


def test_a_fork_takes_any_function(dataset: Dataset) -> None:
    add = 1000
    loader = Loader(
        dataset,
        global_batch=8,
        epochs=1,
        workers=2,
        transform=lambda sample, _: int(sample["txt"]) + add,
        start_method="fork",
    )
    assert sorted(n for batch in loader for n in batch.data) == list(range(add, add + N))


@pytest.mark.parametrize("policy", ["skip", "substitute"])
def test_bad_samples_count_here_as_with_threads(dataset: Dataset, policy: Any) -> None:
    common: dict[str, Any] = {"global_batch": 16, "errors": policy, "epochs": 1}
    common |= {"transform": functions.bad_sevens, "most_errors_in_a_row": 50}
    threads = list(Loader(dataset, threads=1, **common))
    loader = Loader(dataset, workers=2, **common)
    batches = list(loader)
    assert [same(batch) for batch in batches] == [same(batch) for batch in threads]
    assert [batch.errors for batch in batches] == [batch.errors for batch in threads]
    errors = loader.usage.errors
    assert errors >= len(range(0, N, 7))
    loader = Loader(dataset, workers=2, most_errors=errors - 1, **common)
    with pytest.raises(DataError, match=f"^{errors} samples were bad") as raised:
        list(loader)
    assert isinstance(raised.value.__cause__, SampleError)
    (last,) = [i for i, batch in enumerate(batches) if batch.errors][-1:]
    assert loader.state_dict()["position"] == 16 * last


def test_larger_batches_are_counted_and_told_once(
    dataset: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    loader = Loader(
        dataset, global_batch=8, epochs=3, workers=1, prefetch=1, collate=functions.larger
    )
    sizes = [len(batch.data) for batch in loader]
    assert sorted(sizes)[-4:] == [10, 5_000_000, 5_000_000, 5_000_000]
    assert loader.usage.grown == 1
    assert sum("shared memory has grown" in text for text in caplog.messages) == 1


def test_who_begins_the_iteration_may_end(dataset: Dataset) -> None:
    """The kernel watches the thread that started a process, and not the process."""
    loader = Loader(dataset, global_batch=8, epochs=1, workers=1)
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(iter(loader)))
    thread.start()
    thread.join()
    time.sleep(0.1)
    assert len(list(made[0])) == N // 8


def test_closing_ends_a_wait_and_garbage_ends_processes(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    wait = functions.Waiting(tmp_path / "gate")
    loader = Loader(dataset, global_batch=N, workers=1, transform=wait, start_method="fork")
    first = iter(loader)
    raised: list[Exception] = []

    def consume() -> None:
        try:
            next(first)
        except DataError as error:
            raised.append(error)

    thread = threading.Thread(target=consume)
    thread.start()
    time.sleep(0.3)
    (tmp_path / "gate").unlink()
    loader.close()
    thread.join(120)
    assert not thread.is_alive()
    assert not raised or "the loader was closed" in str(raised[0])
    batches = iter(loader)
    pids = [child.pid or 0 for child in multiprocessing.active_children()]
    assert len(pids) == 1
    del batches, loader
    gc.collect()
    assert gone(pids)


def start(folder: Path, ending: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-W", "error", "-m", "tests.integration.data.reader_functions"]
    return subprocess.Popen(
        bound([*command, str(folder), ending]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def readers(process: "subprocess.Popen[str]") -> list[int]:
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) == 2, process.communicate()
    return pids


def test_readers_die_with_a_killed_trainer(folder: Path) -> None:
    process = start(folder, "wait")
    pids = readers(process)
    assert all(map(alive, pids))
    process.kill()
    process.communicate()
    assert gone(pids)


def test_signals_to_all_of_a_job_are_the_trainers_affair(folder: Path) -> None:
    process = start(folder, "wait")
    pids = readers(process)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        for pid in pids:
            os.kill(pid, number)
    assert process.communicate(input="", timeout=300) == ("8\n", "")
    assert process.returncode == 0
    assert gone(pids)


@pytest.mark.parametrize("ending", ["close", "raise", "cycle", "end"])
def test_a_trainer_ends(folder: Path, ending: str) -> None:
    process = start(folder, ending)
    pids = readers(process)
    assert process.communicate(timeout=300) == ("", "")
    assert process.returncode == 0
    assert gone(pids)
