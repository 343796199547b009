"""`make test` installs all that the tests' servers are made of."""

from __future__ import annotations

import re
from pathlib import Path

from slurm.devcluster import tools as slurm
from tests.services import ceph, fault_fs, inject, nfs

MAKEFILE = Path(__file__).resolve().parents[3] / "Makefile"


def test_every_package_is_in_the_makefile() -> None:
    found = re.search(r"^SERVICES := ((?:.*\\\n)*.*)$", MAKEFILE.read_text(), re.MULTILINE)
    assert found is not None
    installed = set(found[1].replace("\\\n", " ").split())
    needed = {
        package
        for tools in (
            *(ceph.TOOLS, fault_fs.TOOLS, inject.TOOLS, nfs.TOOLS),
            slurm.needed(namespaces=True, accounting=True),
        )
        for package in tools.values()
    }
    assert needed | {fault_fs.PYTHON_PACKAGE} <= installed
