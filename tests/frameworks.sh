#!/usr/bin/env bash
# Installs the wheel beside the newest release of each framework that it is used with, into an empty
# environment each. `pip check` has to find no conflict, the framework has to be the newest one, and a
# program that uses both has to work (tests/versions/beside.py).
#
#   tests/frameworks.sh [PYTHON [FRAMEWORK...]]     such as tests/frameworks.sh python3.12 lightning nemo
#
# torch is the one in constraints.txt, without NVIDIA's libraries (tests/versions/torch_alone.sh).
#
# uv installs, because pip takes minutes; pip checks.
#
#   TORCH=VERSION   another torch
#   DIST=FOLDER     the wheel in this folder, and not a new one
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}
shift $(($# > 0))
declare -A asked=(
    [lightning]='lightning'
    [transformers]='transformers accelerate'
    [torchtitan]='torchtitan'
    [nemo]='nemo-toolkit[core]'
    [webdataset]='webdataset'
)
chosen=("$@")
((${#chosen[@]})) || chosen=(webdataset lightning transformers torchtitan nemo)
torch=${TORCH:-$(sed -n 's/^torch==//p' constraints.txt)}
export PIP_CONSTRAINT=/dev/null PIP_DISABLE_PIP_VERSION_CHECK=1 # pip's configuration may cap torch
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

fail() {
    echo "frameworks: $1" >&2
    exit 1
}

"$python" -m venv "$place/build"
dist=$(realpath "${DIST:-$place/dist}")
"$place/build/bin/python" -m pip install --quiet hatchling uv
uv=$place/build/bin/uv
if [[ -z ${DIST:-} ]]; then
    "$place/build/bin/python" -m hatchling build -t wheel -d "$dist" >/dev/null 2>&1
fi
wheel=$(echo "$dist"/hpckit_torch-*.whl)

# newest REQUIREMENT: NAME==VERSION of the newest release that the index has
newest() {
    local name=${1%%\[*}
    "$place/build/bin/python" -m pip index versions "$name" 2>/dev/null |
        sed -n '1s/^\(\S*\) (\(.*\))$/\1==\2/p'
}

for name in "${chosen[@]}"; do
    [[ -n ${asked[$name]:-} ]] || fail "no framework $name; there are ${!asked[*]}"
    began=$SECONDS environment=$place/$name
    "$python" -m venv "$environment"
    UV=$uv tests/versions/torch_alone.sh "$environment" "$torch"
    "$environment/bin/python" -m pip freeze | grep '^torch==' >"$place/torch"
    read -ra words <<<"${asked[$name]}"
    "$uv" pip install --quiet --python "$environment/bin/python" --constraint "$place/torch" \
        "${wheel}[launcher]" "${words[@]}" || fail "$name cannot be installed beside it"
    "$environment/bin/python" -m pip check || fail "conflicts beside $name"
    for word in "${words[@]}"; do
        wanted=$(newest "$word")
        "$environment/bin/python" -m pip freeze | tr _ - | grep -iqx "${wanted//_/-}" ||
            fail "$wanted was not installed, but an older one"
    done
    took=$((SECONDS - began))
    (cd "$place" && env -u PYTHONPATH "$environment/bin/python" -P "$OLDPWD/tests/versions/beside.py" \
        "$name" "$place/$name-files") || fail "the program that uses $name failed"
    count=$("$environment/bin/python" -m pip list --format freeze | wc -l)
    echo "frameworks: $(newest "${words[0]}"), $("$python" -V): no conflict, works;" \
        "$count packages, $(du -sm "$environment" | cut -f1) MB, installed in $took s"
    rm -rf "$environment"
done
