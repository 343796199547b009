#!/usr/bin/env bash
# Runs what depends on torch with another version of torch and of Python, in an environment that is
# made for it and removed afterwards:
#
#   tests/versions.sh TORCH PYTHON [PYTEST ARGUMENTS]       such as tests/versions.sh 2.7.1 3.12
#
# The last line says how it went, for the table in docs/versions.md. On x86-64 the package index has
# only builds of torch for CUDA. Of these the wheel alone is installed, with stubs in place of
# NVIDIA's libraries (tests/versions/cuda_stubs.py): 1.3 to 2 GB on disk, not 6. It needs gcc and
# binutils.
#
#   LEVEL=full   also all unit tests of checkpointing, of data and of hpckit's trainer
#   KEEP=1       keep the environment for the next run
#   TORCH_BUILDS=FOLDER   where environments are made (~/.cache/hpckit/versions)
#   UV=COMMAND   uv, with which packages are installed if it is there; else pip
set -euo pipefail

if (($# < 2)); then
    sed -n '2,/^set /{s/^# \{0,1\}//;/^set/!p}' "$0"
    exit 2
fi
torch=$1 version=$2
shift 2
cd "$(dirname "$0")/.."
builds=${TORCH_BUILDS:-${XDG_CACHE_HOME:-$HOME/.cache}/hpckit/versions}
uv=${UV:-uv}
export UV=$uv PIP_CONSTRAINT=/dev/null # pip's configuration here may cap torch

if ! python=$(tests/versions/find_python.sh "$version"); then
    echo "torch $torch, Python $version: left out, no interpreter here"
    exit 3
fi
fingerprint=$("$python" -V && cat pyproject.toml constraints.txt tests/versions/{cuda_stubs.py,torch_alone.sh} | sha256sum)
environment=$builds/torch-$torch-py$version
trap '[[ -n ${KEEP:-} ]] || rm -rf "$environment"' EXIT

install() {
    if command -v "$uv" >/dev/null; then
        "$uv" pip install --quiet --python "$environment/bin/python" "$@"
    else
        "$environment/bin/python" -m pip --disable-pip-version-check install --quiet "$@"
    fi
}

if [[ $(cat "$environment/ready" 2>/dev/null) != "$fingerprint" ]]; then
    rm -rf "$environment"
    mkdir -p "$builds"
    "$python" -m venv "$environment"
    echo "installing torch $torch for Python $version in $environment" >&2
    tests/versions/torch_alone.sh "$environment" "$torch"
    # Pins are of the Python that the tests use most; others take what there is for them
    "$environment/bin/python" - >"$environment/asked" <<'END'
import tomllib

project = tomllib.load(open("pyproject.toml", "rb"))["project"]
extras = project["optional-dependencies"]
of_dev = extras["dev"][0].partition("[")[2].rstrip("]").split(",")
asked = [*project["dependencies"], *(text for name in (*of_dev, "dev") for text in extras[name])]
print("\n".join(text for text in asked if not text.startswith(("hpckit-torch", "torch>="))))
END
    # An older torch may need an older release of what it requires, such as setuptools
    "$environment/bin/python" - >"$environment/constraints" <<'END'
import re
from importlib.metadata import requires

of_torch = {"torch", *(re.split("[^\\w.-]", text)[0].lower() for text in requires("torch") or ())}
for line in open("constraints.txt"):
    if line.partition("==")[0].lower().replace("_", "-") not in of_torch:
        print(line, end="")
END
    case $version in
        3.11) pins=(--constraint "$environment/constraints") ;;
        *) pins=() ;;
    esac
    # torch is there already, and no other version of it may come with what else is asked for
    echo "torch==$("$environment/bin/python" -c 'from importlib.metadata import version as v; print(v("torch"))')" \
        >"$environment/torch"
    install "${pins[@]}" --constraint "$environment/torch" --requirement "$environment/asked"
    install --no-deps torchtitan spmd_types
    echo "$fingerprint" >"$environment/ready"
fi

tests=(
    tests/unit/project/test_torch_internals.py tests/unit/checkpointing/layout
    tests/unit/hpckit/trainer/parallel tests/unit/hpckit/trainer/torchrun
    tests/unit/data/read/test_device_transfer.py
    tests/integration/checkpoint/test_ranks.py::test_fsdp2_state_is_bit_identical_on_any_world_size
    tests/integration/project/test_demo.py
)
if [[ ${LEVEL:-} == full ]]; then
    tests+=(tests/unit/checkpointing tests/unit/data tests/unit/hpckit/trainer)
fi
# The command `hpckit`, which some tests start, beside the interpreter
printf '#!%s\nfrom hpckit.cli import main\nmain()\n' "$environment/bin/python" >"$environment/bin/hpckit"
chmod +x "$environment/bin/hpckit"

status=0
said=$(mktemp)
PYTHONPATH=$PWD "$environment/bin/python" -m pytest -q "${tests[@]}" "$@" |
    tee "$said" || status=$?
echo "torch $torch, Python $("$environment/bin/python" -V | cut -d' ' -f2): $(tail -n 1 "$said")"
rm -f "$said"
exit "$status"
