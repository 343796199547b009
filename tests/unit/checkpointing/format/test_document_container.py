"""Documents: a header and sections, each checked before it is handed out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.errors import DamagedError, FormatError
from checkpointing.format.canonical_json import dump, load
from checkpointing.format.document_container import (
    HEAD,
    MAGIC,
    MAX_HEADER,
    PREFIX,
    DocumentContainer,
    build,
)

KIND = "hpckit-test"
SECTIONS = {"a": b"first", "": b"", "item:b/c": bytes(range(256)), "z": b"last"}


def opened(data: bytes, kinds: tuple[str, ...] = (KIND,)) -> DocumentContainer:
    return DocumentContainer(lambda start, n: data[start : start + n], len(data), kinds, "there")


def resealed(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The same document with another header, under a hash that is right."""
    end = PREFIX + int.from_bytes(data[len(MAGIC) : PREFIX], "little")
    body, _ = load(data[PREFIX:end])
    change(body)
    head = dump(body)
    return MAGIC + len(head).to_bytes(4, "little") + head + data[end:]


@given(
    st.dictionaries(st.text(max_size=9), st.binary(max_size=99), max_size=5),
    st.dictionaries(st.sampled_from("xyz"), st.integers() | st.text(), max_size=3),
)
def test_what_was_built_is_read_back(sections: dict[str, bytes], header: dict[str, Any]) -> None:
    document = opened(build(KIND, header, sections))
    assert {name: document.section(name) for name in document.names()} == sections
    assert document.names() == sorted(sections)
    assert document.kind == KIND
    assert all(document.header._body[name] == value for name, value in header.items())


def test_a_header_longer_than_the_first_read_is_read_whole() -> None:
    long = {"x": "y" * (2 * HEAD)}
    document = opened(build(KIND, long, SECTIONS))
    assert document.header.text("x") == long["x"]
    assert document.section("z") == b"last"


def test_only_what_is_asked_for_is_read() -> None:
    data = build(KIND, {}, {"small": b"x", "large": bytes(10 * HEAD), "end": b"y"})
    taken: list[tuple[int, int]] = []

    def read(start: int, length: int) -> bytes:
        taken.append((start, length))
        return data[start : start + length]

    document = DocumentContainer(read, len(data), (KIND,), "there")
    assert (document.section("small"), document.section("end")) == (b"x", b"y")
    assert sum(length for _, length in taken) <= HEAD + 2


def test_every_flipped_bit_is_noticed() -> None:
    data = build(KIND, {"x": 1}, SECTIONS)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 8)
        with pytest.raises((DamagedError, FormatError)):
            read_all(bytes(damaged))


def read_all(data: bytes) -> list[bytes]:
    document = opened(data)
    return [document.section(name) for name in document.names()]


def test_every_truncation_and_anything_appended_is_noticed() -> None:
    data = build(KIND, {"x": 1}, SECTIONS)
    for size in range(len(data)):
        with pytest.raises(DamagedError, match=r"^there: "):
            opened(data[:size])
    with pytest.raises(DamagedError, match=f"has {len(data) + 1} bytes instead of {len(data)}"):
        opened(data + b"x")


def test_an_impossible_length_is_refused_before_anything_is_read() -> None:
    for length in (2**32 - 1, MAX_HEADER, 1000):
        data = MAGIC + length.to_bytes(4, "little") + bytes(100)
        with pytest.raises(DamagedError, match="states an impossible length"):
            opened(data)


def test_what_a_later_version_may_have_is_refused_not_guessed() -> None:
    data = build(KIND, {}, SECTIONS)
    with pytest.raises(FormatError, match="format version 2 is unknown here"):
        opened(resealed(data, lambda body: body.update(version=2)))
    # whose hash may be another one
    with pytest.raises(FormatError, match="format version 2 is unknown here"):
        opened(data.replace(b'"version":1', b'"version":2'))
    with pytest.raises(FormatError, match="unknown here: later, other"):
        opened(resealed(data, lambda body: body.update(features=["other", "later"])))


def test_a_document_of_another_kind_is_refused() -> None:
    with pytest.raises(DamagedError, match="its format is 'hpckit-test'"):
        opened(build(KIND, {}, SECTIONS), kinds=("hpckit-manifest",))


@pytest.mark.parametrize(
    "place",
    [
        {"offset": -1, "length": 5, "blake3": ""},
        {"offset": 0, "length": True, "blake3": ""},
        {"offset": 0, "length": 5},
        {"offset": 0, "length": 5, "blake3": 7},
        "nowhere",
    ],
)
def test_sections_in_impossible_places_are_damage(place: object) -> None:
    data = resealed(build(KIND, {}, {"a": b"first"}), lambda body: body["sections"].update(a=place))
    with pytest.raises(DamagedError, match=r"^there"):
        read_all(data)


def test_a_section_that_is_not_there_is_damage() -> None:
    with pytest.raises(DamagedError, match="'nothing'"):
        opened(build(KIND, {}, SECTIONS)).section("nothing")
