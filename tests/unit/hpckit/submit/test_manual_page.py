"""Help is taken from what is there, so nothing is missing from it."""

from __future__ import annotations

import re
import shlex

import pytest

from hpckit.config.config_trees import conf_dir, group_options
from hpckit.config.spec_error import SpecError
from hpckit.config.spec_parser import all_keys
from hpckit.submit.compose import compose_spec
from hpckit.submit.manual_page import key_reference, manual

KEYS = [".".join(path) for path in all_keys()]
LEAVES = [key for key in KEYS if not any(other.startswith(f"{key}.") for other in KEYS)]


def shown(prefix: str) -> list[str]:
    return [line.split()[0] for line in key_reference(prefix).splitlines() if line[:1] != " "]


def test_every_key_is_in_the_reference_in_the_order_of_the_spec() -> None:
    assert shown("") == LEAVES


def test_a_prefix_selects() -> None:
    assert shown("data.pack.") == [key for key in LEAVES if key.startswith("data.pack.")]
    assert shown("train.steps") == ["train.steps"]


def test_a_prefix_of_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match=r"no key starts with 'modle'; did you mean model\? see "):
        key_reference("modle")


def test_bounds_are_told_in_words() -> None:
    text = key_reference("")
    assert re.search(r"^train\.steps +integer >= 1$", text, re.MULTILINE)
    assert re.search(r"^model\.seq_len +integer >= 2$", text, re.MULTILINE)
    assert re.search(r"^cluster\.device +auto \| cpu \| cuda$", text, re.MULTILINE)
    assert re.search(r"^checkpoint\.every_steps +integer >= 1 \| null$", text, re.MULTILINE)
    assert re.search(r"^data\.pack\.suffixes +list of text$", text, re.MULTILINE)


def test_no_type_is_told_in_the_words_of_the_source() -> None:
    kinds = [line.split(maxsplit=1)[1] for line in key_reference("").splitlines()[::2]]
    of_source = [kind for kind in kinds if re.search(r"[A-Z\[\]]", kind)]
    assert of_source == ["SIGTERM | SIGINT | SIGUSR1 | SIGUSR2"]


def test_every_group_and_option_is_in_the_manual() -> None:
    lines = manual(group_options(conf_dir())).splitlines()
    for group, options in group_options(conf_dir()).items():
        assert any(line.split() == [group, *options] for line in lines), group


@pytest.mark.parametrize(
    "flag",
    ["--dry-run", "--detach", "--json", "--fresh", "--cfg", "--fake-world", "--help", "-m"],
)
def test_every_flag_is_in_the_manual(flag: str) -> None:
    assert flag in manual(group_options(conf_dir()))


def test_every_example_in_the_manual_works() -> None:
    lines = [line.strip() for line in manual(group_options(conf_dir())).splitlines()]
    examples = [line for line in lines if re.match(r"hpckit launch \w+=", line)]
    assert len(examples) >= 4
    for line in examples:
        compose_spec(shlex.split(line)[2:])


def test_no_placeholder_is_left_in_the_manual() -> None:
    assert "{groups}" not in manual(group_options(conf_dir()))
    assert "train-{000..127}.tar" in manual(group_options(conf_dir()))
