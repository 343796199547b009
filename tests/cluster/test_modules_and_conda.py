"""Set-up lines of a job that load modules and activate an environment of conda.

`HPCKIT_TEST_MODULES` names the file that defines the site's own `module`; without it, a function
that knows two commands of module files does, as sites define one. `HPCKIT_TEST_CONDA` names the
file that defines `conda`, such as etc/profile.d/conda.sh of an installation; without it, a function
does what conda documents of `conda activate`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpckit.config.spec import RunSpec
from hpckit.doctor.finding import Level
from hpckit.rundir.directory import RunDir
from hpckit.submit.compose import compose_spec
from tests.cluster.launched import launch
from tests.cluster.slurm import Slurm
from tests.cluster.test_site_kinds import told
from tests.cluster.test_submitters import worker
from tests.integration.run.runs import ON_ONE_NODE, assert_same_run

MODULE = """
module() {
    while read -r command name value; do
        case $command in
        setenv) export "$name=$value" ;;
        prepend-path) export "$name=$value:${!name}" ;;
        esac
    done < "$MODULEPATH/$2"
}
"""
MODULE_FILE = "#%Module\nsetenv OF_MODULE yes\nprepend-path PATH /opt/module/bin\n"
CONDA = """
conda() {
    [ "$1" = activate ] && [ -d "$2/conda-meta" ] || return 1
    export CONDA_PREFIX="$2" CONDA_DEFAULT_ENV="$2" CONDA_SHLVL=$((${CONDA_SHLVL:-0} + 1))
    export PATH="$2/bin:$PATH"
    for script in "$2"/etc/conda/activate.d/*.sh; do . "$script"; done
}
"""
"""What conda documents of `conda activate`: variables, PATH, and the scripts of the environment."""


def make_conda_environment(folder: Path, conda: str | None) -> Path:
    """An environment with a Python of its own, which has the packages of this one.

    Args:
        conda: the file that defines `conda`, which then makes the environment.
    """
    if conda is not None:
        lines = '. "$1" && conda create --quiet --yes --offline --prefix "$2"'
        subprocess.run(["bash", "-c", lines, "bash", conda, folder], check=True)
    scripts = folder / "etc/conda/activate.d"
    for place in (scripts, folder / "conda-meta", folder / "bin"):
        place.mkdir(parents=True, exist_ok=True)
    (scripts / "own.sh").write_text("export OF_ACTIVATION=1\n")
    (folder / "conda-meta" / "history").touch()
    shutil.copy(Path(sys.prefix, "pyvenv.cfg"), folder)
    (folder / "lib").symlink_to(Path(sys.prefix, "lib"))
    (folder / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    return folder


@pytest.fixture
def setup(tmp_path: Path) -> dict[str, str]:
    """Set-up lines by what they do."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "mine").write_text(MODULE_FILE)
    profile = os.environ.get("HPCKIT_TEST_MODULES")
    if profile is None:
        (tmp_path / "modules.sh").write_text(MODULE)
        profile = str(tmp_path / "modules.sh")
    installed = os.environ.get("HPCKIT_TEST_CONDA")
    (tmp_path / "conda.sh").write_text(f". {installed}\n" if installed else CONDA)
    conda = make_conda_environment(tmp_path / "conda", installed)
    return {
        "define": f"'. {profile}', 'export MODULEPATH={tmp_path}/modules'",
        "load": "'module load mine'",
        "activate": f"'. {tmp_path}/conda.sh', 'conda activate {conda}'",
    }


def test_workers_have_the_modules_and_the_environment_of_the_set_up_lines(
    ports: Slurm, tmp_path: Path, shards: Path, reference: RunDir, setup: dict[str, str]
) -> None:
    conda = tmp_path / "conda"
    lines = f"cluster.slurm.setup=[{','.join(setup.values())}]"
    told_by = ("entry=tests.cluster.telling:main", f"user_config.environment={tmp_path}")
    python = f"cluster.slurm.python={conda}/bin/python"
    it = launch(ports, tmp_path / "runs", shards, *ON_ONE_NODE, *told_by, lines, python)
    assert it.wait_for("run_ended")["verdict"] == "done"
    it.wait_until_over()
    assert_same_run(it.run, reference)
    found = worker(tmp_path)
    path = found["PATH"].split(":")
    assert (found["OF_MODULE"], found["OF_ACTIVATION"]) == ("yes", "1")
    assert path.index(f"{conda}/bin") < path.index("/opt/module/bin")
    assert found["CONDA_PREFIX"] == found["sys.prefix"] == str(conda)


def test_doctor_names_a_command_that_a_node_lacks_and_an_environment_without_its_python(
    ports: Slurm, tmp_path: Path, setup: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ports.cluster.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("BASH_FUNC_module%%", raising=False)
    monkeypatch.delenv("BASH_ENV", raising=False)

    def spec(lines: str, *more: str) -> RunSpec:
        words = ("cluster=slurm", "cluster.device=cpu", "cluster.slurm.gpus=none")
        given = (f"cluster.slurm.setup=[{lines}]", f"root={tmp_path}", "cluster.slurm.memory=500M")
        return compose_spec([*words, *given, *more])

    subjects = ("setup", "Python of a job")

    def findings(it: RunSpec) -> list[tuple[Level, str, str]]:
        found = told(it, tmp_path, asks_node=True)
        return [(one.level, one.what, one.do) for one in found if one.subject in subjects]

    ((level, what, do),) = findings(spec(setup["load"]))
    assert level is Level.FAIL
    assert what.startswith("module in cluster.slurm.setup: no such command on ")
    assert "/etc/profile.d/modules.sh" in do
    defined = f"{setup['define']},{setup['load']},{setup['activate']}"
    ((level, what, do),) = findings(spec(defined))
    assert level is Level.WARN
    assert what.startswith(f"the set-up lines activate {tmp_path}/conda, but a job runs")
    python = do.removeprefix("set ").partition(",")[0]
    assert findings(spec(defined, python)) == []
