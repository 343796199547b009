"""The record of what a follower has."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.errors import DamagedError
from checkpointing.follower.follow_record import (
    FollowRecord,
    dump_record,
    load_record,
    read_record,
    write_record,
)
from checkpointing.format.item_table import TensorSpec
from checkpointing.format.tiles import Box

TENSORS = {
    "model/w": TensorSpec("bfloat16", (6, 4), (3, 4)),
    "model/s": TensorSpec("int64", (), ()),
}
SLOTS = st.dictionaries(
    st.sampled_from(
        [
            ("model/w", Box((0, 0), (3, 4))),
            ("model/w", Box((3, 0), (3, 4))),
            ("model/s", Box((), ())),
        ]
    ),
    st.binary(min_size=32, max_size=32),
)


def record(images: dict[str, Any], **fields: Any) -> FollowRecord:
    given_ = {"dtype": None, "file": "step-7.safetensors", **fields}
    return FollowRecord(
        "u", "r", 7, "0011aabb", 1.5, ("model/*",), given_["dtype"], given_["file"], TENSORS, images
    )


@given(st.dictionaries(st.sampled_from(["weights", "bases"]), SLOTS), st.sampled_from([None, "x"]))
def test_a_record_is_read_back(images: dict[str, Any], dtype: str | None) -> None:
    made = record(images, dtype=dtype)
    assert load_record(dump_record(made), "it") == made


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"version": 2},
        {"file": "../../etc/passwd"},
        {"tensors": []},
        {"images": {"weights": [{"name": "model/w", "boxes": [0, 0, 7, 4], "ids": "00" * 32}]}},
        {"images": {"weights": [{"name": "model/w", "boxes": [0, 0], "ids": "00" * 32}]}},
        {"images": {"weights": [{"name": "model/w", "boxes": [], "ids": "zz"}]}},
        {"step": -1},
    ],
)
def test_a_damaged_record_is_refused(change: dict[str, Any]) -> None:
    made = record({"weights": {("model/w", Box((0, 0), (3, 4))): bytes(32)}})
    body = {**json.loads(dump_record(made)), **change}
    with pytest.raises(DamagedError):
        load_record(json.dumps(body).encode(), "it")


def test_what_cannot_be_read_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "record"
    assert read_record(path) is None
    assert not caplog.records
    write_record(path, record({}))
    assert read_record(path) == record({})
    path.write_bytes(path.read_bytes()[:-5])
    with caplog.at_level(logging.WARNING):
        assert read_record(path) is None
    assert "everything is fetched again" in caplog.text
