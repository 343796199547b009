"""Writes a store of many kinds of checkpoints as text, with what was saved.

Each release's store is written once, by the code of that release, and never again. In a checkout of
it, with this file copied to where it stands:

    python -m tests.unit.checkpointing.released.writing > store-VERSION.json
"""

from __future__ import annotations

import base64
import json
import math
import tempfile
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from checkpointing import Checkpointer, Last, Only, Store
from checkpointing.codec import AdaptiveEncoder, Codec, CodecChooser, WordLayout
from checkpointing.codec.selection.codec_choice import CodecChoice
from checkpointing.format.manifest import ManifestHeader
from checkpointing.interop.dcp import StoreWriter
from checkpointing.state.item_adapters import to_save
from checkpointing.store.deletion.checkpoint_prune import prune
from checkpointing.store.pins_and_labels import pin
from checkpointing.store.sessions.session import Session
from checkpointing.store.write.chunk_encoding import ChunkEncoder
from checkpointing.store.write.chunk_index import RunChunkIndex
from checkpointing.store.write.manifest_commit import commit, write_part
from checkpointing.store.write.part_writer import TensorPiece, WriteOptions, write

DTYPES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float32 float64"
DTYPES += " complex32 complex64 complex128 float8_e4m3fn float8_e4m3fnuz float8_e5m2"
DTYPES += " float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2"
VALUES: dict[str, Any] = {
    "numbers": [0, -1, 2**64, 1.5, -0.0, 5e-324, math.nan, math.inf, -math.inf],
    "text": 'a "quoted" \\ \t\x00 ö 😀 /~',
    "tuples": ((), (1, (2.0, "3")), [(4,)]),
    "any keys": {1: "a", "1": "b", None: 2.5, (1, 2): {True: "c"}},
    "a tag": {"$tuple": [1]},
    "ordered": OrderedDict([("z", 1), ("a", {2: 3})]),
    "counter": Counter("abra"),
}
Saved = dict[str, dict[str, Any]]  # by "run step": hashes of tensors and repr of values, by name


def described(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> dict[str, Any]:
    """What tells whether they are the same, to the bit."""
    raw = {name: one.detach().resolve_conj().contiguous() for name, one in tensors.items()}
    return {
        "tensors": {
            name: [str(t.dtype)[6:], [*t.shape], _hash(bytes(t.view(-1).view(torch.uint8).numpy()))]
            for name, t in raw.items()
        },
        "values": {name: repr(value) for name, value in values.items()},
    }


def model_and_optimizer() -> dict[str, Any]:
    """Two groups, a frozen layer, and one that never stepped."""
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2), nn.Linear(2, 2))
    module[3].requires_grad_(False)
    groups: list[dict[str, Any]] = [{"params": [*module[2].parameters()][::-1], "lr": 0.5}]
    groups += [{"params": [*module[0].parameters(), *module[3].parameters()]}, {"params": []}]
    optimizer = torch.optim.AdamW(groups, lr=torch.tensor(0.1))
    return {"model": module, "optimizer": optimizer}


def _hash(data: bytes) -> str:
    return blake3(data).hexdigest(length=8)


def _every_dtype() -> dict[str, Tensor]:
    raw = torch.arange(64).to(torch.uint8)
    return {name: raw.clone().view(getattr(torch, name)) for name in DTYPES.split()}


def _save(root: Path, run: str, step: int, state: dict[str, Any]) -> None:
    checkpointer = Checkpointer(root, run=run)
    checkpointer.save(step, state, metrics={"loss": 1 / step})
    checkpointer.wait()
    checkpointer.close()


def _plain(root: Path, saved: Saved) -> None:
    """Every dtype and kind of value; a pin, and a checkpoint that lost an item."""
    for step in (1, 2, 3):
        tensors = {"cut": torch.arange(40.0).view(4, 10).t()[::3] + step, "empty": torch.ones(0, 3)}
        dtypes = _every_dtype()
        nested: list[Any] = [torch.tensor(step), {"a/~": torch.ones(2), 7: "x"}]
        values = VALUES | {"step": step}
        state = {"dtypes": dtypes, "odd": tensors, "nested": nested, "values": values}
        _save(root, "plain", step, state)
        found = {f"dtypes/{n}": one for n, one in dtypes.items()}
        found |= {f"odd/{n}": one for n, one in tensors.items()}
        found |= {"nested/0": nested[0], "nested/1/a~1~0": torch.ones(2)}
        said = described(found, {"values": values, "nested/1/7": "x"})
        saved[f"plain {step}"] = said
    store = Store.open(root)
    first = next(one for one in store.manifests("plain") if one.save.step == 1)
    pin(store, first.save, "für später")
    prune(store, "plain", [Last(1), Only(("odd", "values"), Last(2))], grace_s=0)
    store.close()
    kept = ("odd/", "values")
    saved["plain 2"] = {
        kind: {name: one for name, one in its.items() if name.startswith(kept)}
        for kind, its in saved["plain 2"].items()
    }


def _optimizers(root: Path, saved: Saved) -> None:
    """As this release spells an optimizer, and as those before did."""
    state = model_and_optimizer()
    for step in (1, 2):
        state["optimizer"].zero_grad()
        state["model"][:3](torch.randn(8, 3)).square().sum().backward()
        state["optimizer"].step()
        _save(root, "optimizer", step, state)
        saved[f"optimizer {step}"] = _leaves(state)
    flat = get_optimizer_state_dict(
        state["model"],
        state["optimizer"],
        options=StateDictOptions(flatten_optimizer_state_dict=True),
    )
    _save(root, "before", 2, {"model": state["model"], "optimizer": flat})
    saved["before 2"] = _leaves({"model": state["model"], "optimizer": flat})


def _leaves(state: dict[str, Any]) -> dict[str, Any]:
    from checkpointing.format.values.json_values import decode

    leaves = to_save(state)
    return described(leaves.tensors, {name: decode(one) for name, one in leaves.values.items()})


class Always(CodecChooser):
    """Takes one codec, for what it can take."""

    def __init__(self, codec: Codec) -> None:
        super().__init__()
        self._codec = codec

    def wants_base(self, kind: str) -> bool:
        return self._codec in (Codec.DELTA, Codec.ROWS, Codec.GROUPS)

    def way(self, kind: str, raw: Any, layout: WordLayout, base: Any = None) -> CodecChoice:
        if self._codec in (Codec.DELTA, Codec.GROUPS) and base is None:
            return CodecChoice(Codec.PLANES)
        return CodecChoice(self._codec, on_base=base is not None)


def _codecs(root: Path, saved: Saved) -> None:
    """A tensor of each codec, three times: on a base, which is on a base. A rank saves each, and
    all ranks save one, some rows each."""
    store, generator = Store.open(root), np.random.default_rng(2)
    codecs = [codec for codec in Codec if codec is not Codec.CONSTANT]
    encoders = {
        codec.name: ChunkEncoder(AdaptiveEncoder(Always(codec)), depth=3) for codec in codecs
    }
    column = np.cumsum(generator.integers(0, 3, (96, 1)), axis=0)
    array = np.repeat(column, 16, axis=1).astype(np.uint16)
    for step in (1, 2, 3):
        array = array.copy()
        array[generator.integers(0, 95, 3)] += np.uint16(step)
        array[-1:] = 0
        tensors = {name: array + np.uint16(place) for place, name in enumerate(encoders)}
        with Session(store, "codecs") as session:
            save = session.begin(step)
            for rank, (name, encoder) in enumerate(encoders.items()):
                own = TensorPiece(f"model/{name}", "bfloat16", array.shape, (0, 0), tensors[name])
                rows = array[16 * rank : 16 * rank + 16]
                part = TensorPiece("model/rows", "bfloat16", array.shape, (16 * rank, 0), rows)
                index, options = (
                    RunChunkIndex(store, "codecs").index(),
                    WriteOptions(encoder=encoder),
                )
                found = write(store, save, [own, part], {}, index, options)
                write_part(store, ManifestHeader(save, time.time(), len(encoders)), rank, found)
            commit(store, save, len(encoders))
            session.end(save.manifest())
        raw = {f"model/{n}": a for n, a in tensors.items()} | {"model/rows": array}
        given = {n: torch.from_numpy(a.view(np.int16)).view(torch.bfloat16) for n, a in raw.items()}
        saved[f"codecs {step}"] = described(given, {})
    store.close()


def _dcp(root: Path, saved: Saved) -> None:
    store = Store.open(root)
    model: dict[str, Any] = {"w": torch.arange(12.0).view(3, 4), "list": [torch.ones(2), {"u": 2}]}
    state = {"model": model, "numbers": {"0": torch.ones(1), "1": torch.zeros(1)}, "n": (1, 2)}
    dcp_save(state, storage_writer=StoreWriter(store, "dcp", 1), no_dist=True)
    store.close()
    tensors = {"model/w": model["w"], "model/list/0": torch.ones(2)}
    tensors |= {"numbers/0": torch.ones(1), "numbers/1": torch.zeros(1)}
    record = {"lists": [], "dicts": ["numbers"]}
    saved["dcp 1"] = described(
        tensors, {"model/list/1/u": 2, "n": (1, 2), "dcp.containers": record}
    )


def written(root: Path) -> dict[str, Any]:
    """The store's files, and what was saved."""
    Store.open(root, create=True).close()
    saved: Saved = {}
    for make in (_plain, _optimizers, _codecs, _dcp):
        make(root, saved)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    kept = [path for path in files if path.relative_to(root).parts[0] in ("packs", "runs")]
    return {
        "files": {
            str(path.relative_to(root)): base64.b64encode(path.read_bytes()).decode()
            for path in (root / "hpckit.json", *kept)
        },
        "saved": saved,
    }


def _lines(entries: Mapping[str, Any]) -> list[str]:
    return [f"{json.dumps(name)}: {json.dumps(one)}" for name, one in entries.items()]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        held = written(Path(folder) / "store")
        sections = [
            f"{json.dumps(kind)}: {{\n" + ",\n".join(_lines(its)) + "\n}"
            for kind, its in held.items()
        ]
        print("{\n" + ",\n".join(sections) + "\n}")
