#!/bin/sh
# Runs what depends on a GPU once, in less than 10 minutes and 20 GB, and prints what it has measured
# with the name of the card: on one node with all of its GPUs. benchmarks/README.md describes it.
#
#   benchmarks/gpu.sh [--device auto|cpu|cuda] [--ranks N] [--folder DIR] [--only STEP,...] [--limit S]
#
# Everything that is printed is also in benchmarks/results/gpu-CARD.txt. The exit status is 1 if a step
# has failed or took longer than --limit, by default a limit of its own; all of them together are 580 s.
# --device cpu runs the same steps on two CPU ranks, with less of everything and without torch.compile.
set -eu

steps="saves collectives checkpoint precision profile campaign"
device=auto ranks='' parent=${TMPDIR:-/tmp} only=$steps limit=''
# limit_of STEP: its seconds; a campaign starts the processes of six generations, one after the other
limit_of() {
    case $1 in
        saves) echo 120 ;;
        collectives | checkpoint) echo 60 ;;
        precision | profile) echo 100 ;;
        campaign) echo 140 ;;
    esac
}
limits() {
    told=
    for step in $steps; do told="$told${told:+, }$step $(limit_of "$step")"; done
    echo "$told"
}
describe() {
    echo "usage: benchmarks/gpu.sh [--device auto|cpu|cuda] [--ranks N] [--folder DIR] [--only STEP,...] [--limit S]"
    echo "steps: $steps"
    echo "limit: seconds after which a step is ended, by default $(limits)"
}
usage() {
    echo "gpu.sh: $1" >&2
    describe >&2
    exit 2
}
case ${1-} in -h | --help)
    describe
    exit 0
    ;;
esac
while [ $# -gt 0 ]; do
    [ $# -gt 1 ] || usage "$1: a value is missing, or it is not an option"
    case $1 in
        --device) device=$2 ;;
        --ranks) ranks=${2:-none} ;;
        --folder) parent=$2 ;;
        --only) only=$(echo "$2" | tr ',' ' ') ;;
        --limit) limit=${2:-none} ;;
        *) usage "$1 is not an option" ;;
    esac
    shift 2
done
case $device in auto | cpu | cuda) ;; *) usage "--device: $device is not one of auto, cpu, cuda" ;; esac
case $ranks in *[!0-9]* | 0) usage "--ranks: $ranks is not a number of ranks" ;; esac
case $limit in *[!0-9]* | 0) usage "--limit: $limit is not a number of seconds" ;; esac
for step in $only; do
    case " $steps " in *" $step "*) ;; *) usage "--only: $step is not a step" ;; esac
done
[ -d "$parent" ] || usage "--folder: $parent is not a folder"
parent=$(cd "$parent" && pwd)

cd "$(dirname "$0")/.."
python=${PYTHON:-$PWD/.venv/bin/python}
[ -x "$python" ] || usage "there is no $python: make setup creates it, or PYTHON names another one"
# The number of GPUs, whether the first one has fp8, and its name.
gpus=$("$python" -c '
import torch
n = torch.cuda.device_count()
print(n, int(n and torch.cuda.get_device_capability() >= (8, 9)), torch.cuda.get_device_name() if n else "CPU")')
count=${gpus%% *} rest=${gpus#* }
has_fp8=${rest%% *} card=${rest#* }
if [ "$device" = auto ]; then
    if [ "$count" -gt 0 ]; then device=cuda; else device=cpu; fi
fi
if [ "$device" = cuda ]; then
    [ "$count" -gt 0 ] || usage "--device cuda: torch finds no GPU on this machine"
    ranks=${ranks:-$count}
    [ "$ranks" -le "$count" ] || usage "--ranks: this machine has $count GPUs"
    mib=1024 sizes=64KiB,16MiB,256MiB fraction=0.05 model=gpt_small batch=16 samples=256 compile=--compile
    precisions=fp32,bf16
    [ "$has_fp8" = 0 ] || precisions=$precisions,fp8
else
    card=CPU ranks=${ranks:-2}
    mib=64 sizes=64KiB,1MiB fraction=0.001 model=gpt_nano batch=8 samples=8 compile=--no-compile
    precisions=fp32,bf16
fi

folder=$(mktemp -d "$parent/hpckit-gpu-XXXXXX")
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM
mkdir -p benchmarks/results
record=benchmarks/results/gpu-$(echo "$card" | tr -c 'A-Za-z0-9\n' '-').txt
: >"$record"
tell() { echo "$*" | tee -a "$record"; }

failed=
# measure STEP COMMAND...: runs the command, unless --only leaves it out, for at most its limit
measure() {
    name=$1
    shift
    case " $only " in *" $name "*) ;; *) return 0 ;; esac
    tell "== $card, $ranks ranks: $name"
    begun=$(date +%s) status=0 seconds=${limit:-$(limit_of "$name")}
    timeout -k 5 "$seconds" "$python" -m "$@" >"$folder/$name.log" 2>&1 || status=$?
    tee -a "$record" <"$folder/$name.log"
    [ "$status" = 0 ] || failed="$failed $name"
    [ "$status" != 124 ] || tell "== $name: ended after its limit of $seconds s: --limit gives it more"
    tell "== $name: exit status $status after $(($(date +%s) - begun)) s"
}

where="cluster.device=$device launch.nproc_per_node=$ranks root=$folder/runs"
each="train.micro_batch=$batch train.global_batch=$((batch * ranks))" # any number of ranks divides it
# shellcheck disable=SC2086 # several words
{
    # pinned staging, the copies on a side stream, samples and fingerprints on the device
    measure saves benchmarks.device.device_saves --device "$device" --mib $mib --rounds 3 --folder "$folder"
    # NCCL
    measure collectives hpckit bench collectives $where --sizes $sizes --seconds 0.05
    # DTensors of all ranks through the service, and back
    measure checkpoint hpckit bench mlperf-checkpoint $where --scale 8b --fraction $fraction --times 2 --store "$folder/store"
    # bf16 and fp8
    measure precision hpckit bench precision $where model=$model $each --precisions $precisions --epochs 1 --epoch-samples $((samples * ranks)) --no-batches
    # torch.compile, and times of kernels
    measure profile hpckit bench profile $where $each $compile --steps 1
    # forked workers, a restart in place, a hang with the flight recorder, preemption
    printf '{"step": %s, "kind": "%s", "target": 0.9}\n' 20 worker 50 hang 80 preempt >"$folder/faults.jsonl"
    measure campaign hpckit drill campaign --minutes 0.4 --replay "$folder/faults.jsonl" --folder "$folder/campaign" \
        "cluster.device=$device" launch.nodes=1 "launch.nproc_per_node=$ranks" "train.global_batch=$((12 * ranks))"
}
if [ -n "$failed" ]; then
    tell "failed:$failed"
    exit 1
fi
tell "all steps have ended without an error; this is in $record"
