#!/bin/sh
have=$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d' ' -f2); case "$have" in 2.3[6-9]*|2.[4-9][0-9]*|[3-9].*) ;; *) echo "run.sh: glibc 2.36 or newer is needed, this machine has ${have:-none}" >&2; exit 2 ;; esac

# Checks and measures Prelude on this machine's GPU. Nothing is built or installed, no setting of
# the GPU is changed. Each part ends by itself; what it found is in DIR at every moment.
usage() {
    cat <<'TEXT'
usage: ./run.sh [--parts a,b] [--out DIR] [--seconds N] [--models DIR] [--device N] [--smoke]

  --parts    env kernels parity gemm attn model serve invariance sanitize; all, in this order
  --out      where results go; default ./results. Keep gpu.json, table.txt, log.txt
  --seconds  longest that one part may take, 5 to 600; default 540
  --models   where random checkpoints are made (up to 14 GB); default: beside DIR
  --device   which GPU; default 0
  --smoke    without a GPU: emulated kernels, tiny shapes, no times (needs g++)

In one run only: --parts env,kernels,parity first, then gemm,attn,model, then the rest.
TEXT
}

refuse() {
    echo "run.sh: $1" >&2
    usage >&2
    exit 2
}

here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd) || exit 2
out=./results parts= seconds=540 models= device=0 smoke= cache=
while [ $# -gt 0 ]; do
    case "$1" in
        -h | --help) usage; exit 0 ;;
        --smoke) smoke=--smoke; shift; continue ;;
        --parts | --out | --seconds | --models | --device | --emu-cache) ;;
        *) refuse "there is no option \`$1\`" ;;
    esac
    [ $# -ge 2 ] && [ -n "$2" ] || refuse "$1 needs a value"
    case "$1" in
        --parts) parts=$2 ;;
        --out) out=$2 ;;
        --seconds) seconds=$2 ;;
        --models) models=$2 ;;
        --device) device=$2 ;;
        --emu-cache) cache=$2 ;;
    esac
    shift 2
done
case "$seconds" in *[!0-9]* | ?????*) refuse "--seconds takes a number of 5 to 600, not \`$seconds\`" ;; esac
[ "$seconds" -ge 5 ] && [ "$seconds" -le 600 ] || refuse "--seconds takes a number of 5 to 600, not $seconds"
case "$device" in *[!0-9]* | ????*) refuse "--device takes a number, not \`$device\`" ;; esac
for part in $(printf %s "$parts" | tr ',' ' '); do
    case "$part" in
        env | kernels | parity | gemm | attn | model | serve | invariance | sanitize) ;;
        *) refuse "there is no part \`$part\`" ;;
    esac
done
[ -x "$here/gpu-check" ] || refuse "$here/gpu-check is missing: is this the whole bundle?"

set -- run --home "$here" --out "$out" --seconds "$seconds" --device "$device"
[ -z "$parts" ] || set -- "$@" --parts "$parts"
[ -z "$models" ] || set -- "$@" --models "$models"
[ -z "$cache" ] || set -- "$@" --emu-cache "$cache"
[ -z "$smoke" ] || set -- "$@" "$smoke"
exec "$here/gpu-check" "$@"
