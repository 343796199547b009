"""How long a new process takes to the first batch, deep in a plan of a thousand million samples.

    python -m benchmarks.data.data_resume [--shards 1000000] [--each 1000] [--at 0.9] [--rounds 5]
        [--grown 0.01]

The manifest is real, of shards which mostly are not there: only those that the first batches take
are made, as links to one. A new process then opens the manifest, loads a loader's state and takes
a batch. Told are the time of that, without and with the imports, what the process had in memory at
most, and the bytes of the state. As a yardstick, the same on a data set of that one shard, and on
the large one where a share of its shards, the last ones, was added since the state was saved.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common.arm_comparison import interleave, write_record
from benchmarks.common.scratch import scratch
from data.index.manifest import NAME, save_manifest
from data.order.sample_order import Order
from data.write.shard_writer import ShardWriter

_BATCHES = 8  # that are there to be read, ahead of training too


@dataclass(frozen=True)
class ResumeTiming:
    """One measurement."""

    import_s: float
    open_s: float
    first_s: float
    cpu_s: float
    """Processor time of both."""
    import_rss: int
    rss: int
    keys: list[str]

    @property
    def seconds(self) -> float:
        return self.open_s + self.first_s


def resume(folder: Path, state: Mapping[str, Any], batch: int) -> ResumeTiming:
    """In a new process."""
    arguments = [str(folder), json.dumps(state), str(batch)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.data.data_resume_process", *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    return ResumeTiming(**json.loads(done.stdout))


def make(
    folder: Path, shards: int, each: int, at: float, batch: int, grown: float = 0.0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The manifest and what is needed of its shards; the state of a loader at that place, and that
    of one before the last shards were added, a share `grown` of all."""
    folder.mkdir()
    with ShardWriter(folder / "one-%d.tar", max_samples=each, manifest=False) as writer:
        for number in range(each):
            writer.write({"__key__": f"{number}", "txt": "some text"})
    (one,) = writer.shards
    names = [f"shard-{number:07d}.tar" for number in range(shards)]
    rows = [one._replace(url=str(folder / name)) for name in names]
    manifest = save_manifest(rows, folder / NAME)
    states, needed = [], []
    for count in (shards, shards - int(grown * shards)):
        order = Order(manifest.samples[:count])
        position = int(at * order.samples)
        needed.append(order.locate(np.arange(position, position + _BATCHES * batch))[0])
        told = {"fingerprint": manifest.fingerprint_of(count), "shards": count}
        states.append({**order.identity, **told, "position": position})
    del states[0]["shards"]  # as of a loader whose dataset may not grow
    for number in np.unique(np.concatenate(needed)).tolist():
        for suffix in ("", ".index"):
            (folder / f"{names[number]}{suffix}").hardlink_to(f"{one.url}{suffix}")
    Path(one.url).unlink()  # which is in no manifest
    return states[0], states[1]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=1_000_000)
    parser.add_argument("--each", type=int, default=1000, help="samples of a shard")
    parser.add_argument("--at", type=float, default=0.9, help="share of the epoch that is done")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--grown", type=float, default=0.01, help="share of shards that were added")
    parser.add_argument("--folder", type=Path, help="where to work")
    args = parser.parse_args()
    found: dict[str, list[ResumeTiming]] = {"large": [], "large, grown": [], "one shard": []}
    with scratch(args.folder) as folder:
        large, small, of = folder / "large", folder / "small", (args.each, args.at, args.batch)
        folders = {"large": large, "large, grown": large, "one shard": small}
        whole, before = make(large, args.shards, *of, args.grown)
        states = {"large": whole, "large, grown": before, "one shard": make(small, 1, *of)[0]}

        def measure(name: str) -> float:
            found[name].append(resume(folders[name], states[name], args.batch))
            return found[name][-1].seconds

        interleave({name: partial(measure, name) for name in found}, args.rounds)
    state = json.dumps(states["large"], separators=(",", ":"))
    print(f"load {os.getloadavg()[0]:.1f}; the state has {len(state)} bytes: {state}")
    for name, all_ in found.items():
        assert all(one.keys == all_[0].keys for one in all_), "resumed at different samples"
        print(
            f"{name}: open {median(r.open_s for r in all_):.3f} s, "
            f"first batch {median(r.first_s for r in all_):.3f} s, "
            f"both {median(r.seconds for r in all_):.3f} s "
            f"({min(r.seconds for r in all_):.3f} to {max(r.seconds for r in all_):.3f}), "
            f"processor time {median(r.cpu_s for r in all_):.3f} s, "
            f"imports {median(r.import_s for r in all_):.3f} s, "
            f"{median(r.rss for r in all_) / 1e6:.0f} MB, "
            f"of which {median(r.import_rss for r in all_) / 1e6:.0f} MB by imports"
        )
    write_record(
        "data_resume",
        {
            "settings": {**vars(args), "folder": str(args.folder)},
            "state": states["large"],
            "load": os.getloadavg(),
            "arms": {name: [asdict(one) for one in all_] for name, all_ in found.items()},
        },
    )


if __name__ == "__main__":
    main()
