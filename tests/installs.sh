#!/usr/bin/env bash
# Checks what pip and uv install: the wheel and the sdist in empty environments, the packages without
# the launcher, the launcher beside another project's `hpckit`, and the types for a user's mypy and
# pyright.
#
#   tests/installs.sh [PYTHON]       such as tests/installs.sh python3.12
#
# It does not install torch: of the launcher it takes what torch does not need.
#
#   DIST=FOLDER       the wheel and the sdist in this folder, and not new ones
#   UV=COMMAND        another uv than the newest one of the package index
#   PYRIGHT=COMMAND   pyright, which checks the types too, if it is there
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}
pyright=${PYRIGHT:-pyright}
checked="pip, uv"
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

fail() {
    echo "installs: $1" >&2
    exit 1
}

# make_environment NAME: an empty one, with pip
make_environment() {
    "$python" -m venv "$place/$1"
}

# install NAME WORDS...
install() {
    local name=$1
    shift
    "$place/$name/bin/python" -m pip --disable-pip-version-check install --quiet "$@"
}

# inside NAME WORDS...: a command of an environment, far from the checkout
inside() {
    local name=$1
    shift
    (cd "$place" && env -u PYTHONPATH "$place/$name/bin/$1" "${@:2}")
}

make_environment build
install build hatchling uv
uv=${UV:-$place/build/bin/uv}
dist=$(realpath "${DIST:-$place/dist}")
[[ -n ${DIST:-} ]] || "$place/build/bin/python" -m hatchling build -d "$dist" >/dev/null 2>&1
wheel=$(echo "$dist"/hpckit_torch-*.whl)
sdist=$(echo "$dist"/hpckit_torch-*.tar.gz)

# check_packages NAME: that an environment has what the packages need, and they can be imported
check_packages() {
    inside "$1" python -m pip check
    inside "$1" python -c 'import checkpointing, data, hpckit.client'
}

make_environment wheel
install wheel "$wheel"
check_packages wheel
for file in "$wheel" "$sdist"; do
    rm -rf "$place/uv"
    make_environment uv
    "$uv" pip install --quiet --python "$place/uv/bin/python" "$file"
    check_packages uv
done
make_environment light
install light "$sdist"
check_packages light
inside light python - <<'END'
import sys
from pathlib import Path

import checkpointing
import data

for n in range(4):
    Path(f"texts/{n}.txt").parent.mkdir(exist_ok=True)
    Path(f"texts/{n}.txt").write_text(f"text {n}")
data.pack_folder(Path("texts"), Path("shards"))
loader = data.Loader(data.open_dataset("shards"), global_batch=4, rank=0, world_size=1)
assert len(next(iter(loader)).data) == 4
assert checkpointing.Store and checkpointing.list_checkpoints
assert not {"torch", "obstore", "pydantic", "hydra"} & set(sys.modules)
try:
    data.open_dataset("s3://bucket/a.tar")
except data.DataError as error:
    assert "pip install obstore" in str(error), error
END
said=$(inside light hpckit status 2>&1) && fail "the command succeeds without the launcher"
[[ $said == *"hpckit-torch[launcher]"* && $said != *Traceback* ]] || fail "$said"

# says WORDS: whether the text on standard input has them; it reads all of it
says() {
    grep -F -- "$1" >/dev/null
}

# A user's own program, by the types of the wheel
install light mypy
cp tests/versions/typed_program.py "$place/right.py"
echo 'from checkpointing import Checkpointer
from data import Loader
Checkpointer("a", runs="a")
Loader.state_dicts' >"$place/wrong.py"
inside light mypy --strict right.py
wrong=$(inside light mypy --strict wrong.py) && fail "mypy finds no error in a wrong program"
says 'has no attribute "state_dicts"' <<<"$wrong" || fail "no types: $wrong"
says 'wrong.py:3: error: No overload variant' <<<"$wrong" || fail "no options: $wrong"
checked+=", mypy"
if command -v "$pyright" >/dev/null; then
    its=("$pyright" --pythonpath "$place/light/bin/python")
    (cd "$place" && "${its[@]}" right.py) || fail "pyright finds errors"
    wrong=$(cd "$place" && "${its[@]}" wrong.py) && fail "pyright finds no error in a wrong program"
    says 'wrong.py:4:8 - error: Cannot access attribute "state_dicts"' <<<"$wrong" || fail "$wrong"
    checked+=", pyright"
fi

# Another project's hpckit, installed after this one and before it, and uninstalled
install light --no-deps hpckit
inside light python -c 'import data, checkpointing'
{ inside light hpckit status 2>&1 || true; } | says 'of another project' ||
    fail "the command does not name it"
install light --no-deps --force-reinstall "$wheel"
inside light python -c 'import hpckit; hpckit.__version__' 2>&1 | says 'of another project' ||
    fail "the import does not name it"
inside light python -m pip uninstall --quiet --yes hpckit
install light --no-deps --force-reinstall "$wheel"
[[ $(inside light python -c 'import hpckit; print(hpckit.__version__)' 2>&1) =~ ^[0-9.]+$ ]] ||
    fail "it was not repaired"

make_environment launcher
"$place/build/bin/python" - "$wheel" >"$place/asked" <<'END'
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as packed:
    name = next(one for one in packed.namelist() if one.endswith(".dist-info/METADATA"))
    head = packed.read(name).decode().partition("\n\n")[0]
for line in head.splitlines():
    text, _, marker = line.removeprefix("Requires-Dist: ").partition("; ")
    if line.startswith("Requires-Dist: ") and marker in ("", "extra == 'launcher'"):
        if not text.startswith("torch"):
            print(text)
END
install launcher --requirement "$place/asked"
install launcher --no-deps "$wheel"
inside launcher python -m pip check
inside launcher hpckit --version
inside launcher hpckit --help >/dev/null
inside launcher python -m hpckit launch --help >/dev/null
echo "installs: passed with $("$python" -V): $checked"
