#!/bin/sh
have=$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d' ' -f2); case "$have" in 2.3[6-9]*|2.[4-9][0-9]*|[3-9].*) ;; *) echo "run.sh: glibc 2.36 or newer is needed, this machine has ${have:-none}" >&2; exit 2 ;; esac

# Checks and measures Prelude on this machine's GPU. Nothing is built or installed, no setting of
# the GPU is changed. Each part ends by itself; what it found is in DIR at every moment.
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd) || exit 2
usage() {
    cat <<TEXT
usage: ./run.sh [--parts a,b] [--out DIR] [--seconds N] [--total N] [--models DIR] [--device N] [--smoke]

  --parts    $(paste -sd ' ' "$here/parts.txt"); all, in this order
  --out      where results go; default ./results. A run of the same bundle and GPU goes on there:
             the parts that are named are done anew, the others' results are kept
  --seconds  longest that one part may take, 5 to 565; default 540. With the 30 s in which
             a part that hangs is ended, the default fits into a batch job of ten minutes
  --total    longest that the whole run may take, 60 to 86400; default: as long as all parts do.
             The parts share it by what they need; one that is not reached is a SKIP
  --models   where random checkpoints (up to 14 GB) and compiled kernels are made and found again;
             must be outside DIR, which is carried home; default: DIR-models, beside it
  --device   which GPU; default 0
  --smoke    without a GPU: emulated kernels, tiny shapes, no times (needs g++)

It takes a driver of version 580 or later and glibc 2.36. cuBLASLt is looked for in the folders
that PRELUDE_CUDA_LIBS names (separated by :), by the loader, in python3's packages (torch brings
it) and in /usr/local/cuda*. python3 with torch and transformers, nvcc, nvidia-smi and
compute-sanitizer are used if they are there; what lacks one says SKIP. Part rivals measures vLLM
too if PRELUDE_RIVAL_VLLM names a folder of its packages (pip install --target).

A part that says nothing for 120 s, or does not end, is ended and a FAIL; what it had found by
then is kept, and the next part goes on.
DIR has gpu.json (everything), table.txt (what matters), log.txt (as it went) and, from part gemm,
gemm-plans.json, which parts model and serve then use. Keep them: cargo xtask gpu import DIR.
The exit status is 0 if nothing was wrong, 1 if a check failed or a part was lost, 2 if nothing
could begin.

In one command of 600 s:  ./run.sh --total 590 --parts env,kernels,parity
then, with the same DIR:  --parts gemm,attn,model   --parts serve,invariance,hopper   --parts rivals
Part rivals compares with what part serve found in the same DIR.
TEXT
}

refuse() {
    echo "run.sh: $1" >&2
    usage >&2
    exit 2
}

# NAME VALUE LEAST MOST
number() {
    case "$2" in '' | *[!0-9]* | ??????*) refuse "$1 takes a number of $3 to $4, not \`$2\`" ;; esac
    [ "$2" -ge "$3" ] && [ "$2" -le "$4" ] || refuse "$1 takes a number of $3 to $4, not $2"
}

out=./results parts= seconds=540 total= models= device=0 smoke= cache=
while [ $# -gt 0 ]; do
    case "$1" in
        -h | --help) usage; exit 0 ;;
        --smoke) smoke=--smoke; shift; continue ;;
        --parts | --out | --seconds | --total | --models | --device | --emu-cache) ;;
        *) refuse "there is no option \`$1\`" ;;
    esac
    [ $# -ge 2 ] && [ -n "$2" ] || refuse "$1 needs a value"
    case "$1" in
        --parts) parts=$2 ;;
        --out) out=$2 ;;
        --seconds) seconds=$2 ;;
        --total) total=$2 ;;
        --models) models=$2 ;;
        --device) device=$2 ;;
        --emu-cache) cache=$2 ;;
    esac
    shift 2
done
number --seconds "$seconds" 5 565
[ -z "$total" ] || number --total "$total" 60 86400
number --device "$device" 0 999
for part in $(printf %s "$parts" | tr ',' ' '); do
    grep -qxF -e "$part" "$here/parts.txt" || refuse "there is no part \`$part\`"
done
case "${models%/}/" in /) ;; "${out%/}"/*) refuse "--models must be outside the folder of results, $out" ;; esac
[ -x "$here/gpu-check" ] || refuse "$here/gpu-check is missing: is this the whole bundle?"

set -- run --home "$here" --out "$out" --seconds "$seconds" --device "$device"
[ -z "$parts" ] || set -- "$@" --parts "$parts"
[ -z "$total" ] || set -- "$@" --total "$total"
[ -z "$models" ] || set -- "$@" --models "$models"
[ -z "$cache" ] || set -- "$@" --emu-cache "$cache"
[ -z "$smoke" ] || set -- "$@" "$smoke"
exec "$here/gpu-check" "$@"
