"""The versions of installed packages, as `importlib.metadata` has them."""

from importlib.metadata import version
from pathlib import Path

import pytest

from hpckit.system.installed_versions import installed_version


@pytest.mark.parametrize("package", ["torch", "hydra-core", "PyYAML", "pydantic_core"])
def test_the_version_of_a_package_is_that_of_its_metadata(package: str) -> None:
    assert installed_version(package) == version(package)


def test_a_package_that_is_not_installed_has_none() -> None:
    assert installed_version("no-such-package") is None


def test_an_egg_has_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old.egg-info").write_text("Metadata-Version: 1.0\nName: old\nVersion: 1.2\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert installed_version("old") == "1.2"
