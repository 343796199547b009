#!/bin/bash
# A run in an allocation of your own, followed in this terminal; Ctrl-C saves and stops it:
#
#   slurm/interactive.sh --nodes=2 --gpus-per-node=4 --time=01:00:00 -- experiment=gpt train.steps=100
#
# Start it from the project's folder. What is before -- goes to salloc, the rest is launch.py's. The
# interpreter is HPCKIT_PYTHON, or that of .venv.
set -eu

options=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    options+=("$1")
    shift
done
if [ $# -eq 0 ]; then
    echo "usage: $0 [OPTIONS OF SALLOC] -- [GROUP=OPTION ...] [KEY=VALUE ...]" >&2
    exit 2
fi
shift
python=${HPCKIT_PYTHON:-.venv/bin/python}
if ! command -v "$python" >/dev/null; then
    echo "error: there is no $python in $PWD: go to the project's folder, or set HPCKIT_PYTHON" >&2
    exit 2
fi
exec salloc --job-name=hpckit "${options[@]}" \
    "$python" -u -m hpckit.supervisor.user_job --interactive "$@"
