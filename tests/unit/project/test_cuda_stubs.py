"""Stubs of CUDA's libraries, of what nm and readelf say of torch's."""

from __future__ import annotations

from tests.versions.cuda_stubs import (
    needed_of,
    script_of,
    share,
    source_of,
    symbols_of,
    versions_of,
)

NM = """\
                 U cudaMalloc@libcudart.so.13
                 U cusparseLtInit
                 U memcpy@GLIBC_2.14
                 U nvshmem_init@NVSHMEM
                 U PyLong_FromLong
"""
DYNAMIC = """\
 0x01 (NEEDED)   Shared library: [libcudart.so.13]
 0x01 (NEEDED)   Shared library: [libcusparseLt.so.0]
 0x01 (NEEDED)   Shared library: [libc.so.6]
"""
VERSIONS = """\
  0x0050: Version: 1  File: libcudart.so.13  Cnt: 1
  0x0060:   Name: libcudart.so.13  Flags: none  Version: 21
  0x0070: Version: 1  File: libnvshmem_host.so.3  Cnt: 1
  0x0080:   Name: NVSHMEM  Flags: none  Version: 18
  0x0090: Version: 1  File: libc.so.6  Cnt: 1
  0x00a0:   Name: GLIBC_2.14  Flags: none  Version: 16
"""


def test_each_symbol_is_in_the_library_of_its_version() -> None:
    found = share(needed_of(DYNAMIC), list(symbols_of(NM)), versions_of(VERSIONS))
    assert found == {
        "libcudart.so.13": {"cudaMalloc": "libcudart.so.13"},
        "libcusparseLt.so.0": {"cusparseLtInit": ""},
        "libnvshmem_host.so.3": {"nvshmem_init": "NVSHMEM"},
    }
    assert script_of(found["libnvshmem_host.so.3"]) == "NVSHMEM { global: nvshmem_init; };\n"
    assert "long cudaMalloc() { return 100; }" in source_of(found["libcudart.so.13"])
