"""Loaders have a length where they end, by which progress bars are right, and an evaluation has
each sample once on any number of ranks."""

from __future__ import annotations

import io
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from rich.progress import Progress

from data import (
    DataError,
    Dataset,
    Loader,
    Packing,
    StreamingDataset,
    WebLoader,
    from_wds,
    mixed,
    open_dataset,
    to_device,
)
from tests.unit.data.tars import write_tar

N = 23


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(3):
        files = [(f"{i:03d}.txt", str(i).encode()) for i in range(shard, N, 3)]
        write_tar(folder / f"s-{shard}.tar", files)
    return open_dataset(folder)


@pytest.mark.parametrize(
    ("options", "steps", "in_epoch"),
    [
        ({"epochs": 1}, 6, 6),
        ({"epochs": 2}, 12, 6),
        ({"epochs": 4}, 23, 6),
        ({"epochs": 2, "tail": "drop"}, 10, 5),
        ({"epochs": 2, "tail": "pad"}, 12, 6),
        ({"epochs": 1, "tail": "pad", "rank": 1, "world_size": 3, "uneven": "pad"}, 6, 6),
    ],
)
def test_the_length_is_the_number_of_batches(
    dataset: Dataset, options: dict[str, Any], steps: int, in_epoch: int
) -> None:
    loader = Loader(dataset, global_batch=4, **options)
    assert (len(loader), loader.steps_per_epoch, loader.steps_done) == (steps, in_epoch, 0)
    first = list(islice(loader, 3))
    assert loader.steps_done == 3
    after = Loader(dataset, global_batch=4, **options)
    after.load_state_dict(loader.state_dict())
    loader.close()
    assert (len(after), after.steps_done) == (steps, 3)
    assert len(first) + len(list(after)) == steps
    assert after.steps_done == steps


def test_what_has_no_end_has_no_length_and_is_true_all_the_same(dataset: Dataset) -> None:
    endless = Loader(dataset, global_batch=4)
    assert endless
    assert endless.steps_per_epoch == 6
    with pytest.raises(TypeError, match="without epochs"):
        len(endless)
    with pytest.raises(TypeError, match="no epochs"):
        _ = Loader(mixed([dataset, dataset], [1, 1]), global_batch=4).steps_per_epoch


def test_samples_that_are_skipped_are_not_counted(dataset: Dataset) -> None:
    loader = Loader(dataset, global_batch=4, epochs=1)
    loader.skip(4, 12)
    assert len(loader) == len(list(loader)) == 4


def test_tqdm_reaches_its_end_after_a_resume(dataset: Dataset) -> None:
    tqdm = pytest.importorskip("tqdm").tqdm
    before = Loader(dataset, global_batch=4, epochs=2)
    list(islice(before, 5))
    loader = Loader(dataset, global_batch=4, epochs=2)
    loader.load_state_dict(before.state_dict())
    before.close()
    with tqdm(loader, initial=loader.steps_done, file=io.StringIO()) as bar:
        assert (bar.total, bar.n) == (12, 5)
        assert sum(1 for _ in bar) == 7
        assert bar.n == 12


def test_batches_on_a_device_have_the_length_of_their_loader(dataset: Dataset) -> None:
    batches = to_device(Loader(dataset, global_batch=4, epochs=2), "cpu")
    given = iter(batches)
    assert [next(given).epoch for _ in range(4)] == [0] * 4
    assert (batches.steps_done, len(batches)) == (4, 12)
    assert len(list(batches)) == 8
    endless = to_device(Loader(dataset, global_batch=4), "cpu")
    assert endless
    with pytest.raises(TypeError, match="does not end"):
        len(endless)
    assert len(list(to_device((torch.ones(1) for _ in range(3)), "cpu"))) == 3


def test_a_bar_of_rich_has_the_right_total(dataset: Dataset) -> None:
    loader = Loader(dataset, global_batch=4, epochs=2)
    # of one that is not shown, the count ends with the first 0.1 s
    with Progress(console=Console(file=io.StringIO())) as progress:
        assert sum(1 for _ in progress.track(loader)) == 12
        (task,) = progress.tasks
        assert (task.total, task.completed) == (12, 12)


def test_a_bar_of_lightning_has_the_right_total(dataset: Dataset, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    sized_len = pytest.importorskip("lightning.fabric.utilities.data").sized_len
    assert sized_len(Loader(dataset, global_batch=4)) is None

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))
            self.seen: list[int] = []

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            self.seen.append(len(batch))
            return self.weight.square()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    model = Model()
    collated = Loader(dataset, global_batch=4, epochs=1, transform=_number, collate=torch.tensor)
    trainer.fit(model, _Batches(collated))
    assert trainer.num_training_batches == len(model.seen) == 6
    assert sum(model.seen) == 24


class _Batches:
    """The data of a loader's batches, as a trainer that knows nothing of masks takes them."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Any:
        return (batch.data for batch in self._loader)


def _number(sample: Any, context: Any) -> int:
    return int(sample["txt"])


@pytest.mark.parametrize("world", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("size", [1, 4, 8, 30])
def test_an_evaluation_counts_each_sample_once_on_any_world(
    dataset: Dataset, world: int, size: int
) -> None:
    seen: list[str] = []
    shapes = set()
    means = np.zeros(len(range(0, N, size)))
    for rank in range(world):
        loader = Loader.for_evaluation(dataset, global_batch=size, rank=rank, world_size=world)
        batches = list(loader)
        assert len(batches) == len(loader)
        shapes.add(tuple(len(batch.keys) for batch in batches))
        for number, batch in enumerate(batches):
            kept = [k for k, real in zip(batch.keys, batch.mask, strict=True) if real]
            seen += kept
            means[number] += batch.weight / world if kept else 0.0
    assert sorted(seen) == [f"{i:03d}" for i in range(N)]
    assert len(shapes) == 1
    assert means == pytest.approx(np.ones_like(means))


@pytest.mark.parametrize(
    ("option", "value"),
    [("epochs", 2), ("epochs", None), ("tail", "straddle"), ("uneven", "ragged")],
)
def test_an_evaluation_refuses_what_would_repeat_samples(
    dataset: Dataset, option: str, value: Any
) -> None:
    with pytest.raises(DataError, match=f"each sample once, by {option}="):
        Loader.for_evaluation(dataset, global_batch=4, **{option: value})
    with pytest.raises(DataError, match="another sample twice"):
        Loader.for_evaluation(dataset, global_batch=4, errors="substitute")
    with pytest.raises(DataError, match="evaluate each dataset on its own"):
        Loader.for_evaluation(mixed([dataset], [1]), global_batch=4)  # type: ignore[arg-type]


def test_the_number_of_packed_sequences_is_not_known_before(
    dataset: Dataset, tmp_path: Path
) -> None:
    from data import TokenFiles

    np.arange(2000, dtype=np.uint16).tofile(tmp_path / "t.bin")
    tokens = open_dataset(tmp_path / "t.bin", token_files=TokenFiles(block_size=64))
    packed = Loader(tokens, global_batch=2, epochs=1, pack=Packing(128))
    with pytest.raises(TypeError, match="packed sequences"):
        len(packed)
    assert sum(1 for _ in packed) > 3


@pytest.mark.parametrize("world", [1, 3])
def test_pipelines_have_the_length_of_a_pass(dataset: Dataset, world: int) -> None:
    urls = list(dataset.manifest.urls)

    def pipelines(rank: int) -> dict[str, StreamingDataset]:
        of = StreamingDataset(urls, rank=rank, world_size=world).to_tuple("__key__")
        return {
            "samples": of,
            "batches": of.batched(2),
            "whole batches": of.batched(2, partial=False),
            "split": of.batched(2).unbatched(),
            "batched again": of.batched(2).unbatched().batched(3),
            "whole again": of.batched(2).unbatched().batched(3, partial=False),
            "slice": of.slice(3, 20),
            "items": of.batched(2).with_epoch(5),
            "epochs": of.batched(2).repeat(3),
        }

    for name in pipelines(0):
        counts = []
        for rank in range(world):
            made = pipelines(rank)[name]
            assert made.pass_items() == len(WebLoader(made)) == sum(1 for _ in made), name
            counts.append(made.pass_items())
            if name in ("samples", "split", "slice"):
                with pytest.raises(TypeError, match="single samples"):
                    len(made)
            else:
                assert len(made) == counts[-1]
        if name not in ("samples", "split", "slice"):
            assert len(set(counts)) == 1, name


def test_a_pipeline_without_a_known_length_says_so(dataset: Dataset) -> None:
    of = StreamingDataset(list(dataset.manifest.urls)).to_tuple("__key__")
    for endless in (
        of.repeat(),
        of.rsample(0.5),
        WebLoader(of).select(len),
        of.repeat().batched(2),
    ):
        with pytest.raises(TypeError):
            len(endless)
        assert endless
        assert len(endless.with_length(9)) == 9


def test_a_pass_that_reaches_into_the_next_epoch_has_its_length_at_its_end(
    dataset: Dataset,
) -> None:
    urls = list(dataset.manifest.urls)
    of = StreamingDataset(urls, tail="straddle").to_tuple("__key__").batched(4)
    assert len(list(islice(of, 6))) == 6
    assert (len(of), of.steps_done) == (6, 6)


@pytest.mark.parametrize("world", [1, 2])
def test_passes_of_a_mixture_have_a_length(dataset: Dataset, world: int) -> None:
    wds = pytest.importorskip("webdataset")
    urls = list(dataset.manifest.urls)

    def loader(rank: int) -> WebLoader:
        one = wds.WebDataset(urls, shardshuffle=False).to_tuple("__key__")
        mix = from_wds(wds.RandomMix([one, one]), rank=rank, world_size=world)
        return WebLoader(mix, batch_size=2).with_epoch(5)

    for rank in range(world):
        first = loader(rank)
        assert (len(first), len(list(islice(first, 3))), first.steps_done) == (5, 3, 3)
        after = loader(rank)
        after.load_state_dict(first.state_dict())
        assert (len(after), after.steps_done, len(list(after))) == (5, 3, 2)


@pytest.mark.parametrize("stop", [0, 1, 5, 6, 12])
def test_a_pipeline_knows_its_steps_after_a_resume(dataset: Dataset, stop: int) -> None:
    urls = list(dataset.manifest.urls)

    def loader() -> WebLoader:
        return WebLoader(StreamingDataset(urls).to_tuple("__key__"), 2)

    first = loader()
    assert len(list(islice(first, stop))) == stop
    after = loader()
    after.load_state_dict(first.state_dict())
    assert (len(after), first.steps_done, after.steps_done) == (12, stop, stop)
