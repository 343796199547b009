"""Counting what was really seen: exact where the stream was, and never where it was not."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from data.order.skipped_ranges import SkippedRanges
from hpckit.rundir.sample_ledger import (
    EpochCount,
    LedgerEntry,
    count_epochs,
    kept_entries,
    read_ledgers,
    recurring_samples,
)
from hpckit.trainer.sample_ledger_writer import SampleLedgerWriter
from tests.effort import times


def entry(step: int, first: int, *keys: str, life: tuple[int, int] = (1, 0)) -> LedgerEntry:
    positions = tuple(range(first, first + len(keys)))
    return LedgerEntry(step, life[0], life[1], 0, positions, keys)


def key_at(position: int, samples: int) -> str:
    """A stream that takes each sample once per epoch, each epoch in an order of its own."""
    epoch, place = divmod(position, samples)
    return f"k{(place + 3 * epoch) % samples}"


def test_an_epoch_in_which_each_came_once_is_exact() -> None:
    (count,) = count_epochs([entry(1, 0, "a", "b"), entry(2, 2, "c")], samples=3, until=3)
    assert count == EpochCount(epoch=0, samples=3, due=3, seen=3, twice=())
    assert (count.complete, count.exact) == (True, True)


def test_an_entry_that_reaches_into_the_next_epoch_counts_in_both() -> None:
    first, second = count_epochs([entry(1, 0, "a", "b", "c", "a")], samples=3, until=4)
    assert (first.seen, first.exact) == (3, True)
    assert (second.epoch, second.seen, second.complete, second.twice) == (1, 1, False, ())


def test_what_was_left_out_is_not_missing() -> None:
    entries = [entry(1, 0, "a", "b"), entry(2, 4, "e"), entry(3, 5, "a", "b")]
    left_out = SkippedRanges([(2, 4)])
    first, second = count_epochs(entries, samples=5, until=7, left_out=left_out)
    assert (first.due, first.seen, first.left_out, first.exact) == (3, 3, 2, True)
    assert (second.due, second.seen, second.left_out, second.complete) == (2, 2, 0, False)


def test_samples_that_were_left_out_are_so_in_later_epochs() -> None:
    tried = [entry(1, 0, "a", "b"), entry(2, 2, "c", "d")]
    taken = [tried[0], entry(2, 4, "e", "b", life=(1, 1)), entry(3, 7, "a", "e", life=(1, 1))]
    left_out = SkippedRanges([(2, 4)])
    recurring = recurring_samples([*tried, *taken], 5, left_out)
    assert recurring == {"c": 0, "d": 0}
    first, second = count_epochs(taken, 5, 10, left_out, recurring)
    assert (first.exact, first.left_out) == (True, 2)
    assert (second.exact, second.missing, second.left_out) == (True, 0, 2)
    _, second = count_epochs(taken[:2], 5, 7, left_out, recurring)
    assert (second.missing, second.complete) == (0, False)
    _, second = count_epochs(taken[:2], 5, 10, left_out, recurring)
    assert second.missing == 2


def test_a_sample_seen_twice_in_one_epoch_is_named() -> None:
    (count,) = count_epochs([entry(1, 0, "b", "a"), entry(2, 2, "a", "b")], samples=4, until=4)
    assert (count.seen, count.twice) == (2, ("a", "b"))
    assert not count.exact


def test_a_complete_epoch_with_one_too_many_is_not_exact() -> None:
    (count,) = count_epochs([entry(1, 0, "a", "b"), entry(1, 0, "a")], samples=2, until=2)
    assert (count.complete, count.exact) == (True, False)


def test_of_steps_done_twice_only_the_last_life_counts() -> None:
    entries = [
        entry(1, 0, "a"),
        entry(2, 1, "b"),
        entry(2, 1, "b", life=(1, 1)),
        entry(3, 2, "c", life=(1, 1)),
        entry(3, 2, "c", life=(2, 0)),
    ]
    assert kept_entries(reversed(entries), last_step=3) == [entries[0], entries[2], entries[4]]


def test_entries_after_the_last_finished_step_do_not_count() -> None:
    entries = [entry(1, 0, "a"), entry(2, 1, "b")]
    assert kept_entries(entries, last_step=1) == entries[:1]


def test_what_ranks_write_down_is_read_back(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    for rank in range(2):
        for attempt in range(2):
            ledger = SampleLedgerWriter(folder, generation=3, attempt=attempt, rank=rank)
            ledger.write(7, range(10 + rank, 11 + rank), [f"schlüssel/{rank}"])
            ledger.close()
    assert read_ledgers(folder) == [
        LedgerEntry(7, 3, attempt, rank, (10 + rank,), (f"schlüssel/{rank}",))
        for rank in range(2)
        for attempt in range(2)
    ]


LINE = json.dumps({"step": 1, "attempt": 0, "positions": [0], "keys": ["a"]})


def test_a_line_cut_short_is_no_entry(tmp_path: Path) -> None:
    (tmp_path / "g001-rank0.jsonl").write_text(f"{LINE}\n{LINE[:20]}")
    assert [found.keys for found in read_ledgers(tmp_path)] == [("a",)]


def test_a_line_cut_short_costs_only_itself_when_the_next_attempt_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "g001-rank0.jsonl"
    path.write_text(f"{LINE}\n{LINE[:20]}")
    ledger = SampleLedgerWriter(tmp_path, generation=1, attempt=1, rank=0)
    ledger.write(2, range(1, 2), ["b"])
    ledger.write(3, range(2, 3), ["c"])
    ledger.close()
    found = read_ledgers(tmp_path)
    assert [one.keys for one in found] == [("a",), ("b",), ("c",)]


def test_other_files_are_no_ledgers(tmp_path: Path) -> None:
    (tmp_path / "notes.jsonl").write_text(f"{LINE}\n")
    (tmp_path / "g001-rank0.jsonl.bak").write_text(f"{LINE}\n")
    assert read_ledgers(tmp_path) == []


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[LedgerEntry], int, int, int]:
    """Entries of a run that was interrupted at random, each life on a world of its own, and went
    on at the very next sample after its last save; with samples, batch and last step."""
    samples, batch = draw(st.integers(3, 20)), draw(st.sampled_from([2, 4, 12]))
    steps = draw(st.integers(1, 25))
    entries, resumed, life = [], 0, 0
    while resumed < steps:
        reached = draw(st.integers(resumed + 1, steps))
        world = draw(st.sampled_from([n for n in (1, 2, 3, 4, 6) if batch % n == 0]))
        for step in range(resumed + 1, reached + 1):
            torn = step == reached < steps
            for rank in range(draw(st.integers(0, world)) if torn else world):
                first = (step - 1) * batch + rank * (batch // world)
                positions = tuple(range(first, first + batch // world))
                keys = tuple(key_at(position, samples) for position in positions)
                entries.append(LedgerEntry(step, 1 + life // 2, life % 2, rank, positions, keys))
        resumed = steps if reached == steps else draw(st.integers(resumed, reached - 1))
        life += 1
    return entries, samples, batch, steps


@settings(max_examples=times(75), deadline=None)
@given(history=histories(), data=st.data())
def test_a_correct_stream_is_exact_and_any_entry_lost_or_doubled_is_noticed(
    history: tuple[list[LedgerEntry], int, int, int], data: st.DataObject
) -> None:
    entries, samples, batch, steps = history
    kept = kept_entries(entries, steps)
    assert sorted(p for e in kept for p in e.positions) == list(range(steps * batch))
    counts = count_epochs(kept, samples, steps * batch)
    whole = steps * batch // samples
    assert [count.exact for count in counts[:whole]] == [True] * whole
    assert sum(count.seen for count in counts) == steps * batch
    assert not any(count.twice for count in counts)

    victim = data.draw(st.integers(0, len(kept) - 1))
    epoch = kept[victim].positions[0] // samples
    lost = count_epochs(kept[:victim] + kept[victim + 1 :], samples, steps * batch)
    assert lost[epoch].missing > 0
    doubled = count_epochs([*kept, kept[victim]], samples, steps * batch)
    assert doubled[epoch].twice
