"""`hpckit data where` and `shuffle-report`: they say what a loader gives, and a run has seen."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpointing.store.store import Store
from data import Batch, BatchRamp, Loader, Packing, ShardWriter, mixed, open_dataset
from hpckit.cli.data.dataset_opening import OrderOverrides, open_mixture
from hpckit.cli.data.dataset_options import token_files_of
from hpckit.cli.data.step_position import SavedLoaderState, of_checkpoints
from hpckit.events.event_log import EventLog
from hpckit.trainer.batches.loaders import open_mixture as of_training
from tests.integration.checkpoint.single_process_saves import save_one
from tests.integration.cli.data_commands import (
    EACH,
    SHARDS,
    document,
    hpckit,
    refused,
    write_shards,
)
from tests.unit.checkpointing.store.tensor_checkpoints import make
from tests.unit.data.tars import write_tar
from tests.unit.hpckit.specs_and_processes import make_spec


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"))


def batches(shards: Path, batch: int, **options: Any) -> Iterator[Batch]:
    return iter(Loader(open_dataset(shards), global_batch=batch, **options))


def keys(found: Any) -> list[str]:
    return [sample["key"] for sample in found["samples"]]


def test_where_says_what_the_loader_gives(shards: Path) -> None:
    given = batches(shards, 10, seed=3, streams=4, window=2)
    order = ("--seed", 3, "--streams", 4, "--window", 2)
    for step in range(15):  # into the second epoch
        batch = next(given)
        told = document(
            "where", shards, "--position", 0, "--step", step, "--global-batch", 10, *order
        )
        assert sorted(keys(told)) == sorted(batch.keys)
        assert {s["position"]: s["key"] for s in told["samples"]} == dict(
            zip(batch.positions, batch.keys, strict=True)
        )
        assert {sample["epoch"] for sample in told["samples"]} == {step // 12}


def test_where_of_records_and_of_a_mixture_with_them(shards: Path, tmp_path: Path) -> None:
    lines = tmp_path / "text.jsonl"
    lines.write_text("".join(f'{{"n": {number}}}\n' for number in range(30)))
    batch = next(batches(lines, 10))
    told = document("where", lines, "--position", 0, "--global-batch", 10)
    assert sorted(keys(told)) == sorted(batch.keys)
    for sample in told["samples"]:
        with lines.open("rb") as file:
            file.seek(sample["offset"])
            assert json.loads(file.read(sample["bytes"]))["n"] == int(sample["key"])
    datasets = [open_dataset(lines), open_dataset(shards)]
    loader = Loader(mixed(datasets, [1, 1], names=["l", "s"]), global_batch=8)
    given, state = iter(loader), json.dumps(loader.state_dict())
    of = (f"l={lines}", f"s={shards}", "--state", state, "--global-batch", 8)
    assert sorted(keys(document("where", *of))) == sorted(next(given).keys)
    table = hpckit("where", *of).stdout
    shown = {(s["source"], s["shard"]) for s in document("where", *of)["samples"]}
    assert f"from {len(shown)} shards" in table


def test_where_of_a_rank_and_of_all(shards: Path) -> None:
    ranks = [next(batches(shards, 10, rank=r, world_size=3, uneven="ragged")) for r in range(3)]
    common = ("where", shards, "--position", 0, "--global-batch", 10, "--world", 3)
    told = document(*common, "--uneven", "ragged")
    for number, batch in enumerate(ranks):
        assert keys(document(*common, "--uneven", "ragged", "--rank", number)) == [
            s["key"] for s in told["samples"] if s["rank"] == number
        ]
        assert sorted(batch.keys) == sorted(
            s["key"] for s in told["samples"] if s["rank"] == number
        )
    refused(*common, says="cannot be shared evenly by 3 ranks")
    refused(*common, "--rank", 3, says="--rank 3 needs a --world of more")
    repeats = document(*common, "--uneven", "pad")["samples"]
    assert (len(repeats), sum(sample["repeat"] for sample in repeats)) == (12, 2)


@pytest.mark.parametrize("tail", ["straddle", "drop", "pad"])
def test_where_at_the_end_of_an_epoch(shards: Path, tail: Any) -> None:
    given = batches(shards, 50, tail=tail)
    for step in range(6):
        batch = next(given)
        told = document(
            *("where", shards, "--position", 0, "--step", step),
            *("--global-batch", 50, "--tail", tail),
        )
        assert sorted(keys(told)) == sorted(batch.keys)
        assert sum(s["repeat"] for s in told["samples"]) == int((~batch.mask).sum())


def test_where_tells_the_place_of_each_sample(shards: Path) -> None:
    for sample in document("where", shards, "--position", 7, "--global-batch", 5)["samples"]:
        with Path(sample["url"]).open("rb") as file:
            file.seek(sample["offset"])
            header = file.read(sample["bytes"])
        assert header.startswith(f"{sample['key']}.bin".encode())
    table = hpckit("where", shards, "--position", 0, "--global-batch", 30, "--most", 5).stdout
    assert "and 25 more" in table
    assert "30 samples of epoch 1, " in table, "as reports of a run count"
    for batch, epochs in ((130, "1 and 2"), (400, "1 to 4")):
        several = hpckit("where", shards, "--position", 0, "--global-batch", batch).stdout
        assert f"{batch} samples of epochs {epochs}, " in several


def test_where_of_a_state(tmp_path: Path, shards: Path) -> None:
    loader = Loader(open_dataset(shards), global_batch=8, seed=5, streams=3, window=1)
    given = iter(loader)
    for _ in range(4):
        next(given)
    state = json.dumps(loader.state_dict())
    following = [next(given) for _ in range(3)]
    file = tmp_path / "state.json"
    file.write_text(json.dumps({"step": 4, "parts": [{"loader": json.loads(state)}]}))
    for source in (state, file):
        for later, batch in enumerate(following):
            told = document(
                "where", shards, "--state", source, "--step", later, "--global-batch", 8
            )
            assert sorted(keys(told)) == sorted(batch.keys)
    natural = Loader(open_dataset(shards), global_batch=8, shuffle=False).state_dict()
    told = document("where", shards, "--state", json.dumps(natural), "--global-batch", 3)
    assert keys(told) == ["000", "001", "002"]


def test_states_that_are_none(tmp_path: Path, shards: Path) -> None:
    state = Loader(open_dataset(shards), global_batch=8).state_dict()
    for wrong, says in (
        ("{", "not JSON"),
        ("{}", "found none"),
        (json.dumps([state, state]), "--state: "),  # a list looks like a file's name
        (json.dumps({"a": state, "b": state}), "2 states of loaders: /a, /b"),
        (tmp_path / "none.json", "No such file"),
        (json.dumps({**state, "position": -1}), "position is -1"),
        (json.dumps({**state, "position": "x"}), "position is 'x'"),
        (json.dumps({**state, "seed": 1.5}), "seed is 1.5"),
        (json.dumps({**state, "streams": 10**9}), "streams must be in"),
        (json.dumps({**state, "order": "mix-1"}), "each of its sources as NAME=SHARDS"),
        (json.dumps({**state, "fingerprint": "0"}), "another stream of samples"),
    ):
        refused("where", shards, "--state", wrong, "--global-batch", 8, says=says)
    told = ("where", shards, "--state", json.dumps(state))
    refused(*told, says="--global-batch is required")
    refused(*told, "--global-batch", 8, "--seed", 7, says="the state has 0")
    refused(*told, "--global-batch", 8, "--position", 7, says="one of --run")
    refused("where", shards, "--global-batch", 8, says="one of --run")
    refused("where", tmp_path / "none", "--global-batch", 8, "--position", 0, says="no shards")
    refused("where", shards, "--position", 0, "--global-batch", 8, "--tail", "x", says="tail must")


def test_where_of_a_mixture_names_the_source_of_each_sample(shards: Path, tmp_path: Path) -> None:
    more = tmp_path / "more"
    with ShardWriter(more / "s-%03d.tar", max_samples=9) as writer:
        for number in range(20):
            writer.write({"__key__": f"b{number}", "txt": b"x"})
    datasets = [open_dataset(place) for place in (shards, more)]
    stages = [(16, [1, 0])]
    stream = mixed(datasets[::-1], [1, 2], stages=stages, names=["b", "a"], seed=4, window=2)
    loader = Loader(stream, global_batch=8)
    given = iter(loader)
    next(given)
    state = json.dumps(loader.state_dict())
    common = ("--state", state, "--window", 2, "--global-batch", 8)
    for step in range(3):
        batch = next(given)
        told = document("where", f"a={shards}", f"b={more}", *common, "--step", step)
        names = ["ba"[number] for number in batch.datasets]
        assert {s["position"]: (s["source"], s["key"]) for s in told["samples"]} == {
            position: (name, key)
            for position, name, key in zip(batch.positions, names, batch.keys, strict=True)
        }
    refused("where", f"a={shards}", *common, says="another stream of samples")


def test_a_mixture_is_opened_with_the_options_of_its_run(tmp_path: Path) -> None:
    for name, tokens in (("a", "uint16"), ("b", "uint32")):
        np.arange(1, 400, dtype=tokens).tofile(tmp_path / f"{name}.bin")
    places = {name: str(tmp_path / f"{name}.bin") for name in "ab"}
    sources = {name: {"shards": place, "weight": 1.0} for name, place in places.items()}
    sources["b"]["dtype"] = "uint32"
    order = {"data.streams": 4, "data.window": 2, "data.remix_every": 1}
    spec = make_spec({"data.mixture.sources": sources, **order}, data="mixture")
    state = Loader(of_training(spec), global_batch=4).state_dict()
    given = [f"{name}={place}" for name, place in places.items()]
    stream = open_mixture(given, state, OrderOverrides(), token_files_of(*[None] * 4), spec)
    assert stream.identity == {name: state[name] for name in stream.identity}


def test_where_of_a_run_by_its_checkpoints(folder: Path, shards: Path) -> None:
    loader = Loader(open_dataset(shards), global_batch=8, seed=5)
    given, seen = iter(loader), {}
    for step in range(1, 10):
        seen[step] = next(given)
        if step in (3, 7):
            save_one(folder / "store", step, {"loader": loader, "run": {"step": step}})
    place = ("where", shards, "--run", folder / "store")
    for step in range(4, 8):  # the checkpoints on both sides say how large a step is
        told = document(*place, "--step", step)
        assert (told["step"], told["global_batch"]) == (step, 8)
        assert sorted(keys(told)) == sorted(seen[step].keys)
    refused(*place, "--step", 2, says="give it with --global-batch")
    refused(*place, "--step", 0, says="numbered from 1")
    refused(*place, says="the number of samples of step 8 is unknown")
    for step, more in ((2, ("--step", 2)), (9, ("--step", 9)), (8, ())):
        told = document(*place, *more, "--global-batch", 8)
        assert sorted(keys(told)) == sorted(seen[step].keys)


def test_where_of_a_run_by_its_events(tmp_path: Path, shards: Path) -> None:
    """Its batches grew at step 4, and it fell back from 9 to 6: the last life counts."""
    run = tmp_path / "run"
    (run / "submissions").mkdir(parents=True)
    state = Loader(open_dataset(shards), global_batch=8, seed=5).state_dict()
    store = Store.open(run / "checkpoints", create=True)
    make(store, 6, {}, {"loader": {**state, "position": 44}}, run="run")
    with EventLog(run / "events.jsonl", attempt=0, rank=0) as events:
        for generation, (step, position, batch) in enumerate(((0, 0, 8), (4, 32, 6), (6, 44, 10))):
            events.emit_kind(
                "training_started",
                **{"generation": generation, "step": step, "position": position},
                **{"global_batch": batch, "world_size": 2, "samples": 120, "restore_s": 0.1},
            )
    for step, position, batch in ((1, 0, 8), (4, 24, 8), (5, 32, 6), (6, 38, 6), (9, 64, 10)):
        told = document("where", shards, "--run", run, "--step", step)
        assert told["global_batch"] == batch
        positions = [sample["position"] for sample in told["samples"]]
        assert positions == list(range(position, position + batch))
    assert document("where", shards, "--run", run)["step"] == 7


def test_where_between_checkpoints_of_which_the_later_one_is_of_a_changed_stream(
    tmp_path: Path,
) -> None:
    """After the earlier checkpoint, the dataset has grown, or a mixture with a growing batch has
    got other weights: the checkpoints alone say it."""
    ramp = BatchRamp(start=2, increment=1, samples=20, size=5)

    def grown(counts: list[int]) -> Loader:
        folder = tmp_path / "grown"
        folder.mkdir(exist_ok=True)
        for shard, count in enumerate(counts):
            files = [(f"{shard}-{n:02d}.txt", b"text") for n in range(count)]
            write_tar(folder / f"s-{shard}.tar", files)
        return Loader(open_dataset(folder), global_batch=4, grow="next_epoch", streams=2)

    def weighted(weights: list[int]) -> Loader:
        sets = [open_dataset(shards_of(tmp_path / name)) for name in "ab"]
        stream = mixed(sets, weights, names=list("ab"), block=8)
        return Loader(stream, global_batch=5, batch_ramp=ramp)

    sources = [f"{name}={tmp_path / name}" for name in "ab"]
    cases: tuple[tuple[str, list[str], Callable[[], Loader], Callable[[], Loader]], ...] = (
        ("g", [str(tmp_path / "grown")], lambda: grown([10, 10]), lambda: grown([10, 10, 7])),
        ("m", sources, lambda: weighted([1, 1]), lambda: weighted([3, 1])),
    )
    for name, given, before, after in cases:
        first, seen = before(), {}
        for step, batch in enumerate(islice(first, 3), 1):
            seen[step] = sorted(batch.keys)
        save_one(tmp_path / name, 3, {"loader": first, "run": {"step": 3}})
        second = after()
        second.load_state_dict(first.state_dict())
        for step, batch in enumerate(islice(second, 6), 4):
            seen[step] = sorted(batch.keys)
        save_one(tmp_path / name, 9, {"loader": second, "run": {"step": 9}})
        for step in range(4, 10):
            told = document("where", *given, "--run", tmp_path / name, "--step", step)
            assert sorted(keys(told)) == seen[step], (name, step)


def shards_of(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    write_tar(folder / "s.tar", [(f"{folder.name}{n:02d}.txt", b"text") for n in range(15)])
    return folder


def test_where_of_a_mixture_of_many_sources_that_is_assigned_again(tmp_path: Path) -> None:
    """It has more sources than a block has samples, some of them paused, and `remix_every`, which
    the state has not."""
    names = list("abcde")
    given = [f"{name}={shards_of(tmp_path / name)}" for name in names]
    sets = [open_dataset(tmp_path / name) for name in names]
    stream = mixed(sets, [1, 1, 0, 0, 0], names=names, block=4, remix_every=1)
    loader = Loader(stream, global_batch=4)
    list(islice(loader, 20))
    state = ("--state", json.dumps(loader.state_dict()), "--global-batch", 4)
    refused("where", *given, *state, says="remix_every may differ")
    told = document("where", *given, *state, "--remix-every", 1)
    assert sorted(keys(told)) == sorted(next(iter(loader)).keys)
    alone = Loader(sets[0], global_batch=4).state_dict()
    common = ("where", tmp_path / "a", "--state", json.dumps(alone), "--global-batch", 4)
    refused(*common, "--remix-every", 2, says="but the state has 0")


def test_a_run_without_a_loader(folder: Path, shards: Path) -> None:
    store = Store.open(folder / "store", create=True)
    refused("where", shards, "--run", folder / "store", says="without checkpoints")
    make(store, 1, {}, {"other": {"a": 1}})
    refused("where", shards, "--run", folder / "store", says="found none")
    refused("where", shards, "--run", folder / "none", says="no checkpoint store")


def test_checkpoints_between_which_batches_changed() -> None:
    saved = [SavedLoaderState(10, {"position": 101}), SavedLoaderState(4, {"position": 40})]
    assert of_checkpoints(saved, 7, None) is None  # 61 samples in 6 steps
    found = of_checkpoints(saved, 7, 8)
    assert found is not None
    assert (found.position, found.batch) == (56, 8)
    assert of_checkpoints([], 7, 8) is None


def test_shuffle_report(shards: Path) -> None:
    good = document("shuffle-report", shards, "--batch", 40)
    assert good["shards_per_batch_ratio"] == pytest.approx(1, abs=0.1)
    assert (good["live_shards"], good["samples"]) == (SHARDS, SHARDS * EACH)
    poor = document("shuffle-report", shards, "--batch", 40, "--streams", 1, "--window", 1)
    assert poor["shards_per_batch"] < 4
    assert poor["live_bytes"] == max(p.stat().st_size for p in shards.glob("*.tar"))
    told = hpckit("shuffle-report", shards, "--batch", 40, "--streams", 1, "--window", 1).stdout
    assert "too few shards" in told
    assert "as good as a full shuffle" in hpckit("shuffle-report", shards).stdout
    refused("shuffle-report", shards, "--batch", 10**6, says="batch must be in 2..120")
    refused("shuffle-report", shards / "none", says="no shards")


def test_where_of_packed_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_documents(tmp_path)
    loader = Loader(
        open_dataset(tmp_path), global_batch=4, rank=1, world_size=2, pack=Packing(16, pad=255)
    )
    state = loader.state_dict()
    *_, batch = islice(loader, 3)
    common = ("where", tmp_path, "--state", json.dumps(state), "--global-batch", 4, "--step", 2)
    told = document(*common, "--world", 2, "--rank", 1)["samples"]
    for sequence, line in enumerate(batch.data.tokens.tolist()):
        mine = [one for one in told if one["sequence"] == sequence]
        spread = [int(s["key"]) for s in mine for _ in range(*s["tokens"])]
        assert spread == [token for token in line if token != 255]
    monkeypatch.setenv("COLUMNS", "300")
    header, *_ = hpckit(*common, "--world", 2).stdout.splitlines()
    assert header.split()[:4] == ["position", "rank", "sequence", "tokens"]
    broken = json.dumps({**state, "pack": "pack-0 length=3"})
    refused("where", tmp_path, "--state", broken, "--global-batch", 4, says="not pack-1")


def write_documents(folder: Path) -> None:
    """Documents of which each has its number as all of its tokens."""
    with ShardWriter(folder / "s-%03d.tar", max_samples=20, tokens="bin:uint8") as writer:
        for number in range(60):
            content = bytes([number] * (1 + 7 * number % 30))
            writer.write({"__key__": str(number), "bin": content})


def test_what_the_loader_leaves_out_is_not_of_a_step_and_is_listed(shards: Path) -> None:
    every = [key for batch in islice(batches(shards, 1, seed=3), 120) for key in batch.keys]
    loader = Loader(open_dataset(shards), global_batch=10, seed=3)
    loader.skip(20, 27)
    loader.skip(40, 42)
    state = json.dumps(loader.state_dict())
    for step, batch in enumerate(islice(loader, 5)):
        told = document("where", shards, "--state", state, "--global-batch", 10, "--step", step)
        assert sorted(keys(told)) == sorted(batch.keys)
    left_out = ("where", shards, "--state", state, "--skipped")
    assert keys(document(*left_out)) == [*every[20:27], *every[40:42]]
    assert "the loader leaves out 9 samples" in hpckit(*left_out).stdout
    refused("where", shards, "--position", 3, "--skipped", says="--skipped needs --run PLACE or")


def test_steps_of_a_later_epoch_are_found_without_what_was_left_out_before(shards: Path) -> None:
    ramp = BatchRamp(10, 10, 200, 40)
    loader = Loader(open_dataset(shards), global_batch=40, batch_ramp=ramp, seed=3)
    loader.skip(20, 27)
    given = iter(loader)
    for _ in range(8):  # into the second epoch, in which the samples have other positions
        next(given)
    state = loader.state_dict()
    for step, batch in enumerate(islice(given, 3)):
        told = document("where", shards, "--state", json.dumps(state), "--step", step)
        assert sorted(keys(told)) == sorted(batch.keys)


def test_sequences_that_are_left_out_are_listed_with_their_documents(tmp_path: Path) -> None:
    write_documents(tmp_path)
    of_each: dict[str, Any] = {"global_batch": 1, "pack": Packing(16, pad=255)}
    first = Loader(open_dataset(tmp_path), **of_each)
    given = iter(first)
    next(given)
    begin = first.state_dict()["position"]
    missing = list(islice(given, 3))
    cured = Loader(open_dataset(tmp_path), **of_each)
    cured.skip(begin, first.state_dict()["position"])
    told = document("where", tmp_path, "--state", json.dumps(cured.state_dict()), "--skipped")
    spread = [
        [int(one["key"]) for one in told["samples"] if one["position"] in batch.positions]
        for batch in missing
    ]
    assert spread == [[int(key) for key in batch.keys] for batch in missing]
