#!/usr/bin/env bash
# Prints the path of an interpreter: on the path, one of pyenv's, or one of another release of Debian
# (tests/versions/debian_python.py).
#
#   tests/versions/find_python.sh VERSION      such as tests/versions/find_python.sh 3.12
set -euo pipefail
version=$1
cd "$(dirname "$0")/../.."

is_of_version() {
    "$1" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" 2>/dev/null
}
for candidate in "python$version" "$HOME"/.pyenv/versions/"$version"*/bin/python; do
    if is_of_version "$candidate"; then
        command -v "$candidate"
        exit
    fi
done
found=$(python3 -m tests.versions.debian_python "$version" | tail -n 1) || true
if [[ -z $found ]]; then
    echo "there is no Python $version here" >&2
    exit 3
fi
echo "$found"
