"""A program that uses a framework together with the packages that were installed beside it:

    python tests/versions/beside.py lightning FOLDER

It imports both, trains or reads a little, and continues from what was saved, in a second process
where the framework has a Trainer. It is run by `tests/frameworks.sh`.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path


def continued(example: str, option: str, first: str, second: str, folder: Path) -> None:
    """Run one of the examples in the package, and again for longer: it continues."""
    words = [sys.executable, "-m", f"checkpointing.examples.{example}", "--root", str(folder)]
    steps = []
    for count in (first, second):
        done = subprocess.run(
            [*words, option, count], stdout=subprocess.PIPE, text=True, check=True
        )
        steps.append([int(n) for n in re.findall(r"^step (\d+) ", done.stdout, re.MULTILINE)])
    assert steps[0][0] == 1, steps
    assert steps[1][0] == steps[0][-1] + 1, steps


def beside_lightning(folder: Path) -> None:
    continued("lightning_trainer", "--epochs", "1", "2", folder)


def beside_transformers(folder: Path) -> None:
    continued("huggingface_trainer", "--epochs", "1", "2", folder)


def beside_torchtitan(folder: Path) -> None:
    continued("torchtitan_loop", "--steps", "15", "25", folder)


def beside_nemo(folder: Path) -> None:
    """Save a module of NeMo, and restore it into another."""
    import torch
    from nemo.core import NeuralModule  # type: ignore[import-not-found, unused-ignore]

    from checkpointing import Checkpointer

    class Net(NeuralModule):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(8, 8)

    saved, restored = Net(), Net()
    with closing(Checkpointer(folder, run="nemo")) as checkpointer:
        checkpointer.save(3, {"model": saved})
    with closing(Checkpointer(folder, run="nemo")) as checkpointer:
        assert checkpointer.restore({"model": restored}) == 3
    for one, other in zip(saved.parameters(), restored.parameters(), strict=True):
        assert torch.equal(one, other)


def beside_webdataset(folder: Path) -> None:
    """Read a shard by a pipeline of webdataset and by the same one over `data`."""
    import webdataset as wds

    from data.wds import WebLoader, from_wds

    folder.mkdir()
    for shard in range(2):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for n in range(8):
                text = str(shard * 8 + n).encode()
                member = tarfile.TarInfo(f"{n}.txt")
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text))
    urls = [str(folder / f"{shard}.tar") for shard in range(2)]

    def pipeline() -> wds.WebDataset:
        return wds.WebDataset(urls, shardshuffle=False).decode().to_tuple("txt")

    wanted = sorted(text for (text,) in pipeline())
    loader = WebLoader(from_wds(pipeline()), batch_size=4)
    found = [text for (texts,) in loader for text in texts]
    assert sorted(found) == wanted, (found, wanted)


USES: dict[str, Callable[[Path], None]] = {
    "lightning": beside_lightning,
    "transformers": beside_transformers,
    "torchtitan": beside_torchtitan,
    "nemo": beside_nemo,
    "webdataset": beside_webdataset,
}

if __name__ == "__main__":
    USES[sys.argv[1]](Path(sys.argv[2]))
