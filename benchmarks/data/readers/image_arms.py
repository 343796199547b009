"""Ways to read and decode images, all with one face: batches of crops and their numbers, without
end. All of them decode by the same function, with the same crop of each image.
"""

from __future__ import annotations

import importlib
import os
import random
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data.readers.data_arms import forever
from data.write.shard_writer import ShardWriter

JPEG, LABEL = "jpg", "cls"
SIDE = 224
_WIDTH, _HEIGHT, _QUALITY = 500, 375, 90  # about 100 KB, as the mean of ImageNet

Crop = tuple[int, int, int, int]
"""(left, top, right, bottom)."""
Decode = Callable[[bytes, int], Any]
"""Returns the crop of an image, given its JPEG and its number: uint8 of shape (224, 224, 3)."""
Crops = tuple[Any, list[int]]
"""A batch: the crops as one array or tensor, and the numbers of the images."""


@dataclass(frozen=True)
class ImageReading:
    """What is read, by how many threads or processes."""

    tars: Path
    images: int
    each: int
    """Images of each shard."""
    decoder: str = "pillow"
    batch: int = 32
    workers: int = 2

    @property
    def urls(self) -> list[str]:
        return [str(path) for path in sorted(self.tars.glob("*.tar"))]

    @property
    def decode(self) -> Decode:
        return DECODERS[self.decoder]

    def write(self) -> None:
        """Write the shards: number i is the label of image i."""
        with ShardWriter(self.tars / "shard-%06d.tar", max_samples=self.each) as writer:
            for number in range(self.images):
                key = f"{number:06d}"
                writer.write({"__key__": key, JPEG: _jpeg(number), LABEL: str(number)})


def crop_of(number: int) -> Crop:
    """Return the crop of an image, of 8 to 100 % of its area, as `RandomResizedCrop` takes it."""
    chance = random.Random(number)
    area = chance.uniform(0.08, 1.0) * _WIDTH * _HEIGHT
    ratio = chance.uniform(3 / 4, 4 / 3)
    width = min(_WIDTH, max(1, round((area * ratio) ** 0.5)))
    height = min(_HEIGHT, max(1, round((area / ratio) ** 0.5)))
    left, top = chance.randint(0, _WIDTH - width), chance.randint(0, _HEIGHT - height)
    return left, top, left + width, top + height


def decode_by_pillow(content: bytes, number: int) -> Any:
    """Decode, cut and scale by Pillow."""
    from PIL import Image

    with Image.open(BytesIO(content)) as image:
        return np.asarray(_scaled(image.convert("RGB"), number))


def decode_by_simplejpeg(content: bytes, number: int) -> Any:
    """Decode by libjpeg-turbo through simplejpeg; cut and scale by Pillow."""
    from PIL import Image

    pixels = importlib.import_module("simplejpeg").decode_jpeg(content)
    return np.asarray(_scaled(Image.fromarray(pixels), number))


def decode_by_torchvision(content: bytes, number: int) -> Any:
    """Decode, cut and scale by torchvision, on the CPU."""
    import torch

    io = importlib.import_module("torchvision.io")
    functions = importlib.import_module("torchvision.transforms.v2.functional")
    left, top, right, bottom = crop_of(number)
    image = io.decode_jpeg(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    cut = image[:, top:bottom, left:right]
    return functions.resize(cut, [SIDE, SIDE], antialias=True).permute(1, 2, 0).numpy()


DECODERS: dict[str, Decode] = {
    "pillow": decode_by_pillow,
    "simplejpeg": decode_by_simplejpeg,
    "torchvision": decode_by_torchvision,
}


def decoder_alone(reading: ImageReading) -> Iterator[Crops]:
    """Read the files one after the other and decode in one thread, as no loader can do less."""
    found = _ImagesInTars(reading)
    for first in forever(lambda: range(0, len(found), reading.batch)):
        numbers = range(first, min(first + reading.batch, len(found)))
        yield _stacked([found[number] for number in numbers])


def hpckit_threads(reading: ImageReading) -> Iterator[Crops]:
    """`transform` in threads."""
    return _hpckit(reading, threads=reading.workers)


def hpckit_processes(reading: ImageReading) -> Iterator[Crops]:
    """`transform` in processes."""
    return _hpckit(reading, workers=reading.workers)


def _hpckit(reading: ImageReading, **options: Any) -> Iterator[Crops]:
    from data import Loader, open_dataset

    loader = Loader(
        open_dataset(reading.tars),
        global_batch=reading.batch,
        transform=partial(_transformed, reading.decode),
        collate=_stacked,
        **options,
    )
    return (batch.data for batch in loader)


def _transformed(decode: Decode, sample: dict[str, Any], _: object) -> tuple[Any, int]:
    number = int(sample[LABEL])
    return decode(sample[JPEG], number), number


def torch_loader(reading: ImageReading) -> Iterator[Crops]:
    """`torch.utils.data.DataLoader` over a data set of the map kind, shuffled."""
    from torch.utils.data import DataLoader

    return _torch(DataLoader, reading)


def torchdata(reading: ImageReading) -> Iterator[Crops]:
    """Torchdata's `StatefulDataLoader` over the same."""
    module = importlib.import_module("torchdata.stateful_dataloader")
    return _torch(module.StatefulDataLoader, reading)


def _torch(kind: Any, reading: ImageReading) -> Iterator[Crops]:
    loader = kind(
        _ImagesInTars(reading),
        batch_size=reading.batch,
        shuffle=True,
        num_workers=reading.workers,
        collate_fn=_stacked_tensors,
        persistent_workers=True,
    )
    return forever(lambda: loader)


def webdataset(reading: ImageReading) -> Iterator[Crops]:
    """Shards and samples shuffled, in its own loader."""
    import webdataset as wds

    source = wds.WebDataset(reading.urls, shardshuffle=100, empty_check=False).shuffle(1000)
    decoded = source.map(partial(_transformed, reading.decode, _=None))
    batched = decoded.batched(reading.batch, collation_fn=_stacked_tensors, partial=True)
    return iter(wds.WebLoader(batched, batch_size=None, num_workers=reading.workers).repeat())


@dataclass(frozen=True)
class ImageArm:
    """One way."""

    name: str
    read: Callable[[ImageReading], Iterator[Crops]]
    module: str | None = None
    """What has to be installed."""


IMAGE_ARMS = (
    ImageArm("decoder alone, one thread", decoder_alone),
    ImageArm("hpckit, threads", hpckit_threads),
    ImageArm("hpckit, processes", hpckit_processes),
    ImageArm("torch DataLoader, processes", torch_loader, "torch"),
    ImageArm("torchdata, processes", torchdata, "torchdata.stateful_dataloader"),
    ImageArm("webdataset, processes", webdataset, "webdataset"),
)


class _ImagesInTars:
    """Image i is the i-th JPEG of all tars: as a user of torch's loader would write it."""

    def __init__(self, reading: ImageReading) -> None:
        self._decode = reading.decode
        self._places: list[tuple[str, int, int]] = []
        self._open: dict[str, int] = {}
        for url in reading.urls:
            with tarfile.open(url) as tar:
                self._places += [
                    (url, member.offset_data, member.size)
                    for member in tar
                    if member.name.endswith(f".{JPEG}")
                ]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        url, offset, size = self._places[number]
        if url not in self._open:
            self._open[url] = os.open(url, os.O_RDONLY)
        return self._decode(os.pread(self._open[url], size, offset), number), number


def _stacked(items: list[tuple[Any, int]]) -> Crops:
    return np.stack([pixels for pixels, _ in items]), [number for _, number in items]


def _stacked_tensors(items: list[tuple[Any, int]]) -> Crops:
    """The same as a tensor, which torch's workers hand over in shared memory."""
    import torch

    pixels, numbers = _stacked(items)
    return torch.from_numpy(pixels), numbers


def _scaled(image: Any, number: int) -> Any:
    from PIL import Image

    return image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=crop_of(number))


def _jpeg(number: int) -> bytes:
    """Return an image with coarse shapes and noise, which no two have in common."""
    from PIL import Image

    chance = np.random.default_rng(number)
    coarse = chance.integers(0, 256, (12, 16, 3), dtype=np.uint8)
    shapes = Image.fromarray(coarse).resize((_WIDTH, _HEIGHT), Image.Resampling.BICUBIC)
    noise = chance.normal(0, 14, (_HEIGHT, _WIDTH, 1))
    pixels = np.clip(np.asarray(shapes) + noise, 0, 255).astype(np.uint8)
    found = BytesIO()
    Image.fromarray(pixels).save(found, "JPEG", quality=_QUALITY)
    return found.getvalue()
