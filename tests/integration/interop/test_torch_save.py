"""Files of torch.save come in and go out as they were, and nothing in a hostile one is run."""

from __future__ import annotations

import os
import pickle
import random
import struct
import subprocess
import sys
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from checkpointing import Checkpointer, CheckpointError, DamagedError, FormatError, Store
from checkpointing.interop.dcp import export_dcp
from checkpointing.interop.piece_import import save_pieces
from checkpointing.interop.torch_save.file_export import export_torch
from checkpointing.interop.torch_save.file_import import import_torch
from checkpointing.store.catalog import newest_first
from checkpointing.store.checkpoint import Checkpoint
from tests.effort import times
from tests.integration.interop.interop_checkpoints import bits, described, opened, piece
from tests.integration.interop.test_hostile_dcp import Evil, Exploit
from tests.unit.checkpointing.state.test_optimizer_state import Program


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


def assert_same(found: Any, wanted: Any, at: str = "it") -> None:
    """In structure, types and bits."""
    if isinstance(wanted, Tensor):
        assert type(found) is Tensor, at
        assert described(found) == described(wanted.resolve_conj().resolve_neg()), at
        return
    assert type(found) is type(wanted), at
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), at
        if type(wanted) is OrderedDict:
            assert (list(found), vars(found)) == (list(wanted), vars(wanted)), at
        for key in wanted:
            assert_same(found[key], wanted[key], f"{at}/{key}")
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted), at
        for place, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
            assert_same(mine, theirs, f"{at}/{place}")
    else:
        assert repr(found) == repr(wanted), at


def there_and_back(thing: Any, folder: Path, item: str | None = None, **options: Any) -> Any:
    """What torch.load makes of the export of an import of what torch.save wrote."""
    folder.mkdir(exist_ok=True)
    for path in (folder / "in.pt", folder / "out.pt"):
        path.unlink(missing_ok=True)
    torch.save(thing, folder / "in.pt", **options)
    with closing(Store.open(folder / "store", create=True)) as store:
        save = import_torch(folder / "in.pt", store, "run", 1, item=item)
        export_torch(opened(store, save), folder / "out.pt")
    return torch.load(folder / "out.pt", weights_only=True)


def every_dtype() -> dict[str, Tensor]:
    names = ["float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"]
    names += ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"]
    names += ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]
    names += ["float8_e8m0fnu"]
    raw = [bits(name, (3, 5), place) for place, name in enumerate(names)]
    return {
        name: torch.frombuffer(bytearray(data.tobytes()), dtype=getattr(torch, name)).reshape(3, 5)
        for name, data in zip(names, raw, strict=True)
    }


def views() -> dict[str, Any]:
    x = torch.randn(300, 500)
    c = torch.randn(7, 5, dtype=torch.complex64)
    return {
        "shared": [x, x[10:], (x.T, x[::3, 5:400:7]), x[3, 4]],
        "large": torch.randn(2000, 1100).T,
        "channels": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "expanded": torch.randn(1, 3).expand(400, 3),
        "lazy": [c.conj(), c.clone().conj().imag, c.T.conj(), c.conj()[1:, ::2]],
        "empty": [torch.empty(0, 3), torch.empty(3, 0).T, torch.tensor(5)],
    }


def test_tensors_of_every_kind_come_back_with_their_bits(tmp_path: Path) -> None:
    torch.manual_seed(1)
    state = {"dtypes": every_dtype(), "views": views(), "large": torch.randn(3000, 2000)}
    assert_same(there_and_back(state, tmp_path), state)
    held = {"a": nn.Parameter(torch.ones(3)), "b": nn.Buffer(torch.zeros(2)), "n": 1}
    assert_same(there_and_back(held, tmp_path), {"a": torch.ones(3), "b": torch.zeros(2), "n": 1})
    arrays: dict[str, Any] = {
        "u4": np.arange(5, dtype=np.uint32),
        "f": np.asfortranarray(np.eye(3)),
        "n": 1,
    }
    arrays |= {
        "big": np.arange(4, dtype=">i2"),
        "c": np.array([1j], np.complex64),
        "zero": np.array(2.5),
    }
    found = there_and_back(arrays, tmp_path)
    for name in ("u4", "f", "big", "c", "zero"):
        assert np.array_equal(found[name].numpy(), arrays[name])


PLAIN = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.text(max_size=4),
        st.sampled_from([torch.ones(2), torch.zeros(3, 2).T, torch.tensor(4)]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.dictionaries(st.text(max_size=3), inner, max_size=3).map(OrderedDict),
        st.dictionaries(st.integers(-3, 3), inner, max_size=3),
    ),
    max_leaves=12,
)


@settings(
    max_examples=times(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(PLAIN, st.sampled_from([2, 4, 5]))
def test_any_structure_comes_back(tmp_path: Path, thing: Any, protocol: int) -> None:
    found = there_and_back(thing, tmp_path, "it", pickle_protocol=protocol)
    assert_same(found, {"it": thing})


def test_keys_that_are_one_as_text_are_refused_only_where_tensors_are(tmp_path: Path) -> None:
    values = {"a": {1: 2, "1": 3}, "b": Counter("aab"), "c": {(1, None): {True: 1}}}
    assert_same(there_and_back(values, tmp_path), values)
    with pytest.raises(FormatError, match="two entries would both be named 'a/1'"):
        there_and_back({"a": {1: torch.ones(1), "1": 3}, "b": 1}, tmp_path)


# --- files as programs write them ---------------------------------------------------------------


def trained() -> tuple[nn.Module, AdamW]:
    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = AdamW(module.parameters(), lr=0.1)
    module(torch.randn(8, 4)).square().sum().backward()
    optimizer.step()
    return module, optimizer


def files() -> dict[str, Any]:
    module, optimizer = trained()
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    nanogpt = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": 7}
    nanogpt |= {"model_args": {"n_layer": 2, "bias": False}, "best_val_loss": torch.tensor(2.5)}
    numbers = ("MT19937", torch.arange(624), 624, 0, 0.0)
    generators = {"python": random.getstate(), "numpy": numbers, "cpu": torch.get_rng_state()}
    lightning = {
        "epoch": 1,
        "state_dict": module.state_dict(),
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 1}}}},
        "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_score": torch.tensor(0.5)}},
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [scheduler.state_dict()],
        "hyper_parameters": {"lr": 0.1, "layers": [4, 2]},
    }
    return {
        "model": module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "nanogpt": nanogpt,
        "generators": generators,
        "lightning": lightning,
    }


@pytest.mark.parametrize("name", ["optimizer", "scheduler", "nanogpt", "generators", "lightning"])
def test_files_of_known_programs_come_back(tmp_path: Path, name: str) -> None:
    held = files()[name]
    assert_same(there_and_back(held, tmp_path), held)
    assert_same(there_and_back(held, tmp_path / "whole", "all"), {"all": held})


def test_the_state_of_a_module_alone_is_its_model(store: Store, tmp_path: Path) -> None:
    module, _ = trained()
    torch.save(module.state_dict(), tmp_path / "pytorch_model.bin")
    import_torch(tmp_path / "pytorch_model.bin", store, "run", 3)
    live, _ = trained()
    for parameter in live.parameters():
        nn.init.zeros_(parameter)
    with closing(Checkpointer(tmp_path / "store", run="run")) as checkpointer:
        assert checkpointer.restore({"model": live}) == 3
    assert_same(live.state_dict(), module.state_dict())


def test_an_import_says_what_it_was_made_of(store: Store, tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "in.pt")
    save = import_torch(tmp_path / "in.pt", store, "run", 1)
    assert opened(store, save).header.source == f"{tmp_path}/in.pt (torch.save)"


def test_a_dcp_folder_of_an_import_has_its_lists(store: Store, tmp_path: Path) -> None:
    from tests.integration.interop.test_structure import converted, of_torch

    state = {"a": {0: torch.ones(1), 1: torch.zeros(1)}, "b": [torch.ones(2), {"c": [1]}], "n": 1}
    of_torch(state, tmp_path / "torch")
    torch.save(state, tmp_path / "all.pt")
    export_dcp(opened(store, import_torch(tmp_path / "all.pt", store, "r", 1)), tmp_path / "dcp")
    assert_same(converted(tmp_path / "dcp"), converted(tmp_path / "torch"))


# --- what is refused, and what is hostile -------------------------------------------------------


class Own:
    """A class of a program."""


def own_tensor() -> Tensor:
    tensor = nn.Parameter(torch.ones(2))
    tensor.sharded = True  # type: ignore[attr-defined]
    return tensor


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "object": (Own, r"'a/x' is an object of .*\.Own, which is neither a tensor nor a plain value"),
    "class": (lambda: Own, r"'a/x' is .*\.Own, which is neither"),
    "path": (lambda: Path("x"), r"'a/x' is an object of pathlib\.\w+, which is neither"),
    "sparse": (lambda: torch.eye(3).to_sparse(), "'a/x' is a sparse tensor: save tensor.to_dense"),
    "csr": (lambda: torch.eye(3).to_sparse_csr(), "'a/x' is a sparse tensor"),
    "quantized": (
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        "'a/x' is a quantized tensor",
    ),
    "meta": (lambda: torch.empty(2, device="meta"), "'a/x' is a tensor on the meta device"),
    "attributes": (own_tensor, r"'a/x' is a tensor with attributes \(sharded\)"),
    "texts": (lambda: np.array(["a"]), "'a/x' is numpy's of dtype"),
    "objects": (lambda: np.array([None]), "'a/x' is an array of objects"),
    "masked": (lambda: np.ma.ones(2), r"'a/x' is an object of numpy\.ma"),
    "storage": (lambda: torch.ones(2).untyped_storage(), "'a/x' is a bare storage"),
    "number": (lambda: 10**5000, "'a/x' is an integer of"),
    "expanded": (
        lambda: torch.ones(1).expand(1 << 31),
        "more than 64 times the file's: .* such as 'a/x'",
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_kept_is_refused_by_name(store: Store, tmp_path: Path, name: str) -> None:
    make, says = REFUSED[name]
    torch.save({"a": {"x": make(), "w": torch.ones(2)}}, tmp_path / "in.pt")
    with pytest.raises(FormatError, match=says):
        import_torch(tmp_path / "in.pt", store, "run", 1)
    assert_nothing_saved(store)


def assert_nothing_saved(store: Store) -> None:
    assert [entry.key for entry in store.storage.list("")] == ["hpckit.json"]


def test_roots_that_are_no_items_want_a_name(store: Store, tmp_path: Path) -> None:
    for thing in ([torch.ones(1)], {1: torch.ones(1), "a": 2}, torch.ones(2), 5):
        torch.save(thing, tmp_path / "in.pt")
        with pytest.raises(FormatError, match=r"give the item of the checkpoint that it becomes"):
            import_torch(tmp_path / "in.pt", store, "run", 1)
        assert_same(there_and_back(thing, tmp_path / "named", "it"), {"it": thing})
    for item in ("", "a/b"):
        with pytest.raises(ValueError, match="a name without '/'"):
            import_torch(tmp_path / "in.pt", store, "run", 1, item=item)
    assert_nothing_saved(store)


def test_a_hostile_file_runs_nothing(store: Store, tmp_path: Path) -> None:
    path, canary = tmp_path / "in.pt", tmp_path / "canary"
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        for thing in (Exploit(canary), {"a": [Exploit(canary)]}, {Exploit(canary): 1}, Evil()):
            torch.save({"m": thing, "w": torch.ones(1)}, path, pickle_protocol=protocol)
            with pytest.raises(FormatError, match=r"(mkdir|eval), which is .*nothing in it was"):
                import_torch(path, store, "run", 1)
    assert not canary.exists()
    assert_nothing_saved(store)


def with_pickle(path: Path, program: bytes, **records: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", program)
        for name, data in records.items():
            archive.writestr(f"a/{name.replace('_', '/')}", data)
    return path


def doubled(times: int) -> bytes:
    """A list that holds the one before it twice, so often."""
    program = b"\x80\x02]q\x00"
    for _ in range(times):
        program += b"0](h\x00h\x00eq\x00"
    return program + b"."


STORAGE = (
    b"(X\x07\x00\x00\x00storageq\x01ctorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu"
)


def tensor(count: bytes, offset: bytes, size: bytes, strides: bytes) -> bytes:
    arguments = offset + size + strides + b"\x89N"
    storage = STORAGE + count + b"tQ"
    return (
        b"\x80\x02}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n("
        + storage
        + (arguments + b"tRs.")
    )


PROGRAMS = [
    (doubled(100), "more objects than its size allows"),
    (b"\x80\x02]q\x00h\x00a.", "more than 200 levels of containers, or holds itself"),
    (b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b".", "than 200 levels of containers"),
    (b"\x80\x02}" + b")" + b"\x85" * 100_000 + b"Ns.", "a key of more than 8 levels"),
    (b"\x80\x04\x8f(" + b")" + b"\x85" * 100_000 + b"\x90.", "a key of more than 8 levels"),
    (b"", "not a complete pickle"),
    (b"\x80\x02}", "not a complete pickle|no end"),
    (b"\x80\x02\x8a\xff.", "not a complete pickle"),
    (b"cos\nsystem\n(S'true'\ntR.", "instruction STRING is not allowed"),
    (b"cos\nsystem\n(X\x04\x00\x00\x00truetR.", "object of os.system, which is neither"),
    (b"\x80\x02cbuiltins\ngetattr\n(cos\nX\nNtR)R.", "object of builtins.getattr"),
    (tensor(b"K\x04", b"K\x00", b"K\x05\x85", b"K\x01\x85"), "ends beyond the 16 bytes"),
    (tensor(b"K\x04", b"K\x01", b"K\x04\x85", b"K\x01\x85"), "ends beyond the 16 bytes"),
    (tensor(b"K\x04", b"K\x00", b"K\x02\x85", b"K\x04\x85"), "ends beyond the 16 bytes"),
    (tensor(b"K\x04", b"J\xff\xff\xff\xff", b"K\x01\x85", b"K\x01\x85"), "whole numbers"),
    (tensor(b"K\x04", b"K\x02", b"K\x02\x85", b"J\xff\xff\xff\xff\x85"), "whole numbers"),
    (tensor(b"K\x04", b"K\x00", b"K\x01\x85", b")"), "with strides"),
    (tensor(b"K\x05", b"K\x00", b"K\x01\x85", b"K\x01\x85"), "storage of 20 bytes"),
]


@pytest.mark.parametrize(("program", "says"), PROGRAMS, ids=range(len(PROGRAMS)))
def test_programs_of_pickles_are_data(
    store: Store, tmp_path: Path, program: bytes, says: str
) -> None:
    with_pickle(tmp_path / "in.pt", program, data_0=bytes(16))
    with pytest.raises(CheckpointError, match=says):
        import_torch(tmp_path / "in.pt", store, "run", 1)
    assert_nothing_saved(store)


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _no_start(data: bytes) -> bytes:
    return data[100:]


def _flipped(data: bytes) -> bytes:
    at = data.index(struct.pack("<f", 1.5))
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _deflated(data: bytes) -> bytes:
    path = Path(os.environ["SCRATCH_OF_TEST"])
    path.write_bytes(data)
    with zipfile.ZipFile(path) as archive:
        found = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in found.items():
            archive.writestr(name, content)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("harm", "kind", "says"),
    [
        (_cut, DamagedError, "is cut off, or not a zip file"),
        (_no_start, FormatError, "does not begin like a zip file"),
        (_flipped, DamagedError, "the checksum of 'data/0' does not match"),
        (_deflated, FormatError, "is compressed or encrypted"),
        (lambda data: b"", FormatError, "does not begin like a zip file"),
        (lambda data: b"PK" + bytes(50), DamagedError, "not a zip file"),
    ],
)
def test_files_that_are_not_whole_are_refused(
    store: Store,
    tmp_path: Path,
    harm: Callable[[bytes], bytes],
    kind: type[Exception],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SCRATCH_OF_TEST", str(tmp_path / "scratch"))
    path = tmp_path / "in.pt"
    torch.save({"a": torch.full((300,), 1.5), "n": 1}, path)
    path.write_bytes(harm(path.read_bytes()))
    with pytest.raises(kind, match=says):
        import_torch(path, store, "run", 1)
    assert_nothing_saved(store)


def test_files_of_another_kind_are_refused_with_advice(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "in.pt"
    torch.save({"a": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(FormatError, match=r"before 1.6, or .*load it with torch\.load"):
        import_torch(path, store, "run", 1)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/b", b"c")
    with pytest.raises(FormatError, match=r"not one of torch\.save: it has no data\.pkl"):
        import_torch(path, store, "run", 1)
    with_pickle(path, pickle.dumps({"a": 1}, 2), byteorder=b"big")
    with pytest.raises(FormatError, match="another byte order"):
        import_torch(path, store, "run", 1)
    assert_nothing_saved(store)


def test_a_file_whose_checksums_were_left_out_is_read(tmp_path: Path) -> None:
    held = {"w": torch.randn(5), "n": 1}
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(held, tmp_path / "plain.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    with closing(Store.open(tmp_path / "store", create=True)) as store:
        save = import_torch(tmp_path / "plain.pt", store, "run", 1)
        export_torch(opened(store, save), tmp_path / "out.pt")
    assert_same(torch.load(tmp_path / "out.pt", weights_only=True), held)


IMPORT = """
import resource, sys
from pathlib import Path
from checkpointing import Store
from checkpointing.interop.torch_save.file_import import import_torch
store = Store.open(sys.argv[2], create=True)
import_torch(Path(sys.argv[1]), store, "warm", 1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
import_torch(Path(sys.argv[3]), store, "run", 1)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10, "torch" in sys.modules)
"""


def test_a_large_file_takes_bounded_memory_and_no_torch(tmp_path: Path) -> None:
    for name, rows in (("small", 10_000), ("large", 30_000)):
        torch.save({"a": torch.randn(rows, 1_000), "n": 1}, tmp_path / f"{name}.pt")
    arguments = [tmp_path / "small.pt", tmp_path / "store", tmp_path / "large.pt"]
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, *map(str, arguments)], check=True, stdout=subprocess.PIPE
    )
    more, has_torch = done.stdout.split()
    assert has_torch == b"False"
    assert int(more) < 38  # MiB, of the 76 that the file has more than the smaller one


# --- exports ------------------------------------------------------------------------------------


def saved(folder: Path, step: int, state: dict[str, Any]) -> Checkpoint:
    with closing(Checkpointer(folder, run="run")) as checkpointer:
        checkpointer.save(step, state)
        checkpointer.wait()
    store = Store.open(folder)
    return Checkpoint(store, newest_first(store, "run")[0].stored)


def as_saved(state: dict[str, Any], path: Path) -> Any:
    """What torch.load makes of what torch.save wrote of the state dicts."""
    torch.save({name: held.state_dict() for name, held in state.items()}, path)
    found = torch.load(path, weights_only=True)
    return {name: dict(held) for name, held in found.items()}


def test_any_program_is_exported_as_its_state_dicts(tmp_path: Path) -> None:
    wanted = {}
    with closing(Checkpointer(tmp_path / "store", run="run")) as checkpointer:
        for seed in range(times(25)):
            program = Program(seed)
            program.train(program.steps)
            program.freeze()
            checkpointer.save(seed, program.state)
            checkpointer.wait()
            wanted[seed] = as_saved(program.state, tmp_path / "wanted.pt")
    with closing(Store.open(tmp_path / "store")) as store:
        for found in newest_first(store, "run"):
            seed, path = found.stored.save.step, tmp_path / f"{found.stored.save.step}.pt"
            export_torch(Checkpoint(store, found.stored), path)
            made = torch.load(path, weights_only=True)
            assert_same(made, wanted.pop(seed), f"seed {seed}")
            live = Program(seed)
            for name, held in live.state.items():
                held.load_state_dict(made[name])
            assert_same(as_saved(live.state, tmp_path / "live.pt"), made, f"seed {seed}")
    assert not wanted


class Listing(SGD):
    """An optimizer with containers of tensors in its state."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                mine = {"list": [torch.ones(1), 2], "dict": {0: torch.zeros(2), "k": (1,)}}
                self.state[parameter] |= mine | {"tuple": (torch.ones(3),), "n": None}


def test_state_in_lists_empty_groups_and_options_are_exported(tmp_path: Path) -> None:
    module = nn.ModuleDict({"a": nn.Linear(2, 1), "b": nn.Linear(2, 2)})
    groups: list[dict[str, Any]] = [{"params": []}, {"params": [*module["a"].parameters()]}]
    groups += [{"params": [*module["b"].parameters()][::-1], "lr": torch.tensor(0.5)}]
    optimizer = Listing([*groups, {"params": [], "lr": 3}, {"params": []}], lr=0.1)
    optimizer.param_groups[-1]["lr"] = torch.tensor(0.25)
    optimizer.param_groups[1]["own"] = {"x": [1, None]}
    optimizer.step()
    state = {"model": module, "optimizer": optimizer}
    export_torch(saved(tmp_path / "store", 1, state), tmp_path / "out.pt")
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert_same(found, as_saved(state, tmp_path / "wanted.pt"))


def test_an_optimizer_whose_order_is_not_known_keeps_its_names(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pieces = [piece("optimizer/state.w.m", "float32", bits("float32", (2,), 1))]
    values: dict[str, Any] = {
        "optimizer/param_groups.w.lr": 0.5,
        "optimizer/group_of.w": 0,
        "optimizer/class": "O",
    }
    export_torch(opened(store, save_pieces(store, "r", 1, pieces, values)), tmp_path / "out.pt")
    found = torch.load(tmp_path / "out.pt", weights_only=True)["optimizer"]
    assert found.keys() == {"state.w.m", "param_groups.w.lr", "group_of.w", "class"}
    assert "load_state_dict() cannot take it" in caplog.text


def test_lists_are_exported_as_lists(tmp_path: Path) -> None:
    state = {"held": {"l": [torch.ones(1), [torch.zeros(1), 2]], "v": (1, [2])}, "n": None}
    export_torch(saved(tmp_path / "store", 1, state), tmp_path / "out.pt")
    assert_same(torch.load(tmp_path / "out.pt", weights_only=True), state)
