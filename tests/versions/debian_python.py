"""A Python that this machine lacks, unpacked from the packages of another release of Debian.

    python3 -m tests.versions.debian_python 3.14

The last line is the path of the interpreter, which is kept below ~/.cache/hpckit and takes 64 MB.
Nothing is installed, and no privileges are needed, but apt, dpkg and patchelf.
"""

from __future__ import annotations

import platform
import shutil
import sys
from pathlib import Path

from slurm.devcluster.errors import DevclusterError
from slurm.devcluster.files.debian_packages import (
    cache_folder,
    download,
    extract,
    lead_to_libraries,
    locked,
)

RELEASES = {"3.13": "trixie", "3.14": "forky"}
"""Debian's releases by the Python that they had when this was last run."""

_WHEELS = "/usr/share/python-wheels"
"""Where Debian's ensurepip looks for pip."""


def unpack(version: str, cache: Path | None = None) -> Path:
    """Returns the interpreter; it is downloaded if it is not in the cache.

    Args:
        version: of Python ("3.14"), one of `RELEASES`.
        cache: None: `$XDG_CACHE_HOME/hpckit`.

    Raises:
        DevclusterError: a tool is missing, or the packages cannot be downloaded.
    """
    name = f"python{version}"
    folder = (cache or cache_folder()) / f"{name}-{RELEASES[version]}"
    with locked(folder.with_name(f"{folder.name}.lock")):
        if not folder.exists():
            partial = folder.with_name(f"{folder.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            place = partial / "prefix"
            for package in download(RELEASES[version], [f"{name}-venv"], partial):
                extract(package, place)
            libraries = Path("usr/lib", f"{platform.machine()}-linux-gnu")
            loader = next((place / libraries).glob("ld-linux*"))
            program = place / "usr/bin" / name
            # What is written has the final paths in it
            lead_to_libraries(program, folder / libraries / loader.name, [folder / libraries])
            found = (place / "usr/lib" / name).glob("_sysconfigdata_*.py")
            for variables in {file.resolve() for file in found}:  # some are links to others
                text = variables.read_text()
                variables.write_text(text.replace(_WHEELS, f"{folder}{_WHEELS}"))
            place.rename(folder)
            shutil.rmtree(partial)
    return folder / "usr/bin" / name


if __name__ == "__main__":
    if sys.argv[1:] not in [[version] for version in RELEASES]:
        sys.exit(f"usage: python3 -m tests.versions.debian_python {'|'.join(RELEASES)}")
    try:
        print(unpack(sys.argv[1]))
    except DevclusterError as error:
        sys.exit(str(error))
