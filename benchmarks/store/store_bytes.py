"""Bytes per save, of the raw bytes: hpckit, torch DCP and zstd on the same states of real runs.

    python -m benchmarks.store.store_bytes [--saves 20] [--every 10] [--lr 1e-3]

A byte model of 3.3 million parameters is trained on the sources of Python's standard library with
AdamW, from warm-up to the end of a cosine decay, and saved every `--every` steps:

- *fp32*: weights and both moments in float32;
- *bf16*: of the same run the weights alone, rounded to bfloat16;
- *frozen*: the model frozen, adapters trained, so that about 95 % of the state never change.

Counted is what is on the disk after a save that was not there before, manifests and metadata
included; of zstd the frames alone. `depth` is how many bases a reader may have to decode for one
chunk (`ChunkEncoder(depth=)`). "later" is without the first save, which has nothing to refer to.
"read" is what a restore of a whole save reads, bases included, of the raw bytes: the mean of all.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common.arm_comparison import write_record
from benchmarks.common.number_arguments import positive_float, positive_int
from benchmarks.common.scratch import scratch
from benchmarks.store.save_sizes import (
    ALL,
    READ,
    Dcp,
    HpckitSaveArm,
    Raw,
    SaveArm,
    Sizes,
    Tensors,
    Zstd,
)
from benchmarks.store.shared_chunks import three_names
from benchmarks.store.small_training_run import (
    SmallRun,
    add_adapters,
    build_model,
    series,
    trained_share,
)

RANK = 3  # of the adapters: 95.7 % of the state's bytes are frozen
RAW = "raw"
Found = Mapping[str, list[Sizes]]  # arm -> save -> bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--saves", type=positive_int, default=20)
    parser.add_argument("--every", type=positive_int, default=10)
    parser.add_argument("--depths", type=positive_int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--lr", type=positive_float, default=1e-3, help="the highest, of the demo")
    settings = parser.parse_args()
    torch.set_num_threads(1)  # small matrices; on a busy machine more threads wait for each other
    with scratch() as folder:
        found = {**_dense(settings, folder), "frozen": _frozen(settings, folder)}
        names = three_names(folder, SmallRun(build_model(), 10))
    for name, sizes in found.items():
        _show(name, sizes)
    for arm, copies in names.items():
        print(f"one step saved as last, best and milestone: {copies:.3f} copies  {arm}")
    write_record("store_bytes", {"settings": vars(settings), "bytes": found, "three": names})


def _dense(settings: argparse.Namespace, folder: Path) -> dict[str, Found]:
    """Returns the bytes of fp32 and bf16 states of one run."""
    run = SmallRun(build_model(), settings.saves * settings.every, settings.lr)
    arms = {kind: _arms(folder / kind, settings.depths) for kind in ("fp32", "bf16")}
    found: dict[str, dict[str, list[Sizes]]] = {kind: {} for kind in arms}
    for step, state in series(run, settings.saves, settings.every):
        states: dict[str, Tensors] = {"fp32": state, "bf16": _rounded(state)}
        for kind, tensors in states.items():
            _save(arms[kind], found[kind], step, tensors)
    return {**found}


def _frozen(settings: argparse.Namespace, folder: Path) -> Found:
    model = build_model()
    add_adapters(model, RANK)
    run = SmallRun(model, settings.saves * settings.every, settings.lr)
    arms = _arms(folder / "frozen", settings.depths[:1])
    found: dict[str, list[Sizes]] = {}
    for step, state in series(run, settings.saves, settings.every):
        _save(arms, found, step, state)
    print(f"frozen: {1 - trained_share(state, model):.1%} of the state's bytes")
    return found


def _arms(folder: Path, depths: list[int]) -> dict[str, SaveArm]:
    folder.mkdir()
    arms: dict[str, SaveArm] = {RAW: Raw(), "torch DCP": Dcp(folder / "dcp"), "zstd-1": Zstd()}
    for depth in depths:
        arms[f"hpckit, depth {depth}"] = HpckitSaveArm(folder / f"depth-{depth}", depth)
    return arms


def _save(
    arms: Mapping[str, SaveArm], found: dict[str, list[Sizes]], step: int, tensors: Tensors
) -> None:
    for name, arm in arms.items():
        found.setdefault(name, []).append(arm.save(step, tensors))


def _rounded(state: Tensors) -> Tensors:
    """Returns the model's weights in bfloat16."""
    return {n: t.to(torch.bfloat16) for n, t in state.items() if n.startswith("model/")}


def _show(title: str, found: Found) -> None:
    raw = found[RAW][0][ALL]
    table = Table(
        title=f"{title}: stored / raw, {len(found[RAW])} saves of {raw / 1e6:.1f} MB",
        box=None,
        header_style="bold",
        title_justify="left",
    )
    for column in ("", "kind", "all saves", "first", "later", "least", "most", "read"):
        table.add_column(column, justify="left" if column in ("", "kind") else "right")
    for arm, kind, shares in _shares(found):
        later = shares[1:] or shares
        numbers = (mean(shares), shares[0], mean(later), min(later), max(later))
        read = f"{mean(size[READ] for size in found[arm]) / raw:.3f}" if kind == ALL else ""
        table.add_row(arm, kind, *(f"{number:.3f}" for number in numbers), read)
    Console().print(table)


def _shares(found: Found) -> Iterator[tuple[str, str, list[float]]]:
    """Prints the stored / raw bytes of every save, by arm and kind of tensors."""
    kinds = [
        kind
        for kind, size in found[RAW][0].most_common()
        if kind != READ and size > found[RAW][0][ALL] / 100
    ]
    for arm, saves in found.items():
        for kind in kinds if arm != RAW else []:
            if kind in saves[0]:
                pairs = zip(saves, found[RAW], strict=True)
                yield arm, kind, [one[kind] / raw[kind] for one, raw in pairs]


if __name__ == "__main__":
    main()
