"""Manifests: a pure function of the parts of all ranks, read back item by item."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.errors import DamagedError, FormatError
from checkpointing.format import document_container, item_table
from checkpointing.format import manifest as forms
from checkpointing.format.document_container import DocumentContainer
from checkpointing.format.item_table import ItemTable, group_sizes
from checkpointing.format.manifest import (
    ManifestContent,
    ManifestDocument,
    ManifestHeader,
    assemble,
    build_abandoned,
    build_manifest,
    build_part,
    group_section,
    item_of,
    summarise,
)
from tests.unit.checkpointing.format.sample_documents import SAVE, content, filled

KINDS = (forms.MANIFEST, forms.PART, forms.ABANDONED)
MODEL = {"model/w": ("float32", (700, 400)), "model/b": ("float32", (7,))}
OPTIMIZER = {"optimizer/m": ("bfloat16", (9,)), "optimizer/n": ("int64", ())}


def document(data: bytes) -> ManifestDocument:
    return ManifestDocument(
        DocumentContainer(lambda start, n: data[start : start + n], len(data), KINDS, "there")
    )


def whole() -> ManifestContent:
    items = {"model": filled(MODEL, depth=1), "optimizer": filled(OPTIMIZER, first=100)}
    items["run"] = ItemTable(values={"run/step": 42, "run/names": ["a", {"$tuple": [1]}]})
    metrics = {"loss": 0.25, "best": float("inf"), "odd": float("nan"), "n": 3.0}
    return content(items, metrics=metrics, world_size=2, revision=3, dropped=("ema",))


def split(made: ManifestContent, ranks: int) -> list[ManifestContent]:
    """As parts: every chunk is written by one rank, in turn; values by the first."""
    turn = itertools.count()
    tables: list[dict[str, ItemTable]] = [{} for _ in range(ranks)]
    for name, table in made.items.items():
        for rank in range(ranks):
            part = tables[rank].setdefault(name, ItemTable())
            for tensor, spec in table.tensors.items():
                part.place(tensor, spec, {})
            if rank == 0:
                part.values.update(table.values)
        for tensor, placed in table.chunks.items():
            for box, chunk in placed.items():
                tables[next(turn) % ranks][name].place(tensor, table.tensors[tensor], {box: chunk})
    return [
        ManifestContent(
            made.header, items, {p: made.packs[p] for t in items.values() for p in t.packs()}
        )
        for items in tables
    ]


def test_what_was_built_is_read_back() -> None:
    made = whole()
    read = document(build_manifest(made))
    assert (read.kind, read.save) == (forms.MANIFEST, SAVE)
    metrics = dict(read.header.metrics)
    assert math.isnan(metrics.pop("odd"))
    expected = {k: v for k, v in made.header.metrics.items() if k != "odd"}
    assert replace(read.header, metrics=metrics) == replace(made.header, metrics=expected)
    assert read.content().items == made.items
    assert read.packs() == dict(sorted(made.packs.items()))
    assert read.items == {name: summarise(table) for name, table in made.items.items()}


def test_parts_are_read_back_with_their_rank() -> None:
    part = split(whole(), 3)[2]
    read = document(build_part(part, 2))
    assert (read.kind, read.rank, read.save) == (forms.PART, 2, SAVE)
    assert read.content().items == part.items


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_whoever_commits_writes_the_same_bytes(ranks: int) -> None:
    made = whole()
    parts = split(made, ranks)
    stored = [document(build_part(part, rank)).content() for rank, part in enumerate(parts)]
    first = build_manifest(assemble(stored))
    again = [document(build_part(part, rank)).content() for rank, part in enumerate(parts)]
    assert build_manifest(assemble(again)) == first
    read = document(first).content()
    chunks: Mapping[str, ItemTable] = read.items
    for name, table in made.items.items():
        assert chunks[name].tensors == table.tensors
        assert chunks[name].chunks == table.chunks
        assert chunks[name].values == table.values
    assert read.packs == dict(sorted(made.packs.items()))


def test_parts_that_do_not_make_a_whole_are_refused() -> None:
    parts = split(whole(), 2)
    with pytest.raises(ValueError, match=r"the ranks' parts of 'model/.*' cover \d+ of its"):
        assemble(parts[:1])


def test_of_every_item_there_is_a_summary_without_its_table() -> None:
    made = whole()
    table = made.items["model"]
    summary = document(build_manifest(made)).items["model"]
    assert (summary.tensors, summary.raw_bytes) == (2, 4 * (700 * 400 + 7))
    assert summary.chunks == sum(len(placed) for placed in table.chunks.values())
    placed = {c.id: c for boxes in table.chunks.values() for c in boxes.values()}
    assert summary.stored_bytes == sum(c.length for c in placed.values())  # bases not counted


def test_an_abandoned_save_says_whose_place_it_takes_and_nothing_else() -> None:
    read = document(build_abandoned(SAVE))
    assert (read.kind, read.save) == (forms.ABANDONED, SAVE)
    assert not hasattr(read, "header")
    assert build_abandoned(SAVE) == build_abandoned(SAVE)
    assert build_abandoned(SAVE) != build_abandoned(replace(SAVE, step=43))


def test_items_are_told_by_the_name_before_the_first_slash() -> None:
    assert item_of("model/layers.0.weight") == "model"
    assert item_of("a~1b/c/d") == "a~1b"
    assert item_of("n") == "n"


def test_every_flipped_byte_is_noticed() -> None:
    data = build_manifest(whole())
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 8)
        with pytest.raises((DamagedError, FormatError)):
            document(bytes(damaged)).content()


def test_a_metric_that_is_no_number_is_damage() -> None:
    made = content({}, metrics={})
    header: ManifestHeader = replace(made.header, metrics={"loss": True})
    with pytest.raises(DamagedError, match="metric 'loss' is not a number"):
        document(build_manifest(replace(made, header=header)))


def test_a_source_is_kept_and_is_no_field_where_there_is_none() -> None:
    made = whole()
    assert b'"source"' not in build_manifest(made)
    named = replace(made, header=replace(made.header, source="/data/exported (safetensors)"))
    assert document(build_manifest(named)).header.source == "/data/exported (safetensors)"
    assert assemble(split(named, 2)).header.source == "/data/exported (safetensors)"


def test_a_certificate_is_kept_and_is_no_field_where_there_is_none() -> None:
    made = whole()
    assert b'"certified"' not in build_manifest(made)
    certified = replace(made, header=replace(made.header, certified="bits"))
    assert document(build_manifest(certified)).header.certified == "bits"
    assert assemble(split(certified, 2)).header.certified == "bits"


def grouped(monkeypatch: pytest.MonkeyPatch) -> ManifestContent:
    """A manifest whose first item has several groups of tensors, and whose second has none."""
    monkeypatch.setattr(item_table, "GROUPED", 20)
    monkeypatch.setattr(item_table, "_GROUP", 4)
    shapes = {f"model/{n}": ("float32", (700, 40 * n)) for n in range(1, 12)}
    return content({"extra": filled({"extra/a": ("int8", (3,))}), "model": filled(shapes, depth=1)})


def test_large_tables_are_cut_into_groups_of_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    made = grouped(monkeypatch)
    made.items["model"].values["model/lr"] = 0.5
    data = build_manifest(made)
    read = document(data)
    assert read.content().items == made.items
    assert (read.is_grouped("model"), read.is_grouped("extra")) == (True, False)
    outline = read.outline("model")
    assert outline.tensors == made.items["model"].tensors
    assert outline.values == {"model/lr": 0.5}
    assert len(outline.groups) > 2
    assert [name for group in outline.groups for name in group] == list(outline.tensors)
    before = read.container.bytes_read
    names = outline.groups[1]
    group = read.group("model", outline, 1)
    assert group.chunks == {name: made.items["model"].chunks[name] for name in names}
    assert read.container.bytes_read - before < len(data) / 2
    again = build_manifest(read.content())  # as a revision of it is built
    assert again == data


def test_releases_that_know_no_groups_refuse_them_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    data = build_manifest(grouped(monkeypatch))
    monkeypatch.setattr(document_container, "FEATURES", frozenset())
    with pytest.raises(FormatError, match="features that are unknown here: tensor-groups"):
        document(data)


def test_small_manifests_and_parts_need_no_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    small, part = build_manifest(whole()), build_part(grouped(monkeypatch), 0)
    monkeypatch.setattr(document_container, "FEATURES", frozenset())
    assert document(small).content().items == whole().items
    assert document(part).content().items.keys() == {"model", "extra"}


def test_a_group_with_other_tensors_than_its_outline_is_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = document(build_manifest(grouped(monkeypatch)))
    read.hold({group_section("model", 0): read.read_section(group_section("model", 1))})
    with pytest.raises(DamagedError, match="does not have the tensors of its outline"):
        read.table("model")


def test_an_outline_without_groups_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not pass for a table without chunks: a sweep would delete their packs."""
    read = document(build_manifest(grouped(monkeypatch)))
    for groups in ("", ',"groups":[]'):
        raw = f'{{"bases":0,"tensors":[],"values":{{}}{groups}}}'.encode()
        read.hold({"item:model": len(raw).to_bytes(4, "little") + raw})
        with pytest.raises(DamagedError):
            read.table("model")


def test_an_outline_that_no_reader_accepts_is_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = grouped(monkeypatch)
    made.items["model"].values["model/text"] = "a" * 1_000_000
    monkeypatch.setattr(item_table, "_ANY", 1000)
    with pytest.raises(ValueError, match="but the format allows"):
        build_manifest(made)


@given(st.lists(st.integers(0, 400_000), max_size=300))
def test_groups_are_few_and_large(counts: list[int]) -> None:
    sizes = group_sizes(counts)
    if sum(counts) < item_table.GROUPED:
        assert sizes == []
        return
    assert sum(sizes) == len(counts)
    assert all(sizes)
    assert len(sizes) <= 65
    ends = list(accumulate(sizes))
    chunks = [sum(counts[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
    assert all(one >= 65_536 for one in chunks[:-1])
