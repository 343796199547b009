#!/usr/bin/env bash
# Installs torch into an environment, without NVIDIA's libraries:
#
#   tests/versions/torch_alone.sh ENVIRONMENT TORCH
#
# Where the package index has only builds for CUDA, stubs take the place of these libraries
# (tests/versions/cuda_stubs.py), which needs gcc and binutils. The wheel no longer asks for them, so
# that `pip check` finds nothing missing.
#
#   UV=COMMAND   uv, with which it is installed if it is there; else pip
set -euo pipefail
environment=$1 torch=$2
uv=${UV:-uv}
cd "$(dirname "$0")/../.."
if command -v "$uv" >/dev/null; then
    # uv does not know pip's settings: folders with builds of torch may be among them
    "$uv" pip install --quiet --python "$environment/bin/python" --no-deps \
        ${PIP_FIND_LINKS:+--find-links "$PIP_FIND_LINKS"} "torch==$torch"
else
    "$environment/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps "torch==$torch"
fi
packages=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
sed -i -E '/^Requires-Dist: (nvidia|cuda|triton|pytorch-triton)/d' "$packages"/torch-*.dist-info/METADATA
if [[ -e $packages/torch/lib/libtorch_cuda.so ]]; then
    "$environment/bin/python" -m tests.versions.cuda_stubs "$packages/torch"
fi
