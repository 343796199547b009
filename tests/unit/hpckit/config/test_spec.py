"""The spec: everything is stated, everything is explained."""

from __future__ import annotations

import dataclasses

from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import all_keys
from hpckit.submit.manual_page import key_reference


def test_no_key_has_a_default() -> None:
    def walk(kind: type) -> None:
        for field in dataclasses.fields(kind):
            assert field.default is dataclasses.MISSING, field.name
            assert field.default_factory is dataclasses.MISSING, field.name
            if isinstance(field.type, type) and dataclasses.is_dataclass(field.type):
                walk(field.type)

    walk(RunSpec)


def test_every_key_is_explained() -> None:
    lines = key_reference("").splitlines()
    assert len(lines) % 2 == 0
    assert all(len(meaning.strip()) > 5 for meaning in lines[1::2])
    assert len(lines) // 2 <= len(all_keys())
