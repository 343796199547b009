"""The process that has the model of an evaluation, or one of several of them. It calls the function
of the user with what the names of its parameters ask for, and writes what that returns to a file.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from checkpointing import Checkpoint, Store, load
from checkpointing.interop.safetensors.model_files import export_safetensors
from hpckit.config.rules.model import decoder_of
from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import read_spec
from hpckit.evaluation.evaluation_job import find_checkpoint
from hpckit.rundir.directory import RunDir, checkpoint_root, run_name
from hpckit.system.atomic_files import write_json
from hpckit.system.child_processes import die_with_parent
from hpckit.trainer.models.decoder import DecoderModel
from hpckit.trainer.models.lora import adapt
from hpckit.trainer.models.model_builder import allocate, build
from hpckit.trainer.random_seeds import mix, seed_all

log = logging.getLogger(__name__)


def main() -> int:
    """Evaluate the checkpoint that the command line names, and return the exit status."""
    die_with_parent(os.getppid())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    run, submission, id_, out, entry = sys.argv[1:]
    directory = RunDir(Path(run))
    spec = read_spec(directory.spec(int(submission)))
    is_first = os.environ.get("RANK", "0") == "0"
    try:
        found = CheckpointWeights(directory, spec, id_).evaluate(entry, Path(out).parent)
    except Exception as error:
        log.exception("the evaluation has failed")
        if is_first:
            write_json(Path(out), {"error": f"{type(error).__name__}: {error}"})
        return 1
    if is_first:
        write_json(Path(out), {"metrics": found})
    return 0


class CheckpointWeights:
    """The weights of one checkpoint, in the forms in which a function may ask for them."""

    def __init__(self, run: RunDir, spec: RunSpec, id_: str) -> None:
        self._spec, self._id = spec, id_
        self._root, self._name = checkpoint_root(spec, run), run_name(spec)
        self.step = int(id_.partition("-")[0])
        self.device = _device(spec)

    def evaluate(self, entry: str, scratch: Path) -> Any:
        """Return what the function `module:function` returns for the checkpoint, with its numbers
        as Python's own.

        Args:
            scratch: a folder that whoever has started this process removes, however it ends.

        Raises:
            Exception: of the function, or of the checkpoint.
        """
        module, _, name = entry.partition(":")
        function = getattr(importlib.import_module(module), name)
        # the same numbers for each checkpoint, so that their metrics can be compared
        seed_all(mix(self._spec.train.seed, "evaluation", int(os.environ.get("RANK", "0"))))
        with _process_group(self.device):
            given = self._arguments(function, scratch)
            with torch.no_grad():
                found = function(**given)
        if not isinstance(found, Mapping):
            return _plain(found)  # the evaluation job reports what is wrong with it
        return {str(name): _plain(value) for name, value in found.items()}

    def _arguments(self, function: Callable[..., Any], scratch: Path) -> dict[str, Any]:
        known: Mapping[str, Callable[[], Any]] = {
            "cfg": lambda: self._spec,
            "model": self._model,
            "load": lambda: self.load,
            "safetensors": lambda: self._export(scratch / "weights"),
            "step": lambda: self.step,
            "device": lambda: self.device,
        }
        names = inspect.signature(function).parameters
        return {name: known[name]() for name in names if name in known}

    def load(self, state: dict[str, Any], **options: Any) -> None:
        """Load what `state` names from the checkpoint, in place, as `checkpointing.load`."""
        item = self._spec.eval.item
        if item != "model":
            options = {"rename": {"model/": f"{item}/"}, **options}
        load(state, self._root, run=self._name, step=self.step, checkpoint_id=self._id, **options)

    def _model(self) -> nn.Module:
        """Return hpckit's own model with the weights, in eval mode."""
        spec = self._spec
        bf16 = spec.precision.master == "bf16" and spec.eval.item == "model"
        model = build(spec.model, None, torch.bfloat16 if bf16 else torch.float32)
        if spec.lora and isinstance(model, DecoderModel):
            adapt(model, decoder_of(spec), spec.lora)
        allocate(model, self.device, spec.train.seed)
        self.load({"model": model})
        return model.eval()

    def _export(self, folder: Path) -> Path:
        """Fill a folder of all ranks with the weights as safetensors, and return it."""
        if not dist.is_initialized() or dist.get_rank() == 0:
            store = Store.open(self._root)
            try:
                found = find_checkpoint(store, self._name, self._id)
                checkpoint = Checkpoint(store, found.stored)
                export_safetensors(checkpoint, folder, items=[self._spec.eval.item])
            finally:
                store.close()
        if dist.is_initialized():
            dist.barrier()
        return folder


def _device(spec: RunSpec) -> torch.device:
    if spec.cluster.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


@contextmanager
def _process_group(device: torch.device) -> Iterator[None]:
    """Have the processes of the evaluation know each other within this block, if there are
    several."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    backends = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backends)
    try:
        yield
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _plain(value: Any) -> Any:
    """Return a number of torch or numpy as one of Python, and anything else as text."""
    if isinstance(value, bool | int | float):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


if __name__ == "__main__":
    sys.exit(main())
