"""Stubs of CUDA's libraries for a torch that was installed without them, where there is no GPU.

    python -m tests.versions.cuda_stubs ENVIRONMENT/lib/python3.11/site-packages/torch

The package index has builds of torch for CUDA alone, which on x86-64 require 4 GB of NVIDIA's
libraries. Without a GPU torch calls none of them, but the loader wants to find them. A stub has the
names and the versions of the symbols that torch's own libraries leave undefined, and each of its
functions returns the error that says that there is no device. Requires gcc, nm and readelf.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

NO_DEVICE = 100
"""cudaErrorNoDevice, which other libraries of CUDA take for an error, too."""
NVIDIA = re.compile(r"lib(cu|nv|nccl)[\w.]*\.so[.\d]*")
_SYMBOL = re.compile(r"^ *U ((?:__cuda|__nv|cu|nv|nccl)\w*)(?:@(\S+))?$", re.MULTILINE)
_NEEDED = re.compile(r"\(NEEDED\).*\[(.*)\]")
_VERSION = re.compile(r"\b(File|Name): (\S+)")


def symbols_of(undefined: str) -> Iterator[tuple[str, str]]:
    """Name and version, which may be empty, of each of CUDA's symbols in the output of nm. Pure."""
    yield from ((name, version or "") for name, version in _SYMBOL.findall(undefined))


def needed_of(dynamic: str) -> list[str]:
    """The libraries of NVIDIA in the output of readelf. Pure."""
    return [name for name in _NEEDED.findall(dynamic) if NVIDIA.fullmatch(name)]


def versions_of(information: str) -> dict[str, str]:
    """The library of each version of symbols in the output of readelf. Pure."""
    library, found = "", {}
    for kind, name in _VERSION.findall(information):
        if kind == "File":
            library = name
        elif NVIDIA.fullmatch(library):
            found[name] = library
    return found


def share(
    needed: Iterable[str], symbols: Iterable[tuple[str, str]], versions: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """The symbols of each library, with their versions. A symbol without a version is in
    every library that has none, since nothing says in which. Pure."""
    shared: dict[str, dict[str, str]] = {name: {} for name in needed}
    unversioned = shared.keys() - {*versions.values()}
    for name, version in symbols:
        for library in [versions[version]] if version in versions else unversioned:
            shared.setdefault(library, {})[name] = version
    return shared


def source_of(names: Iterable[str]) -> str:
    """The C source of a stub. What registers kernels is called as torch is loaded. Pure."""
    lines = ["static void *registered[64];"]
    for name in sorted(names):
        value = "(long)registered" if name.startswith("__cuda") else NO_DEVICE
        lines.append(f"long {name}() {{ return {value}; }}")
    return "\n".join(lines) + "\n"


def script_of(names: Mapping[str, str]) -> str:
    """The linker's script that gives the symbols of a stub their versions. Pure."""
    lines = []
    for version in sorted({*names.values()} - {""}):
        own = "".join(f" {name};" for name in sorted(names) if names[name] == version)
        lines.append(f"{version} {{ global:{own} }};")
    return "\n".join(lines) + "\n"


def build(folder: Path, shared: Mapping[str, Mapping[str, str]]) -> None:
    """Compile the stubs into a folder."""
    with tempfile.TemporaryDirectory() as scratch:
        source, script = Path(scratch, "stub.c"), Path(scratch, "stub.map")
        for library, names in shared.items():
            source.write_text(source_of(names))
            script.write_text(script_of(names))
            words = ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{library}"]
            words += [f"-Wl,--version-script={script}"] if any(names.values()) else []
            subprocess.run([*words, "-o", str(folder / library), str(source)], check=True)


def main(torch: Path) -> None:
    """Put the stubs that this torch needs where its libraries look for their kind."""
    needed: set[str] = set()
    symbols: set[tuple[str, str]] = set()
    versions: dict[str, str] = {}
    for library in (torch / "lib").glob("*.so*"):
        needed |= {*needed_of(_output("readelf", "--dynamic", "--wide", library))}
        symbols |= {*symbols_of(_output("nm", "--dynamic", "--undefined-only", library))}
        versions |= versions_of(_output("readelf", "--version-info", "--wide", library))
    build(torch / "lib", share(needed, symbols, versions))


def _output(*words: str | Path) -> str:
    return subprocess.run([*map(str, words)], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]))
