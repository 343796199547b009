from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from checkpointing.codec import (
    CodecChoice,
    CodecChooser,
    CodecMeasurement,
    WordLayout,
    choose_codec,
)
from checkpointing.codec.selection.codec_choice import (
    DELTA,
    GROUPS,
    PLANES,
    RAW,
    ROWS,
    ROWS_ON_BASE,
    SAMPLE_BYTES,
    ZSTD,
    sample,
)

LAYOUT = WordLayout(4, True, 256)
FAST = 1 / 1.5e9  # seconds per byte


def shares(**share: float) -> dict[CodecChoice, CodecMeasurement]:
    ways = {"planes": PLANES, "rows": ROWS, "zstd": ZSTD, "rows_on_base": ROWS_ON_BASE}
    ways |= {"delta": DELTA, "groups": GROUPS}
    return {ways[name]: CodecMeasurement(1.0, value, FAST) for name, value in share.items()}


@pytest.mark.parametrize(
    ("measured", "with_base", "way"),
    [
        ({}, True, RAW),
        (shares(planes=1.0), True, RAW),
        (shares(planes=0.98), True, RAW),  # less than 3 %
        (shares(planes=0.96), True, PLANES),
        (shares(planes=0.84, zstd=0.93, delta=0.70), True, DELTA),
        (shares(planes=0.84, zstd=0.93, delta=0.70), False, PLANES),
        (shares(planes=0.84, zstd=0.93, delta=0.83), True, PLANES),  # less than 2 %
        (shares(planes=0.84, delta=0.80, groups=0.77), True, GROUPS),
        (shares(planes=0.84, delta=0.80, groups=0.79), True, DELTA),
        (shares(planes=0.84, zstd=0.4), True, ZSTD),
        (shares(planes=0.5, rows=0.01, zstd=0.02), True, ROWS),
        (shares(planes=0.84, rows=0.84, rows_on_base=0.1, delta=0.3), True, ROWS_ON_BASE),
        (shares(planes=0.84, rows=0.84, rows_on_base=0.3, delta=0.1), True, DELTA),
        (shares(planes=0.0), True, PLANES),
        # 4 % at 100 MB/s is 4 MB saved in a second
        ({PLANES: CodecMeasurement(1.0, 0.96, 1e-8)}, True, RAW),
        ({PLANES: CodecMeasurement(1.0, 0.50, 1e-8)}, True, PLANES),
    ],
)
def test_choose(
    measured: dict[CodecChoice, CodecMeasurement], with_base: bool, way: CodecChoice
) -> None:
    assert choose_codec(measured, with_base=with_base) == way


def weights(seed: int, count: int = 1 << 18) -> bytes:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(count, np.float32) * np.float32(0.02)).tobytes()


def stepped(raw: bytes, size: float) -> bytes:
    words = np.frombuffer(raw, np.float32)
    return (words + np.float32(size) * np.frombuffer(weights(9, len(words)), np.float32)).tobytes()


def no_time() -> float:
    return 0.0


class TestChooser:
    def test_chooses_by_what_is_there(self) -> None:
        chooser = CodecChooser(clock=no_time)
        raw = weights(1)
        assert chooser.way("weights", raw, LAYOUT) == PLANES
        assert chooser.way("noise", np.random.default_rng(0).bytes(1 << 20), LAYOUT) == RAW
        assert chooser.way("close", stepped(raw, 1e-4), LAYOUT, raw) == DELTA
        assert chooser.way("far", weights(2), LAYOUT, raw) == PLANES
        assert chooser.way("zeros", raw[: 1 << 16] + bytes(15 << 16), LAYOUT) in (
            ROWS,
            ZSTD,
            PLANES,
        )
        assert chooser.way("text", b"a line of text, and again; " * 12 * (1 << 12), LAYOUT) == ZSTD

    def test_groups_are_for_short_floats(self) -> None:
        chooser = CodecChooser(clock=no_time)
        before = weights(1)
        base, raw = (
            np.frombuffer(data, "<u2")[1::2].tobytes() for data in (before, stepped(before, 0.05))
        )
        assert chooser.way("bfloat16", raw, WordLayout(2, True, 256), base) == GROUPS
        assert chooser.way("int16", raw, WordLayout(2, False, 256), base) != GROUPS
        assert GROUPS not in chooser.measured()["int16"]

    def test_no_base_no_delta(self) -> None:
        chooser = CodecChooser(clock=no_time)
        raw = weights(1)
        assert chooser.way("w", stepped(raw, 1e-4), LAYOUT, raw) == DELTA
        assert chooser.way("w", raw, LAYOUT) == PLANES

    def test_asks_for_a_base_to_sample_and_where_it_pays(self) -> None:
        chooser = CodecChooser(clock=no_time)
        raw = weights(1)
        assert chooser.wants_base("close")
        assert chooser.wants_base("far")
        chooser.way("close", stepped(raw, 1e-4), LAYOUT, raw)
        chooser.way("far", weights(2), LAYOUT, raw)
        assert chooser.wants_base("close")
        assert not chooser.wants_base("far")

    def test_samples_about_its_share(self) -> None:
        times = itertools.count()
        chooser = CodecChooser(share=0.01, clock=lambda: float(next(times)))
        raw = weights(1)
        for _ in range(300):
            chooser.way("w", raw, LAYOUT)
        ways_measured = next(times) / 2  # two readings of the clock each
        assert 3 * 3 <= ways_measured <= 3 * 6  # 300 MiB by 128 KiB of at most six ways

    def test_follows_the_learning_rate(self) -> None:
        chooser = CodecChooser(share=1.0, clock=no_time)
        raw = weights(1)
        chosen = [
            chooser.way("w", stepped(raw, size), LAYOUT, raw) for size in [1.0] * 10 + [1e-5] * 30
        ]
        assert chosen[:10] == [PLANES] * 10
        assert chosen[-1] == DELTA

    def test_those_who_come_while_the_first_sample_is_taken(self) -> None:
        meanwhile: list[CodecChoice] = []

        def clock() -> float:
            if not meanwhile:
                meanwhile.append(PLANES)  # once
                meanwhile[0] = chooser.way("w", raw, LAYOUT)
            return 0.0

        chooser, raw = CodecChooser(clock=clock), np.random.default_rng(0).bytes(1 << 20)
        assert chooser.way("w", raw, LAYOUT) == RAW
        assert meanwhile == [PLANES]

    def test_many_threads(self) -> None:
        chooser = CodecChooser(share=1.0, clock=no_time)
        raw = weights(1)
        with ThreadPoolExecutor(8) as pool:
            found = pool.map(lambda i: chooser.way(f"w{i % 4}", raw, LAYOUT), range(64))
        assert set(found) == {PLANES}

    def test_short_and_odd_chunks(self) -> None:
        chooser = CodecChooser(clock=no_time)
        for number, raw in enumerate(_odd()):
            way = chooser.way(f"odd{number}", raw, LAYOUT, bytes(len(raw)))
            assert way == choose_codec(chooser.measured()[f"odd{number}"])

    def test_small_tensors_do_not_speak_for_large_ones(self) -> None:
        chooser = CodecChooser(share=1.0, clock=no_time)
        for _ in range(20):
            chooser.way("w", b"bias", LAYOUT)
        assert chooser.way("w", weights(1), LAYOUT) == PLANES

    def test_samples_fade_by_size(self) -> None:
        first = CodecMeasurement(SAMPLE_BYTES, SAMPLE_BYTES, 1.0)
        both = first.then(CodecMeasurement(SAMPLE_BYTES, 0.5 * SAMPLE_BYTES, 0.0))
        assert both.share == pytest.approx(2 / 3)
        assert both.cost == pytest.approx(1 / 3 / SAMPLE_BYTES)
        found = first
        for _ in range(1000):
            found = found.then(CodecMeasurement(4, 8, 0.0))
        assert found.share == pytest.approx(1.0, abs=0.05)

    def test_what_it_knows_is_visible(self) -> None:
        chooser = CodecChooser()
        chooser.way("w", weights(1), LAYOUT)
        known = chooser.measured()["w"]
        assert known[PLANES].share == pytest.approx(0.84, abs=0.03)
        assert known[PLANES].cost > 0


def _odd() -> Iterator[bytes]:
    yield bytes(4)
    yield weights(3, 65)  # no whole number of rows
    yield weights(3, 1 << 16 | 1)


class TestSample:
    def test_small_chunks_are_their_own_samples(self) -> None:
        raw = weights(1, 2 * SAMPLE_BYTES // 4)
        assert sample(raw, LAYOUT) == raw

    def test_whole_rows_from_all_over(self) -> None:
        row = np.arange(1 << 14, dtype="<u4").repeat(64)  # each row its own number
        rows = np.frombuffer(sample(row.tobytes(), LAYOUT), "<u4").reshape(-1, 64)
        assert rows.nbytes == SAMPLE_BYTES
        assert (rows == rows[:, :1]).all()
        quarters = np.bincount(rows[:, 0] // (1 << 12), minlength=4)
        assert (quarters == len(rows) // 4).all()

    def test_the_same_places_of_chunk_and_base(self) -> None:
        raw = weights(1)
        assert sample(raw, LAYOUT) == sample(bytearray(raw), LAYOUT)

    def test_rows_longer_than_a_sample(self) -> None:
        raw = weights(1)
        layout = WordLayout(4, True, len(raw) // 4)
        assert len(sample(raw, layout)) % layout.row == 0
        assert 0 < len(sample(raw, layout)) <= len(raw)
