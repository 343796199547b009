from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from checkpointing.codec import (
    AdaptiveEncoder,
    Codec,
    CodecChooser,
    EncodeBudget,
    WordLayout,
    decode,
)
from tests.unit.checkpointing.codec.sample_chunks import fill

LAYOUT = WordLayout(4, True, 256)
NOISE = np.random.default_rng(0).bytes(1 << 20)
WEIGHTS = fill("weights", 1 << 18, LAYOUT, np.random.default_rng(1))


def quiet_encoder() -> AdaptiveEncoder:
    """One whose choices do not depend on how busy the machine is."""
    return AdaptiveEncoder(CodecChooser(clock=lambda: 0.0))


def moved(raw: bytes) -> bytes:
    words = np.frombuffer(raw, "<u4")
    return (words + np.random.default_rng(2).integers(0, 99, len(words))).astype("<u4").tobytes()


@pytest.mark.parametrize(
    ("raw", "base", "codec"),
    [
        (WEIGHTS, None, Codec.PLANES),
        (WEIGHTS, moved(WEIGHTS), Codec.DELTA),
        (NOISE, None, Codec.RAW),
        (bytes(1 << 20), None, Codec.CONSTANT),
        (b"\x01\x00\xc0\xff" * 5000, None, Codec.CONSTANT),
        (bytes(1000) + b"abcd", None, Codec.ZSTD),  # constant only in front
        (b"", None, Codec.RAW),
        (b"abcd", None, Codec.RAW),
        (WEIGHTS[:40], WEIGHTS[:40], Codec.RAW),
    ],
)
def test_takes_what_pays(raw: bytes, base: bytes | None, codec: Codec) -> None:
    encoder = quiet_encoder()
    found = encoder.encode("kind", raw, LAYOUT, base)
    assert found.codec is codec
    assert found.on_base is (codec is Codec.DELTA)
    assert len(found.data) <= len(raw)
    out = bytearray(len(raw))
    decode(found.codec, found.data, memoryview(out), LAYOUT, base if found.on_base else None)
    assert out == raw
    total = encoder.stats.by_codec()[codec]
    assert (total.chunks, total.raw, total.stored) == (1, len(raw), len(found.data))


def test_sparse_rows_but_no_whole_number_of_them() -> None:
    rows = np.frombuffer(NOISE, np.uint8).reshape(-1, LAYOUT.row).copy()
    rows[np.arange(len(rows)) % 20 != 0] = 0
    encoder = quiet_encoder()
    assert encoder.encode("whole", rows.tobytes(), LAYOUT).codec is Codec.ROWS
    assert encoder.encode("odd", rows.tobytes() + b"abcd", LAYOUT).codec is not Codec.ROWS


def test_raw_if_there_is_no_time() -> None:
    encoder = quiet_encoder()
    assert encoder.encode("w", WEIGHTS, LAYOUT, is_allowed=False).data is WEIGHTS
    assert encoder.encode("w", bytes(4096), LAYOUT, is_allowed=False).codec is Codec.CONSTANT


def test_the_budget_learns_of_what_was_encoded() -> None:
    budget = EncodeBudget(1 << 20)
    found = quiet_encoder().encode("w", WEIGHTS, LAYOUT, budget=budget)
    ahead = budget.outlook()
    assert ahead.encode_rate is not None
    assert ahead.share < 1
    assert found.codec is Codec.PLANES


def test_many_threads_one_encoder() -> None:
    encoder = quiet_encoder()
    chunks = [
        (kind, raw) for kind, raw in (("w", WEIGHTS), ("n", NOISE), ("c", bytes(1 << 16)))
    ] * 20

    def there_and_back(kind: str, raw: bytes) -> bool:
        found = encoder.encode(kind, raw, LAYOUT, moved(raw) if kind == "w" else None)
        out = bytearray(len(raw))
        base = moved(raw) if found.on_base else None
        decode(found.codec, found.data, memoryview(out), LAYOUT, base)
        return out == raw

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(there_and_back, *zip(*chunks, strict=True)))
    total = encoder.stats.total()
    assert (total.chunks, total.raw) == (60, sum(len(raw) for _, raw in chunks))
    assert total.stored < total.raw
