"""An older webdataset is refused before anything of it is used."""

import subprocess
import sys
import tomllib
from pathlib import Path

from data.wds.webdataset_version import OLDEST, version_problem

ROOT = Path(__file__).parents[4]


def test_an_older_one_is_refused_by_the_first_import_with_what_to_install(tmp_path: Path) -> None:
    about = tmp_path / "webdataset-0.2.86.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: webdataset\nVersion: 0.2.86\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from data import from_wds"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode != 0
    assert "webdataset 0.2.86 is installed" in done.stderr
    assert "pip install 'webdataset>=1.0'" in done.stderr


def test_what_is_refused_is_older_than_what_the_extra_installs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    oldest = ".".join(map(str, OLDEST))
    assert project["optional-dependencies"]["webdataset"] == [f"webdataset>={oldest}"]
    assert [version_problem(text) for text in ("1.0.2", "1.10.0", "nightly")] == [None] * 3
    assert version_problem("0.3.1")
