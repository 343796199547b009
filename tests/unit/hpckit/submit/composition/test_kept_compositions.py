"""What Hydra has composed is used again, for the same words and files alone."""

import os
from pathlib import Path

import pytest

from hpckit.submit.composition import kept_compositions
from hpckit.submit.composition.composed_values import ComposedValues
from hpckit.submit.composition.composition_process import CompositionProcess
from hpckit.submit.composition.kept_compositions import KeptComposition, open_kept

FOUND = ComposedValues({"name": "é\n", "train": {"steps": 3}}, [])
WORDS = ["train.steps=3"]


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    tree = tmp_path / "conf"
    (tree / "data").mkdir(parents=True)
    (tree / "config.yaml").write_text("defaults: [data: mine]\nname: t\n")
    (tree / "data" / "mine.yaml").write_text("shards: ${oc.env:SHARDS,'~/.cache'}/mine\n")
    return tree


def kept(
    conf: Path, words: list[str] = WORDS, yours: Path | None = None, **env: str
) -> KeptComposition | None:
    return open_kept(words, conf, yours, {"XDG_CACHE_HOME": str(conf.parent / "cache"), **env})


def test_what_a_process_has_composed_is_kept(conf: Path) -> None:
    place = kept(conf)
    assert place is not None
    assert place.read() is None
    process = CompositionProcess(lambda: FOUND, place)
    assert process.result() == FOUND
    assert place.read() is None, "whether it is a spec is not known yet"
    process.keep()
    assert place.read() == FOUND
    again = kept(conf)
    assert again is not None
    assert again.read() == FOUND
    assert place.path.parent.stat().st_mode & 0o077 == 0, "no other user may read it"


def test_it_is_of_these_words_files_and_variables_alone(conf: Path) -> None:
    places = [kept(conf), kept(conf, [*WORDS, "name=u"]), kept(conf, SHARDS="/data")]
    yours = conf.parent / "yours"
    (yours / "optim").mkdir(parents=True)
    places.append(kept(conf, yours=yours))
    (yours / "optim" / "mine.yaml").write_text("lr: 1\n")
    places.append(kept(conf, yours=yours))
    (yours / "optim" / "mine.yaml").write_text("lr: 2\n")
    places.append(kept(conf, yours=yours))
    (conf / "config.yaml").write_text("defaults: [data: mine]\nname: v\n")
    places.append(kept(conf))
    assert None not in places
    assert len(set(places)) == len(places)
    assert kept(conf, EDITOR="vi") == places[-1], "no file names this variable"


@pytest.mark.parametrize(
    "text",
    [
        "name: ${now:%H}",
        "name: ${ now : %H }",
        "name: ${hydra:runtime.cwd}",
        "name: ${mine:3}",
        "name: ${oc.env:${which}}",
        "name: ${${which}:x}",
        "name: ${oc.deprecated:other}",
    ],
)
def test_nothing_is_kept_of_a_file_that_may_have_other_values_next_time(
    conf: Path, text: str
) -> None:
    (conf / "config.yaml").write_text(text)
    assert kept(conf) is None


def test_values_of_the_config_itself_may_be_named(conf: Path) -> None:
    text = "a: ${b.c}\nd: ${oc.select:b.e,3}\nf: ${oc.env:F}\ng: {x: 1, y: '${h}: 2'}\n"
    (conf / "config.yaml").write_text(text)
    assert kept(conf) is not None


def test_nor_of_trees_that_lead_elsewhere_or_with_plug_ins_of_hydra(
    conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (conf / "more").symlink_to(conf.parent)
    assert kept(conf) is None
    (conf / "more").unlink()
    (conf.parent / "hydra_plugins").mkdir()
    monkeypatch.syspath_prepend(str(conf.parent))
    assert kept(conf) is None


def test_nor_of_a_command_with_overrides_that_were_refused(conf: Path) -> None:
    place = kept(conf)
    assert place is not None
    place.write(ComposedValues({}, ["model: no option"]))
    assert place.read() is None


def test_what_is_damaged_or_what_others_could_have_written_is_not_used(conf: Path) -> None:
    place = kept(conf)
    assert place is not None
    place.write(FOUND)
    place.path.parent.chmod(0o777)
    assert place.read() is None
    place.path.parent.chmod(0o700)
    for text in ("", "{", "[]", '{"values": {}}', '{"values": {}, "refused": [], "x": 1}'):
        place.path.write_text(text)
        assert place.read() is None, text
    place.write(FOUND)
    assert place.read() == FOUND


def test_only_the_newest_are_kept(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_compositions, "MOST_KEPT", 2)
    places = [kept(conf, [f"train.steps={n}"]) for n in range(3)]
    for n, place in enumerate(places):
        assert place is not None
        place.write(FOUND)
        if place.path.exists():
            os.utime(place.path, (n, n))
    assert [place is not None and place.read() == FOUND for place in places] == [False, True, True]


def test_without_a_home_nothing_is_kept(conf: Path) -> None:
    assert open_kept(WORDS, conf, None, {}) is None
    assert open_kept(WORDS, conf, None, {"XDG_CACHE_HOME": "cache"}) is None
