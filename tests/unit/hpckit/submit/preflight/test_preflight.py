"""What is looked at before anything is started."""

from __future__ import annotations

import gzip
import json
import re
import socket
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from checkpointing import Store
from data import TokenFiles, Tokeniser, build_index, pack_folder, pack_token_files
from hpckit.config.spec_error import SpecError
from hpckit.rundir.code_snapshot.snapshot import Project
from hpckit.rundir.directory import RunDir
from hpckit.submit.preflight.checks import Preflight, preflight, with_absolute_paths
from hpckit.submit.preflight.dataset_checks import changed_mixture_problems, check_mixture
from hpckit.submit.shard_packing import pack_shards, stdlib_place
from tests.pictures import encoded
from tests.unit.data.tars import write_tar
from tests.unit.data.token_files import write_flat
from tests.unit.hpckit.specs_and_processes import line_of, make_spec, python

PACK = {"source": "texts", "suffixes": [".txt"], "exclude": [], "samples_per_shard": 4}
JPEG = encoded(np.zeros((6, 8, 3), np.uint8), "jpg")
LOOK_AS_NOBODY = """
import os, sys; from pathlib import Path
from hpckit.submit.preflight.writable_folder import unwritable
if os.getuid() == 0: os.setuid(65534)  # root may write anywhere
print(*unwritable("root", Path(sys.argv[1]) / "runs" / "run"), flush=True)
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "project").mkdir()
    texts = tmp_path / "texts"
    texts.mkdir()
    for n in range(5):
        (texts / f"{n}.txt").write_text(str(n))
    return Project(tmp_path / "project", False)


def look(
    project: Project, changes: dict[str, Any] | None = None, root: str = "runs", packs: bool = True
) -> Preflight:
    base = project.root.parent
    values = {"data.shards": "shards", "data.pack": PACK, **(changes or {})}
    spec = with_absolute_paths(make_spec(values), base)
    pack = (lambda what, out: pack_shards(what, out, None)) if packs else None
    return preflight(spec, RunDir(base / root / "run"), project, pack)


def entry_problems(project: Project, entry: str) -> list[str]:
    return look(project, {"entry": entry}, packs=False).problems


def write(project: Project, name: str, text: str) -> Path:
    path = project.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_missing_shards_are_packed_once(project: Project) -> None:
    found = look(project)
    assert found.problems == []
    assert found.dataset is not None
    assert (len(found.dataset), len(found.dataset.manifest)) == (5, 2)
    again = look(project, {"data.pack": {**PACK, "source": "elsewhere"}})
    assert again.problems == []


def test_a_model_without_room_for_all_tokens_is_a_problem_before_the_start(
    project: Project,
) -> None:
    words = {"<unk>": 0, "</s>": 1, **{f"w{n}": n for n in range(2, 300)}}
    path = project.root.parent / "tokenizer.json"
    Tokenizer(WordLevel(words, unk_token="<unk>")).save(str(path))
    pack_folder(
        project.root.parent / "texts", project.root.parent / "shards", tokeniser=Tokeniser(path)
    )
    tokens = {"data.text": "tokens", "data.pack": None}
    (line,) = look(project, tokens).problems
    assert line.startswith("model.vocab: 257 is less than the 300 different tokens of ")
    assert look(project, {**tokens, "model.vocab": 300}).problems == []
    assert look(project, {**tokens, "entry": "os:getcwd"}).problems == []
    (line,) = look(project, {**tokens, "data.shards": "bytes", "data.pack": PACK}).problems
    assert "no token counts" in line


def test_token_files_that_a_run_cannot_train_on(project: Project) -> None:
    place = write_flat(project.root.parent / "train.bin", [[1, 2, 299, 256] * 30])
    flat = {"data.text": "tokens", "data.pack": None, "data.shards": "train.bin"}
    good = {**flat, "data.end_of_text": 256, "model.vocab": 300}
    found = look(project, good)
    assert found.problems == []
    assert found.dataset is not None
    assert len(found.dataset) == 30
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"model.vocab": 257}, f"model.vocab: 257 is not more than the token 299 of {place}"),
        ({"data.text": "bytes", "data.end_of_text": None}, f"data.shards: {place} holds tokens"),
        ({"data.end_of_text": 200}, "data.shards: shard .* end_of_text=200 does not occur"),
        ({"data.column": "ids"}, "data.shards: .*column=ids is given"),
        ({"data.check": "content"}, "data.shards: .*token files have no checksums"),
        ({"data.shards": "none.bin"}, "data.shards: no token files: looked for .*/none.bin"),
        ({"data.shards": "s3://b/x.bin"}, "data.shards: s3://b/x.bin: token files are only read"),
    )
    for changes, says in cases:
        (line,) = look(project, {**good, **changes}).problems
        assert re.match(says, line), line
    other = {"train.validate_every": 5, "data.validation": str(place)}
    assert look(project, {**good, **other}).problems == []


def test_other_formats_are_looked_at_by_what_a_run_makes_of_them(project: Project) -> None:
    base = project.root.parent
    lines = [json.dumps({"text": f"line {n}", "n": n}) for n in range(9)]
    (base / "text.jsonl").write_text("\n".join(lines))
    text = {"data.text": "bytes", "data.pack": None, "data.shards": "text.jsonl"}
    good = look(project, {**text, "data.column": "text"})
    assert (good.problems, good.dataset and len(good.dataset)) == ([], 9)
    (line,) = look(project, text).problems
    assert "has members ['text', 'n']; training on text takes" in line
    assert "data.column names" in line
    (line,) = look(project, {**text, "data.column": "n"}).problems
    assert "has in 'n' no text" in line
    tokens = {**text, "data.text": "tokens", "data.shards": "text.jsonl"}
    (line,) = look(project, tokens).problems
    assert line.startswith("data.shards: ")


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ([("0.jpg", JPEG), ("0.cls", b"3")], None),
        ([("0.txt", b"text")], "sample '0' has no label: a member 'cls'"),
        ([("0.txt", b"text"), ("0.cls", b"3")], "sample '0' has images []; it takes one of jpg"),
        ([("0.jpg", b"text"), ("0.cls", b"3")], "sample '0' has a broken image 'jpg'"),
        ([("0.jpg", JPEG), ("0.cls", b"3000")], "sample '0' has label 3000, and model.classes="),
    ],
)
def test_what_is_no_labelled_image_is_found_before_anything_starts(
    project: Project, members: list[tuple[str, bytes]], says: str | None
) -> None:
    folder = project.root.parent / "images"
    folder.mkdir()
    write_tar(folder / "s.tar", members)
    build_index(folder)
    spec = make_spec({"data.shards": str(folder)}, model="resnet_nano")
    found = preflight(spec, RunDir(folder.parent / "run"), project, None).problems
    if says is None:
        assert found == []
    else:
        (line,) = found
        assert line.startswith("data.shards: ")
        assert says in line


def test_compressed_tars_are_for_the_caches_of_nodes(project: Project) -> None:
    """Nothing is unpacked here, and what is no compressed file is a problem all the same."""
    base = project.root.parent
    tar = write_tar(base / "plain.tar", [("0.txt", b"text")])
    (base / "text.tar.gz").write_bytes(gzip.compress(tar.read_bytes()))
    text = {"data.text": "bytes", "data.pack": None, "data.shards": "text.tar.gz"}
    (line,) = look(project, text).problems
    assert "is unpacked into a cache" in line
    assert "data.cache, a folder on each node's own disk" in line
    cached = {**text, "data.cache": str(base / "cache")}
    found = look(project, cached)
    assert (found.problems, found.dataset) == ([], None)
    assert any("are unpacked into" in note for note in found.notes)
    assert not (base / "cache").exists()
    both = {**cached, "train.validate_every": 5, "data.validation": "text.tar.gz"}
    assert look(project, both).problems == []
    (base / "text.tar.gz").write_bytes(b"neither")
    (line,) = look(project, cached).problems
    assert "is neither gzip nor zstd data" in line


def look_at_mixture(
    base: Path, more: Mapping[str, Any] = MappingProxyType({}), **sources: dict[str, Any]
) -> tuple[list[str], list[str]]:
    values: dict[str, Any] = {
        **more,
        "data.mixture.sources": sources,
        "data.mixture.unit": "tokens",
    }
    values |= {"train.steps": 3, "optim.warmup_steps": 1}
    spec = make_spec({**values, "data.mixture.block": 64}, data="mixture")
    return check_mixture(with_absolute_paths(spec, base))


def test_a_mixture_is_compared_with_its_sources(project: Project) -> None:
    base = project.root.parent
    write_flat(base / "web.bin", [[1, 2, 3, 0]] * 600)
    write_flat(base / "code.bin", [[1, 2, 3, 4, 5, 6, 7, 0]] * 400)
    web = {"shards": "web.bin", "end_of_text": 0, "weight": 1.0}
    code = {"shards": "code.bin", "end_of_text": 0, "weight": 1.0}
    problems, (note,) = look_at_mixture(base, web=web, code=code)
    assert problems == []
    # 3 steps of 16 windows of 65 tokens are 3,120 tokens, half of each
    assert note == "data.mixture: 3 steps are about these epochs: 0.65 of web, 0.487 of code"
    (line,), _ = look_at_mixture(base, web=web, code={**code, "shards": "cod.bin"})
    assert line.startswith("data.mixture.sources.code.shards: ")
    (line,), _ = look_at_mixture(base, web=web, code={**code, "weight": 1e-4})
    assert line.startswith("data.mixture: a weight of ")
    assert "use a block of at least" in line
    budgets: dict[str, Any] = {"weight": None, "budget": 2000}
    (line,), _ = look_at_mixture(
        base, web={**web, **budgets}, code={**code, **budgets, "budget": 9999}
    )
    assert "sources.code.budget: 9,999 tokens are more than the 3,200 that" in line
    (line, other), _ = look_at_mixture(
        base, web={**web, **budgets, "budget": 400}, code={**code, **budgets, "budget": 800}
    )
    assert "sources.web.budget: 3 steps take" in line
    assert "more than 800" in other
    late = {"data.mixture.stages": [{"step": 3, "weights": {"web": 1}}]}
    problems, (_, note) = look_at_mixture(base, late, web=web, code=code)
    assert problems == []
    assert note == (
        "data.mixture.stages[0]: begins at sample 585 of the stream, and 3 steps end at 585: it is "
        "not reached"
    )


def test_sources_have_the_options_of_token_files_that_their_kind_takes(project: Project) -> None:
    """A run whose `data.end_of_text` is of its flat files may have tars of tokens, too."""
    base = project.root.parent
    flat = write_flat(base / "web.bin", [[1, 2, 3, 0]] * 600)
    pack_token_files(flat, base / "code", TokenFiles(end_of_text=0))
    web, code = {"shards": "web.bin", "weight": 1.0}, {"shards": "code", "weight": 1.0}
    of_all = {"data.end_of_text": 0, "data.text": "tokens"}
    problems, (note,) = look_at_mixture(base, of_all, web=web, code=code)
    assert problems == []
    assert note.endswith("these epochs: 0.65 of web, 0.65 of code")
    (line,), _ = look_at_mixture(base, of_all, web=web, code={**code, "end_of_text": 0})
    assert "end_of_text=0 is given, but it is not a token file" in line


def test_a_mixture_that_changes_at_a_resume_is_looked_at(project: Project) -> None:
    base = project.root.parent
    write_flat(base / "web.bin", [[1, 2, 3, 0]] * 600)
    source = {"end_of_text": 0, "weight": 1.0}
    web, other = ({**source, "shards": str(base / f"{name}.bin")} for name in ("web", "wep"))
    before, after = (
        make_spec({"data.mixture.sources": sources, "data.mixture.unit": "tokens"}, data="mixture")
        for sources in ({"web": web}, {"web": web, "other": other})
    )
    assert changed_mixture_problems(after, after) == []
    (line,) = changed_mixture_problems(before, after)
    assert line.startswith("data.mixture.sources.other.shards: ")
    once = make_spec({"data.mixture.sources": {"web": {**web, "epochs": 0.01}}}, data="mixture")
    assert changed_mixture_problems(before, once) == [], "what was read before is not known"
    (line,) = changed_mixture_problems(once, replace(once, train=replace(once.train, steps=9999)))
    assert line.startswith("data.mixture.sources.web: 9999 steps read it ")
    assert changed_mixture_problems(once, once) == []


def test_samples_that_are_to_be_compared_need_checksums(project: Project) -> None:
    checks = {"data.check": "content"}
    assert look(project, checks).problems == [], "as hpckit packs them"
    place = project.root.parent / "tars"
    place.mkdir()
    write_tar(place / "a.tar", [("1.txt", b"1")])
    others: dict[str, Any] = {**checks, "data.pack": None, "data.shards": "tars"}
    others |= {"data.validation": "tars", "train.validate_every": 5}
    shards, validation = look(project, others).problems
    assert shards.startswith("data.shards: ")
    assert validation.startswith("data.validation: ")
    for line in (shards, validation):
        assert "a.tar: its index has no checksums of the contents" in line
    build_index(place, hash=True)
    assert look(project, others).problems == []


def test_missing_shards_are_left_unmade_where_nothing_is_to_be_made(project: Project) -> None:
    found = look(project, packs=False)
    assert found == Preflight(None, [])
    assert not (project.root.parent / "shards").exists()


def test_missing_shards_and_nothing_to_make_them_of_are_a_problem(project: Project) -> None:
    (line,) = look(project, {"data.pack": None}).problems
    assert line.startswith("data.shards: ")
    (line,) = look(project, {"data.pack": {**PACK, "source": "none"}}).problems
    assert line.startswith("data.shards: ")
    assert "none" in line


@pytest.mark.parametrize(
    "shards",
    ["trian", "train-{000..127}.tar", "set/train-*.tar", "train.tar", "s3://bucket/train", "s[12]"],
)
def test_no_other_data_is_packed_in_the_place_of_shards_that_are_not_there(
    project: Project, shards: str
) -> None:
    stdlib = {"data.pack": {**PACK, "source": "stdlib"}, "data.shards": shards}
    (line,) = look(project, stdlib).problems
    assert line.startswith("data.shards: there is no folder ")
    assert "; give data=shards data.shards=..." in line
    assert look(project, stdlib, packs=False).problems == [line]
    mine = look(project, {"data.shards": shards}, packs=False).problems
    assert bool(mine) == (shards != "trian")
    assert sorted(path.name for path in project.root.parent.iterdir()) == ["project", "texts"]


def test_pythons_own_sources_are_packed_in_the_place_of_their_option(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(project.root.parent / "cache"))
    stdlib = {"data.pack": {**PACK, "source": "stdlib"}, "data.shards": str(stdlib_place())}
    assert look(project, stdlib, packs=False) == Preflight(None, [])
    monkeypatch.setenv("XDG_CACHE_HOME", str(project.root.parent / "other"))
    assert len(look(project, stdlib, packs=False).problems) == 1


def test_shards_that_an_entry_of_the_user_may_not_read_are_a_note(project: Project) -> None:
    write(project, "mine.py", "def main(cfg): ...\n")
    tokens = write(project, "tokens/train.bin", "no tar")
    given = {"entry": "mine:main", "data.pack": None, "data.shards": str(tokens.parent)}
    found = look(project, given)
    assert found.problems == []
    (line,) = found.notes
    assert line.startswith("data.shards: ")
    assert line.endswith("; mine:main starts all the same, and fails if it opens them")
    (line,) = look(project, {**given, "entry": "hpckit.training.language_model:main"}).problems
    assert line.startswith("data.shards: ")
    for missing in ({"data.shards": "nowhere"}, {"data.validation": "nowhere"}):
        assert look(project, {**given, **missing}).problems, "it was given, and nothing is there"
        assert look(project, {**given, **missing}).notes == []


def test_the_standard_library_that_cannot_be_packed_hinders_no_entry_of_the_user(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, "mine.py", "def main(cfg): ...\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(write(project, "cache", "a file in the way")))
    stdlib = {"data.pack": {**PACK, "source": "stdlib"}, "data.shards": str(stdlib_place())}
    found = look(project, {**stdlib, "entry": "mine:main"})
    assert found.problems == []
    assert "data.shards: " in found.notes[0]
    assert look(project, stdlib).problems


def test_weights_that_an_entry_of_the_user_begins_with_only_have_to_be_there(
    project: Project,
) -> None:
    write(project, "mine.py", "def main(cfg): ...\n")
    weights = write(project, "weights/config.json", '{"model_type": "mamba"}').parent
    base = project.root.parent
    values = {"data.shards": "shards", "data.pack": PACK, "init_from.path": str(weights)}
    for entry, count in (("mine:main", 0), ("hpckit.training.language_model:main", 1)):
        made = make_spec({**values, "entry": entry}, start="huggingface")
        spec = with_absolute_paths(made, base)
        found = preflight(spec, RunDir(base / "runs" / "run"), project, None).problems
        assert len([line for line in found if line.startswith("init_from.path: ")]) == count
    made = make_spec(
        {**values, "entry": "mine:main", "init_from.path": "/none"}, start="huggingface"
    )
    found = preflight(made, RunDir(base / "runs" / "run"), project, None).problems
    assert "init_from.path: there is no /none" in found


def test_all_problems_are_said_at_once(project: Project) -> None:
    write(project, "data.py", "")
    (project.root.parent / "runs").write_text("in the way")
    found = look(project, {"data.pack": None, "entry": "none:main"}).problems
    assert [line.split(":")[0] for line in found] == [
        f"{project.root}/data.py",
        "entry",
        "root",
        "data.shards",
    ]


@pytest.mark.parametrize("name", ["mine.py", "pkg/mine.py", "pkg/sub/mine.py"])
def test_an_entry_is_found_without_importing_it_or_its_packages(
    project: Project, name: str
) -> None:
    deed = "import pathlib; pathlib.Path(__file__).with_suffix('.imported').touch()\n"
    write(project, name, f"{deed}def main(cfg): ...\n")
    for parent in Path(name).parents[:-1]:
        write(project, f"{parent}/__init__.py", deed)
    module = name.removesuffix(".py").replace("/", ".")
    before = set(sys.modules)
    assert entry_problems(project, f"{module}:main") == []
    assert list(project.root.rglob("*.imported")) == []
    assert not {name for name in set(sys.modules) - before if "mine" in name or "pkg" in name}


def test_an_entry_in_folders_that_are_no_packages_is_found(project: Project) -> None:
    write(project, "scripts/mine.py", "def main(cfg): ...\n")
    write(project, "a/b/mine.py", "def main(cfg): ...\n")
    assert entry_problems(project, "scripts.mine:main") == []
    assert entry_problems(project, "a.b.mine:main") == []


def test_hpckits_own_entry_is_found(project: Project) -> None:
    assert entry_problems(project, "hpckit.training.language_model:main") == []


@pytest.mark.parametrize("entry", ["none:main", "none.such:main", "mine.such:main", "folder:main"])
def test_a_missing_module_is_named_with_where_it_was_looked_for(
    project: Project, entry: str
) -> None:
    write(project, "mine.py", "def main(cfg): ...\n")
    (project.root / "folder").mkdir()
    (line,) = entry_problems(project, entry)
    module = entry.split(":")[0]
    assert line.startswith(f"entry: there is no module {module} in {project.root} or installed; ")


def test_a_missing_function_is_named_with_the_file(project: Project) -> None:
    path = write(project, "mine.py", "def other(cfg): ...\nclass A:\n    def main(self): ...\n")
    assert entry_problems(project, "mine:main") == [f"entry: {path} defines no function main"]


@pytest.mark.parametrize("text", ["from other import main\n", "main = lambda cfg: None\n"])
def test_a_function_that_is_imported_or_assigned_is_found(project: Project, text: str) -> None:
    """The worker takes whatever the module has under that name."""
    write(project, "other.py", "def main(cfg): ...\n")
    write(project, "mine.py", text)
    assert entry_problems(project, "mine:main") == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def main(): ...", "takes no argument"),
        ("def main(cfg, run): ...", "takes 2 arguments without a default (cfg, run)"),
        ("def main(*, cfg): ...", "takes no positional argument"),
        ("def main(cfg, *, run): ...", "needs the keyword arguments run"),
        ("main = lambda: None", "takes no argument"),
        ("async def main(cfg): ...", "is an async function, which nothing awaits"),
        ("import os\nif os.name:\n    def main(): ...", "takes no argument"),
    ],
)
def test_a_function_that_cannot_take_the_config_is_told_how_it_is_called(
    project: Project, text: str, why: str
) -> None:
    path = write(project, "mine.py", text + "\n")
    (line,) = entry_problems(project, "mine:main")
    last = len(text.splitlines())
    assert line == (
        f"entry: mine:main ({path}, line {last}) {why}; hpckit calls it with one argument, the "
        "config: write def main(cfg)"
    )


@pytest.mark.parametrize(
    "text",
    [
        "def main(cfg): ...",
        "def main(cfg, steps=5, *, seed=1): ...",
        "def main(cfg=None): ...",
        "def main(*args, **named): ...",
        "def main(cfg, /): ...",
        "import functools\n@functools.cache\ndef main(): ...",
        "main = lambda cfg: None",
        "def main(): ...\ntry:\n    import x\nexcept ImportError:\n    def main(cfg): ...",
        "class main: ...",
    ],
)
def test_a_function_that_may_take_the_config_is_no_problem(project: Project, text: str) -> None:
    write(project, "mine.py", text + "\n")
    assert entry_problems(project, "mine:main") == []


@pytest.mark.parametrize("content", [b"def main(:\n", b"\xff\xfe", b"x = '\x00'\n"])
def test_a_module_that_is_no_python_is_a_problem_not_an_error(
    project: Project, content: bytes
) -> None:
    write(project, "mine.py", "").write_bytes(content)
    (line,) = entry_problems(project, "mine:main")
    assert line.startswith("entry: ")
    assert "mine.py" in line


def test_a_module_in_another_encoding_is_read_as_python_would(project: Project) -> None:
    text = "# -*- coding: latin-1 -*-\n# Grüße\ndef main(cfg): ...\n"
    write(project, "mine.py", "").write_bytes(text.encode("latin-1"))
    assert entry_problems(project, "mine:main") == []


@pytest.mark.parametrize("root", ["file", "file/deeper", "file/deeper/still"])
def test_a_file_in_the_way_of_the_run_directory_is_named(project: Project, root: str) -> None:
    blocker = project.root.parent / "file"
    blocker.touch()
    (line,) = look(project, root=root).problems
    assert line.startswith(f"root: {blocker} is not a folder; ")


def test_a_folder_that_nothing_can_be_made_in_is_named() -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o555)
        with python(LOOK_AS_NOBODY, name) as looker:
            line = line_of(looker)
        Path(name).chmod(0o755)
    assert line == f"root: {name} is not writable; {name}/runs/run cannot be made there"


def test_a_store_that_is_not_there_yet_is_no_problem(project: Project) -> None:
    base = project.root.parent
    assert look(project, {"checkpoint.url": str(base / "new" / "store")}).problems == []
    assert look(project, {"checkpoint.url": f"file://{base}/new/store"}).problems == []
    assert not (base / "new").exists(), "a look makes nothing"


def test_a_store_that_cannot_be_used_is_a_problem(project: Project) -> None:
    base = project.root.parent
    (base / "file").touch()
    (line,) = look(project, {"checkpoint.url": str(base / "file" / "store")}).problems
    assert line == (
        f"checkpoint.url: {base}/file is not a folder; {base}/file/store cannot be made"
    )
    for url, problem in (
        ("nosuch://bucket/ckpts", "nosuch"),
        ("s3://", "an S3 URL is s3://bucket/folder"),
    ):
        (line,) = look(project, {"checkpoint.url": url}).problems
        assert line.startswith("checkpoint.url: ")
        assert problem in line


def test_a_store_of_another_version_is_a_problem(project: Project) -> None:
    root = project.root.parent / "store"
    Store.open(root, create=True).close()
    assert look(project, {"checkpoint.url": str(root)}).problems == []
    record = root / "hpckit.json"
    record.write_bytes(record.read_bytes().replace(b'"version":1', b'"version":2'))
    (line,) = look(project, {"checkpoint.url": str(root)}).problems
    assert line.startswith(f"checkpoint.url: {root}/hpckit.json: format version 2 is unknown")


def test_a_store_out_of_reach_is_a_problem(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        for name, value in {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "me",
            "AWS_SECRET_ACCESS_KEY": "hush",
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("hpckit.system.store_timeouts.STORE_BUDGET_S", 0.5)
        (line,) = look(project, {"checkpoint.url": "s3://bucket/ckpts"}).problems
    assert line.startswith("checkpoint.url: ")
    assert "bucket" in line
    assert "hush" not in line


def test_too_few_gpus_are_a_problem(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert look(project, {"cluster.device": "cuda", "launch.nodes": 2}).problems == []
    (line,) = look(project, {"cluster.device": "cuda", "launch.nodes": 4}).problems
    shortage = "4 workers, but 2 GPUs on this node"
    assert line == f"cluster.device: cuda needs a GPU for every worker: {shortage}"


def test_relative_paths_are_taken_from_where_the_user_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    changes = {
        "root": "../runs",
        "data.shards": "shards/train-{000..127}.tar",
        "data.pack": {**PACK, "source": "~/texts"},
        "checkpoint.url": "ckpts",
        "data.cache": "~/cache",
    }
    spec = with_absolute_paths(make_spec(changes), Path("/projects/me"))
    assert spec.root == "/projects/runs"
    assert spec.data.shards == "/projects/me/shards/train-{000..127}.tar"
    assert spec.data.pack is not None
    assert spec.data.pack.source == "/home/me/texts"
    assert spec.checkpoint.url == "/projects/me/ckpts"
    assert spec.data.cache == "/home/me/cache"


def test_a_folder_whose_path_is_not_utf_8_is_refused() -> None:
    with pytest.raises(SpecError, match=r"^'/caf\\udce9': the path of this folder is not UTF-8"):
        with_absolute_paths(make_spec(), Path("/caf\udce9"))


def test_what_is_absolute_a_name_or_a_url_stays() -> None:
    changes = {
        "root": "/runs",
        "data.shards": "/shards",
        "data.pack": {**PACK, "source": "stdlib"},
    }
    for url in ("file:///ckpts", "s3://bucket/ckpts", "/ckpts"):
        spec = make_spec({**changes, "checkpoint.url": url})
        assert with_absolute_paths(spec, Path("/projects/me")) == spec
    bare = make_spec({"root": "/runs", "data.pack": None, "checkpoint.url": None})
    assert with_absolute_paths(bare, Path("/projects/me")) == bare
