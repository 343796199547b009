"""What ranks send each other before a plan, by their number: bytes, processor time and memory.

    python -m benchmarks.scale.structure_exchange [--ranks 1024 16384] [--unpickled 1024]

A plan of a save or a restore is a function of the structures of all ranks: names, shapes, dtypes,
cuts and the ranks of their meshes. The state is that of `benchmarks.store.store_scale`: 405B
parameters with AdamW on 16 pipeline stages, each of TP 8 and FSDP over the rest. The ranks of a
stage have equal structures. "each" is what a rank receives and unpickles if each rank sends its
own, and "each once" if equal ones are sent once, as `RankGroup.all_gather_alike` does. Nothing is
sent here. The time and memory of "each" are measured with `--unpickled` ranks, and multiplied.
"""

from __future__ import annotations

import argparse
import gc
import pickle
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as Shown

from benchmarks.common.fresh_process import in_fresh
from benchmarks.common.number_arguments import int_from, positive_int
from benchmarks.store.store_scale import LAYERS, STAGES, TP, WEIGHTS
from checkpointing.layout.tensor_layout import Cut, Mesh, Structure, TensorLayout

_ITEMS = ("model/{}.weight", "optimizer/state.{}.exp_avg", "optimizer/state.{}.exp_avg_sq")
_OPTIONS = ("lr", "betas.0", "betas.1", "eps", "weight_decay", "amsgrad", "maximize", "fused")


def structure_of(stage: int, ranks: int) -> Structure:
    """Returns the structure of each rank of a stage."""
    fsdp = ranks // TP // STAGES
    mesh = Mesh.of((fsdp, TP), range(stage * TP * fsdp, (stage + 1) * TP * fsdp))
    layouts, values = dict[str, TensorLayout](), list[str]()
    for layer in range(stage * LAYERS // STAGES, (stage + 1) * LAYERS // STAGES):
        for name, (shape, dim) in WEIGHTS.items():
            cuts = (Cut(1, dim, TP), Cut(0, 0, fsdp))
            full = f"layers.{layer}.{name}"
            layout = TensorLayout("float32", shape, cuts, 0)
            layouts |= {item.format(full): layout for item in _ITEMS}
            layouts[f"optimizer/state.{full}.step"] = TensorLayout("float32", ())
            values += [f"optimizer/param_groups.{full}.{option}" for option in _OPTIONS]
    return Structure.of(layouts, [mesh], values)


def unpickled(sent: Sequence[bytes], count: int) -> tuple[float, int]:
    """Returns the processor time and the bytes of memory that so many of these take."""
    gc.collect()
    before, begun_s = _private(), time.process_time()
    held = [pickle.loads(sent[at % len(sent)]) for at in range(count)]  # noqa: S301 - made above
    seconds, memory = time.process_time() - begun_s, _private() - before
    del held
    return seconds, memory


def _private() -> int:
    """Returns the bytes of memory that only this process has."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    world = int_from(TP * STAGES, multiple_of=TP * STAGES)
    parser.add_argument("--ranks", type=world, nargs="+", default=[1024, 16384])
    parser.add_argument("--unpickled", type=positive_int, default=1024, help="structures at most")
    asked = parser.parse_args()
    shown = Shown("ranks", "", "structures", "MB", "processor s", "MB of memory")
    for ranks in asked.ranks:
        sent = [pickle.dumps(structure_of(stage, ranks)) for stage in range(STAGES)]
        size = sum(map(len, sent)) / len(sent)
        for who, count in (("each", ranks), ("each once", STAGES)):
            made = min(count, asked.unpickled)
            seconds, memory = (value * count / made for value in in_fresh(unpickled, sent, made))
            cells = (f"{count:,}", f"{count * size / 1e6:,.1f}")
            shown.add_row(f"{ranks:,}", who, *cells, f"{seconds:,.2f}", f"{memory / 1e6:,.0f}")
    Console().print(shown)


if __name__ == "__main__":
    main()
