"""What the codecs of chunks gain and cost, next to zstd and blosc2: ratio and GB/s of one thread.

    python -m benchmarks.store.codec_speed [--rounds 5] [--steps 40] [--gap 10] [--chunk-mib 4]

Trains a small GPT with AdamW and encodes what a checkpoint of it holds, chunk by chunk; the base of
a delta is the state `--gap` steps before. All arms take their turn on every chunk in every round,
beginning with another one each time. GB/s is of raw bytes by seconds of CPU time of the one thread,
in the round with the median.
"""

from __future__ import annotations

import argparse
import importlib.util
import pathlib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch.nn import functional

from benchmarks.common.number_arguments import positive_int
from checkpointing.codec import Codec, WordLayout, decode, encode
from hpckit.config.spec import GptSpec
from hpckit.trainer.batches.byte_text import VOCAB
from hpckit.trainer.models.decoder import DecoderModel
from hpckit.trainer.models.model_builder import make

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True)
class CodecData:
    """One kind of data, before and after some steps."""

    raw: bytes
    base: bytes
    layout: WordLayout


@dataclass(frozen=True)
class CodecArm:
    """A way to encode a chunk that has a base, and to decode it again."""

    encode: Callable[[Bytes, Bytes, WordLayout], Bytes]
    decode: Callable[[Bytes, Bytes, WordLayout, int], Bytes]


@dataclass
class CodecTimes:
    """Sums over the chunks of one round, in seconds of CPU time."""

    encode: float = 0.0
    decode: float = 0.0
    stored: int = 0  # bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=positive_int, default=5)
    parser.add_argument("--steps", type=positive_int, default=40)
    parser.add_argument("--gap", type=positive_int, default=10)
    parser.add_argument("--chunk-mib", type=positive_int, default=4)
    settings = parser.parse_args()
    kinds = training_state(settings.steps, settings.gap)
    arms = all_arms()
    table = Table(box=None, header_style="bold")
    for name in ("data", "arm", "ratio", "encode GB/s", "decode GB/s"):
        table.add_column(name, justify="left" if name in ("data", "arm") else "right")
    for kind, data in kinds.items():
        for arm, rounds in measure(arms, data, settings.rounds, settings.chunk_mib << 20).items():
            table.add_row(kind, arm, *figures(rounds, len(data.raw)))
        table.add_section()
    Console().print(table)


def measure(
    arms: Mapping[str, CodecArm], data: CodecData, rounds: int, size: int
) -> dict[str, list[CodecTimes]]:
    """Returns the times of every arm in every round, without the first, which is a warm-up."""
    names = list(arms)
    found: dict[str, list[CodecTimes]] = {name: [] for name in names}
    for turn in range(rounds + 1):
        for times in found.values():
            times.append(CodecTimes())
        for at in range(0, len(data.raw), size):
            first = (turn + at // size) % len(names)
            for name in names[first:] + names[:first]:
                _run(arms[name], data, slice(at, at + size), found[name][-1])
    return {name: times[1:] for name, times in found.items()}


def _run(arm: CodecArm, data: CodecData, part: slice, times: CodecTimes) -> None:
    raw, base = memoryview(data.raw)[part], memoryview(data.base)[part]
    begun = time.thread_time()
    stored = arm.encode(raw, base, data.layout)
    encoded = time.thread_time()
    out = arm.decode(stored, base, data.layout, len(raw))
    times.encode += encoded - begun
    times.decode += time.thread_time() - encoded
    times.stored += len(stored)
    if out != raw:
        raise AssertionError("an arm did not give back what it was given")


def figures(rounds: list[CodecTimes], size: int) -> tuple[str, str, str]:
    """Returns the compression ratio and the GB/s of encoding and of decoding."""
    encoding, decoding = median(t.encode for t in rounds), median(t.decode for t in rounds)
    return (
        f"{size / rounds[0].stored:.3f}",
        f"{size / encoding / 1e9:.2f}",
        f"{size / decoding / 1e9:.2f}",
    )


def all_arms() -> dict[str, CodecArm]:
    arms = {
        codec.name: _arm(codec) for codec in (Codec.PLANES, Codec.DELTA, Codec.GROUPS, Codec.ZSTD)
    }
    if importlib.util.find_spec("blosc2") is None:
        print("blosc2 is not installed: without it")
        return arms
    return arms | {"blosc2 shuffle+zstd": _blosc2()}


_out = bytearray()  # as a reader would have it: memory that is there already


def _arm(codec: Codec) -> CodecArm:
    on_base = codec in (Codec.DELTA, Codec.GROUPS)

    def encode_chunk(raw: Bytes, base: Bytes, layout: WordLayout) -> Bytes:
        return encode(codec, raw, layout, base if on_base else None)

    def decode_chunk(stored: Bytes, base: Bytes, layout: WordLayout, size: int) -> Bytes:
        if len(_out) < size:
            _out.extend(bytes(size - len(_out)))
        out = memoryview(_out)[:size]
        decode(codec, stored, out, layout, base if on_base else None)
        return out

    return CodecArm(encode_chunk, decode_chunk)


def _blosc2() -> CodecArm:
    blosc2: Any = importlib.import_module("blosc2")
    blosc2.set_nthreads(1)

    def encode_chunk(raw: Bytes, base: Bytes, layout: WordLayout) -> Bytes:
        packed: bytes = blosc2.compress(
            raw,
            typesize=layout.word,
            clevel=1,
            filter=blosc2.Filter.SHUFFLE,
            codec=blosc2.Codec.ZSTD,
        )
        return packed

    def decode_chunk(stored: Bytes, base: Bytes, layout: WordLayout, size: int) -> Bytes:
        raw: bytes = blosc2.decompress(stored)
        return raw

    return CodecArm(encode_chunk, decode_chunk)


def training_state(steps: int, gap: int) -> dict[str, CodecData]:
    """Returns the state after `steps` steps of AdamW and that of `gap` steps before, by kind."""
    torch.manual_seed(0)
    size = GptSpec("gpt", vocab=VOCAB, layers=4, heads=4, width=256, seq_len=128, experts=None)
    model = make(size, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    text = torch.frombuffer(bytearray(_text()), dtype=torch.uint8).long()
    base: dict[str, NDArray[np.float32]] = {}
    for step in range(steps):
        if step == steps - gap:
            base = _collect(model, optimizer)
        starts = torch.randint(len(text) - 129, (8,)).tolist()
        tokens = torch.stack([text[start : start + 129] for start in starts])
        logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return _kinds(_collect(model, optimizer), base)


def _collect(
    model: DecoderModel, optimizer: torch.optim.Optimizer
) -> dict[str, NDArray[np.float32]]:
    parameters = list(model.parameters())
    tensors = {"weights": [p.detach() for p in parameters]}
    for name in ("exp_avg", "exp_avg_sq"):
        tensors[name] = [optimizer.state[p][name] for p in parameters]
    return {k: torch.cat([t.flatten() for t in v]).numpy() for k, v in tensors.items()}


def _kinds(
    now: Mapping[str, NDArray[np.float32]], before: Mapping[str, NDArray[np.float32]]
) -> dict[str, CodecData]:
    single, half = WordLayout(4, True, 4), WordLayout(2, True, 2)
    gauss = np.random.default_rng(0).standard_normal(4 << 20, np.float32)
    kinds = {"gaussian fp32": CodecData(gauss.tobytes(), np.roll(gauss, 1).tobytes(), single)}
    for name in now:
        kinds[f"{name} fp32"] = CodecData(now[name].tobytes(), before[name].tobytes(), single)
    kinds["weights bf16"] = CodecData(_half(now["weights"]), _half(before["weights"]), half)
    return kinds


def _half(values: NDArray[np.float32]) -> bytes:
    rounded: bytes = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().tobytes()
    return rounded


def _text() -> bytes:
    """Returns real text that every machine has: the source of the standard library."""
    folder = pathlib.Path(sys.modules["argparse"].__file__ or "").parent
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))


if __name__ == "__main__":
    main()
