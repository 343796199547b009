"""How long a state of very many small tensors or values takes to save and restore, against
`torch.save`.

    python -m benchmarks.checkpoint.many_small [--tensors 20000] [--integers 2000000] [--rounds 5]
                                              [--kinds plain adamw list dict] [--folder /tmp]

- *plain*: tensors of 64 bytes in one dict. *adamw*: as many parameters of a module, and the AdamW
  that has stepped them, three tensors of each. *list*: a list of integers, as a plain value.
  *dict*: a tenth as many names with an integer each.
- *many_small_KIND_save*: what a save makes training wait for: the call, and the next step of the
  optimizer, which follows immediately. Base: `torch.save` of the same to a file, without fsync.
  "durable" is until the save is committed. Each save has other content than the one before.
- *..._processor*: the same in processor time of the training process, on a machine that others use.
- *many_small_KIND_restore*: from the store, of a new trainer (as a fresh state, too) and of one
  that is there, and from the node's memory. Base: `torch.load` of the file, and `load_state_dict`
  where there is something that takes it.
"""

from __future__ import annotations

import argparse
import gc
import logging
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from benchmarks.common.arm_comparison import ArmComparison, interleave, report
from benchmarks.common.number_arguments import positive_int
from benchmarks.common.scratch import scratch
from checkpointing import Checkpointer

RUN = "benchmark"
SAVE, LOAD = "torch.save", "torch.load"
HPCKIT, BLOCKING = "hpckit", "hpckit, overlap=False"
AGAIN, ANEW, MEMORY = "hpckit, again", "hpckit, of a new trainer", "hpckit, from memory"
FRESH = "hpckit, of a new trainer, fresh"
KINDS = ("plain", "adamw", "list", "dict")
_WIDTH = 16  # float32: 64 bytes


class Case:
    """A state, the change of one training step, and the object that `torch.save` saves."""

    def __init__(self, kind: str, tensors: int, integers: int) -> None:
        self.state: dict[str, Any] = {}
        self._optimizer: AdamW | None = None
        self._tensors: list[Tensor] = []
        if kind == "adamw":
            model = nn.Module()
            for index in range(tensors):
                parameter = nn.Parameter(torch.randn(_WIDTH))
                parameter.grad = torch.randn(_WIDTH)
                model.register_parameter(f"layer{index}", parameter)
            self._optimizer = AdamW(model.parameters(), lr=1e-4)
            self.state = {"model": model, "optimizer": self._optimizer}
        elif kind == "plain":
            self._tensors = [torch.randn(_WIDTH) for _ in range(tensors)]
            self.state = {"tensors": {f"t{i}": one for i, one in enumerate(self._tensors)}}
        else:
            values: Any = list(range(integers))
            if kind == "dict":
                values = {f"name{index}": index for index in range(integers // 10)}
            self.state = {"values": values}

    def step(self) -> None:
        """Changes the state as training does."""
        if self._optimizer is not None:
            self._optimizer.step()
        elif self._tensors:
            torch._foreach_add_(self._tensors, 1.0)
        else:
            values = self.state["values"]
            values[next(iter(values)) if isinstance(values, dict) else 0] += 1

    def mark(self) -> float:
        """Returns a number that each `step` changes and a restore brings back."""
        if self._optimizer is not None:
            state = self._optimizer.state_dict()["state"][0]
            return float(state["step"] + state["exp_avg"].sum())
        if self._tensors:
            return float(self._tensors[-1].sum())
        values = self.state["values"]
        return float(values[next(iter(values)) if isinstance(values, dict) else 0])

    def dump(self) -> dict[str, Any]:
        return {n: one.state_dict() if _has_state(one) else one for n, one in self.state.items()}

    def take(self, dumped: dict[str, Any]) -> None:
        for name, one in self.state.items():
            if _has_state(one):
                one.load_state_dict(dumped[name])


class ManySmallBench:
    """The methods that save and restore one state."""

    def __init__(self, case: Case, folder: Path) -> None:
        self._case, self._folder, self._file = case, folder, folder / "torch.pt"
        self._waited_s = 0.0  # by the optimizer's step after the last save
        self._tier = ""  # where the last restore was from
        self._marks: dict[bool, float] = {}  # of the states that were saved last
        self.durable_s: dict[str, list[float]] = {}
        self.processor_s: dict[str, list[float]] = {}
        case.step()
        self._ckpts = {overlap: self._open(overlap) for overlap in (True, False)}
        for ckpt in self._ckpts.values():
            ckpt.restore(case.state)
        self._steps = dict.fromkeys(self._ckpts, 0)
        torch.save(case.dump(), self._file)

    def saves(self) -> dict[str, Callable[[], float]]:
        return {
            SAVE: self._torch_save,
            HPCKIT: partial(self._save, overlap=True),
            BLOCKING: partial(self._save, overlap=False),
        }

    def restores(self) -> dict[str, Callable[[], float]]:
        return {
            LOAD: self._torch_load,
            AGAIN: self._restore,
            ANEW: partial(self._restore_anew, is_fresh=False),
            FRESH: partial(self._restore_anew, is_fresh=True),
            MEMORY: self._restore_from_memory,
        }

    def close(self) -> None:
        for ckpt in self._ckpts.values():
            ckpt.close()

    def _open(self, overlap: bool) -> Checkpointer:
        folder = self._folder / f"store-{overlap}"
        return Checkpointer(folder, run=RUN, overlap=overlap, on_event=self._hear)

    def _hear(self, kind: str, **fields: Any) -> None:
        if kind == "checkpoint_staged":
            self._waited_s = fields["waited_s"]
        elif kind == "checkpoint_restored":
            self._tier = fields["tier"]

    def _torch_save(self) -> float:
        seconds = self._seconds(SAVE, lambda: torch.save(self._case.dump(), self._file))
        self._case.step()
        return seconds

    def _torch_load(self) -> float:
        return self._seconds(
            LOAD, lambda: self._case.take(torch.load(self._file, weights_only=True))
        )

    def _save(self, *, overlap: bool) -> float:
        ckpt = self._ckpts[overlap]
        self._steps[overlap] += 1
        self._marks[overlap] = self._case.mark()
        name = HPCKIT if overlap else BLOCKING
        stall_s = self._seconds(name, lambda: ckpt.save(self._steps[overlap], self._case.state))
        begun_s = time.perf_counter()
        self._case.step()
        ckpt.wait()
        self.durable_s.setdefault(name, []).append(stall_s + time.perf_counter() - begun_s)
        return stall_s + self._waited_s

    def _restore(self) -> float:
        return self._timed(AGAIN, self._ckpts[False], overlap=False)

    def _restore_anew(self, *, is_fresh: bool) -> float:
        self._ckpts.pop(False).close()
        ckpt = self._open(overlap=False)
        self._ckpts[False] = ckpt
        name = FRESH if is_fresh else ANEW
        return self._timed(name, ckpt, overlap=False, is_fresh=is_fresh)

    def _restore_from_memory(self) -> float:
        self._save(overlap=True)
        del self._ckpts[True]  # without close(), so that its node's service keeps what it has
        gc.collect()
        ckpt = self._open(overlap=True)
        self._ckpts[True] = ckpt
        return self._timed(MEMORY, ckpt, overlap=True, tier="memory")

    def _timed(
        self,
        name: str,
        ckpt: Checkpointer,
        *,
        overlap: bool,
        tier: str = "store",
        is_fresh: bool = False,
    ) -> float:
        self._case.step()
        seconds = self._seconds(name, lambda: ckpt.restore(self._case.state, is_fresh=is_fresh))
        if self._tier != tier or self._case.mark() != self._marks[overlap]:
            raise AssertionError(f"what came from the {self._tier} is not what was saved")
        return seconds

    def _seconds(self, name: str, work: Callable[[], object]) -> float:
        gc.collect()
        begun_s, cpu_s = time.perf_counter(), time.process_time()
        work()
        self.processor_s.setdefault(name, []).append(time.process_time() - cpu_s)
        return time.perf_counter() - begun_s


def _has_state(one: object) -> bool:
    return isinstance(one, nn.Module | torch.optim.Optimizer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tensors", type=positive_int, default=20_000)
    parser.add_argument("--integers", type=positive_int, default=2_000_000)
    parser.add_argument("--rounds", type=positive_int, default=5)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    settings = parser.parse_args()
    logging.getLogger("checkpointing").setLevel(logging.ERROR)  # trainers go without close()
    about = {key: str(value) if key == "folder" else value for key, value in vars(settings).items()}
    for kind in settings.kinds:
        with scratch(settings.folder) as folder:
            bench = ManySmallBench(Case(kind, settings.tensors, settings.integers), folder)
            _measure(f"many_small_{kind}_save", SAVE, bench, bench.saves(), about)
            _measure(f"many_small_{kind}_restore", LOAD, bench, bench.restores(), about)
            bench.close()


def _measure(
    name: str,
    base: str,
    bench: ManySmallBench,
    arms: dict[str, Callable[[], float]],
    about: dict[str, Any],
) -> None:
    bench.durable_s, bench.processor_s = {}, {}
    measured = interleave(arms, about["rounds"] + 1)
    durable_s = {arm: bench.durable_s[arm] for arm in arms if arm in bench.durable_s}
    measured |= {f"{arm}, durable": seconds for arm, seconds in durable_s.items()}
    processor = {arm: bench.processor_s[arm] for arm in arms}
    for what, unit, found in ((name, "s", measured), (f"{name}_processor", "cpu s", processor)):
        # the first round warms up
        kept = {arm: seconds[1 : about["rounds"] + 1] for arm, seconds in found.items()}
        report(ArmComparison(what, base, unit, kept), about)


if __name__ == "__main__":
    main()
