#!/usr/bin/env bash
# Builds the wheel and the sdist of a release into dist/, and checks what is installed from these two
# files: with each Python that the metadata names (tests/installs.sh), and beside the newest release
# of each framework (tests/frameworks.sh). If a check fails, there is no dist/.
#
#   tests/release.sh [PYTHON_VERSION...]      such as tests/release.sh 3.12 3.13; all, by default
#
#   PYTHON=COMMAND   which Python builds them, and is used beside the frameworks
#
# The tests of each torch are not among them: tests/versions.sh
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
versions=("$@")
((${#versions[@]})) ||
    mapfile -t versions < <(sed -n 's/.*"Programming Language :: Python :: \(3\.[0-9]*\)".*/\1/p' pyproject.toml)
[[ -z $(git status --porcelain) ]] || {
    echo "release: commit or remove what git status lists: a release is made of a commit" >&2
    exit 1
}

rm -rf dist
place=$(mktemp -d)
passed=
trap 'rm -rf "$place"; [[ -n $passed ]] || rm -rf dist' EXIT
"$python" -m venv "$place/build"
"$place/build/bin/python" -m pip --disable-pip-version-check install --quiet hatchling
"$place/build/bin/python" -m hatchling build -d dist
for version in "${versions[@]}"; do
    DIST=dist tests/installs.sh "$(tests/versions/find_python.sh "$version")"
done
DIST=dist tests/frameworks.sh "$python"
passed=yes
ls -l dist
