"""The small records: read back as they were; damaged or newer ones are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.errors import DamagedError, FormatError
from checkpointing.format import store_records
from checkpointing.format.canonical_json import dump, load
from checkpointing.format.store_records import CheckpointMark, DeletionMark, Lease, StoreRecord

KEYS = st.text(max_size=12)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
KEY_LISTS = st.lists(KEYS, max_size=3).map(tuple)
LEASES = st.builds(
    Lease,
    KEYS,
    KEYS,
    KEYS,
    FLOATS,
    st.integers(0, 2**62),
    st.dictionaries(KEYS, KEY_LISTS, max_size=3),
    KEY_LISTS,
)
LEASE = Lease("0123abcd", "gpt", "node1:17", 600.0, 3, {"m": ("t1", "t2")}, ("n",))
EACH: list[tuple[Any, Callable[[Any], bytes], Callable[[bytes, str], Any]]] = [
    (StoreRecord("0" * 32, 1.5e9), store_records.dump_store, store_records.load_store),
    (LEASE, store_records.dump_lease, store_records.load_lease),
    (
        DeletionMark(("p",), ("m", "n")),
        store_records.dump_deletion_mark,
        store_records.load_deletion_mark,
    ),
    (
        CheckpointMark("0000000001-0123abcd", True, "why", 1.5e9),
        store_records.dump_mark,
        store_records.load_mark,
    ),
]


@given(LEASES)
def test_leases_are_read_back(lease: Lease) -> None:
    assert store_records.load_lease(store_records.dump_lease(lease), "there") == lease


@given(
    st.builds(DeletionMark, KEY_LISTS, KEY_LISTS),
    st.builds(
        CheckpointMark, KEYS, st.booleans(), KEYS, FLOATS, st.dictionaries(KEYS, FLOATS, max_size=3)
    ),
)
def test_tombs_and_marks_are_read_back(tomb: DeletionMark, mark: CheckpointMark) -> None:
    assert store_records.load_deletion_mark(store_records.dump_deletion_mark(tomb), "there") == tomb
    assert store_records.load_mark(store_records.dump_mark(mark), "there") == mark


@pytest.mark.parametrize(("record", "dump_it", "load_it"), EACH)
def test_damage_is_noticed(
    record: object, dump_it: Callable[[Any], bytes], load_it: Callable[[bytes, str], Any]
) -> None:
    data = dump_it(record)
    assert load_it(data, "there") == record
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 7)
        with pytest.raises((DamagedError, FormatError)):
            load_it(bytes(damaged), "there")
        with pytest.raises(DamagedError):
            load_it(data[:at], "there")


@pytest.mark.parametrize(("record", "dump_it", "load_it"), EACH)
def test_versions_and_features_that_are_not_known_are_refused(
    record: object, dump_it: Callable[[Any], bytes], load_it: Callable[[bytes, str], Any]
) -> None:
    body, _ = load(dump_it(record))
    assert (body["version"], body["features"]) == (1, [])
    with pytest.raises(FormatError, match=r"^there: format version 2 is unknown here"):
        load_it(dump({**body, "version": 2}), "there")
    with pytest.raises(FormatError, match=r"^there: it needs features that are unknown here: odd"):
        load_it(dump({**body, "features": ["odd"]}), "there")
    with pytest.raises(DamagedError, match=r"^there: its format is 'hpckit-other'"):
        load_it(dump({**body, "format": "hpckit-other"}), "there")


def test_a_record_is_not_taken_for_one_of_another_kind() -> None:
    for record, dump_it, _ in EACH:
        for other, _, load_other in EACH:
            if other is not record:
                with pytest.raises(DamagedError, match="its format is"):
                    load_other(dump_it(record), "there")


@pytest.mark.parametrize(("record", "dump_it", "load_it"), EACH)
def test_fields_that_are_missing_or_of_another_type_are_damage(
    record: object, dump_it: Callable[[Any], bytes], load_it: Callable[[bytes, str], Any]
) -> None:
    body, _ = load(dump_it(record))
    for name in body:
        with pytest.raises((DamagedError, FormatError)):
            load_it(dump({k: v for k, v in body.items() if k != name}), "there")
        with pytest.raises((DamagedError, FormatError)):
            load_it(dump({**body, name: None}), "there")


def test_a_mark_without_metrics_is_written_as_before_there_were_any() -> None:
    mark = CheckpointMark("0000000001-0123abcd", False, "", 1.5e9, {"eval_accuracy": 0.5})
    body, _ = load(store_records.dump_mark(mark))
    assert body["metrics"] == {"eval_accuracy": 0.5}
    with pytest.raises(DamagedError, match="'eval_accuracy'"):
        store_records.load_mark(dump({**body, "metrics": {"eval_accuracy": "high"}}), "there")
    plain, _ = load(store_records.dump_mark(CheckpointMark(mark.id, False, "", 1.5e9)))
    assert "metrics" not in plain


def test_another_hash_is_refused() -> None:
    body, _ = load(store_records.dump_store(StoreRecord("0" * 32, 0.0)))
    with pytest.raises(FormatError, match="its hash 'md5' is unknown"):
        store_records.load_store(dump({**body, "hash": "md5"}), "there")
