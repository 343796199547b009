"""Text as windows of tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data import DataError, Sample, SampleContext
from hpckit.trainer.batches.byte_text import END, PADDING, VOCAB, ByteWindow
from hpckit.trainer.batches.token_windows import stack


def sample(document: bytes) -> Sample:
    return {"__key__": "a/b", "__url__": "/shards/x.tar", "txt": document}


def window(document: bytes, length: int, position: int = 0, seed: int = 1) -> list[int]:
    tokens = ByteWindow(length)(sample(document), SampleContext(position, 0, seed))
    assert tokens.dtype == np.int64
    found: list[int] = tokens.tolist()
    return found


def test_a_short_document_ends_and_is_filled_up() -> None:
    assert window(b"\x00\xff", 5) == [0, 255, END, PADDING, PADDING]


def test_an_empty_document_is_only_its_end() -> None:
    assert window(b"", 3) == [END, PADDING, PADDING]


def test_a_document_that_just_fits_is_whole() -> None:
    assert window(b"abc", 4) == [97, 98, 99, END]


def test_every_window_of_a_long_document_comes_up() -> None:
    found = {tuple(window(b"abcd", 3, position)) for position in range(60)}
    assert found == {(97, 98, 99), (98, 99, 100), (99, 100, END)}


@given(document=st.binary(max_size=40), length=st.integers(2, 20), position=st.integers(0, 2**40))
def test_a_window_is_a_piece_of_the_document(document: bytes, length: int, position: int) -> None:
    found = window(document, length, position)
    text = [*document, END]
    kept = [token for token in found if token != PADDING]
    assert len(found) == length
    assert found[len(kept) :] == [PADDING] * (length - len(kept))
    assert len(kept) == min(length, len(text))
    assert kept in [text[i : i + len(kept)] for i in range(len(text))]
    assert all(0 <= token < VOCAB for token in kept)


def test_the_place_depends_on_seed_and_position_alone() -> None:
    document = bytes(range(256)) * 4
    assert window(document, 8, position=5) == window(document, 8, position=5)
    assert window(document, 8, position=5) != window(document, 8, position=6)
    assert window(document, 8, position=5) != window(document, 8, position=5, seed=2)


@pytest.mark.parametrize("members", [{}, {"txt": b"a", "json": b"{}"}])
def test_a_sample_without_exactly_one_member_is_refused_by_key_and_shard(
    members: dict[str, bytes],
) -> None:
    bad: Sample = {"__key__": "a/b", "__url__": "/shards/x.tar", **members}
    with pytest.raises(DataError, match=r"/shards/x\.tar.*'a/b'"):
        ByteWindow(4)(bad, SampleContext(0, 0, 1))


def test_the_text_of_a_sample_of_several_fields_is_the_named_one() -> None:
    fields: Sample = {"__key__": "a/b", "__url__": "/x.jsonl", "text": "a\u00e9", "n": 5}
    named = ByteWindow(5, ("body", "text"))
    assert named(fields, SampleContext(0, 0, 1)).tolist() == [97, 0xC3, 0xA9, END, PADDING]
    assert named(sample(b"x"), SampleContext(0, 0, 1))[0] == ord("x"), "of a tar"
    with pytest.raises(DataError, match="'n' no text, but a value of type int"):
        ByteWindow(5, ("n",))(fields, SampleContext(0, 0, 1))
    with pytest.raises(DataError, match=r"that data\.column names, which is one of body"):
        ByteWindow(5, ("body",))(fields, SampleContext(0, 0, 1))


def test_windows_are_stacked_to_a_batch() -> None:
    windows = [ByteWindow(4)(sample(text), SampleContext(0, 0, 1)) for text in (b"a", b"bcd")]
    assert stack(windows).tokens.tolist() == [[97, END, PADDING, PADDING], [98, 99, 100, END]]
