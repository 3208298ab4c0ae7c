#!/usr/bin/env bash
# Measures the trainer alone on a machine that has an NVIDIA GPU for minutes: no cluster, no data, nothing built there.
#
#   benchmarks/gpu-trainer.sh --pack FILE.tar.gz    builds here, and packs all that is needed there
#   ./gpu-trainer.sh FOLDER                         measures there, in the unpacked archive
#   benchmarks/gpu-trainer.sh --dry-run             checks the scripts, and prints what would run and for how long at most
#
# FOLDER gets a file of JSON lines for each part as soon as a case is done, its log, and report.md in the end. A part that
# hangs or fails costs its own time limit; all of them together are six minutes. PyTorch must be installed: its wheels
# bring CUDA's libraries. VOLLEY_PYTHON names the Python that has it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
files=(training_gpu.py reference_network.py rossmann_rows.py protocol.py)
# Seconds that all parts may take together.
most=360

# The parts: NAME, SECONDS and what is measured. `part` runs one, or in a dry run prints it.
measure() {
  volley compare 45 --batch "$batches" --precision "$precisions" --compare
  volley volley 75 --batch "$batches" --precision "$precisions"
  peers eager 45
  peers graph 45
  volley ensemble 20 --network default-ensemble --batch 128 --rows 4096 --precision "$precisions"
  part ensemble-cpu 15 ./volley-train --device cpu --network default-ensemble --batch 128 --rows 4096
  # It compiles each case: the part that takes longest comes last, and no bar is against it.
  peers compile 110
}

volley() { part "$1" "$2" ./volley-train --device cuda:0 "${@:3}"; }

# peers FORM SECONDS: small batches first, so that a limit costs the largest.
peers() {
  local batch steps precision
  for batch in ${batches//,/ }; do
    # As many steps as volley-train makes.
    steps=$((batch <= 256 ? 300 : batch <= 2048 ? 80 : batch <= 16384 ? 20 : 6))
    for precision in ${precisions//,/ }; do
      echo "{\"form\":\"$1\",\"precision\":\"$precision\",\"batch\":$batch,\"rows\":$((steps * batch)),\"epochs\":4}"
    done
  done | part "peer-$1" "$2" "$python" training_gpu.py
}

batches=100,1024,8192,65536
precisions=f32,tf32,bf16
python=${VOLLEY_PYTHON:-python3}

if [ "${1:-}" = --dry-run ] && [ $# = 1 ]; then
  bash -n "$0"
  for file in "$here/gpu-report.py" "${files[@]/#/$here/peers/}"; do
    "$python" -c 'import ast, sys; ast.parse(open(sys.argv[1]).read(), sys.argv[1])' "$file"
  done
  part() {
    case $1 in peer-*) echo "$1: $2 s: ${*:3}, $(wc -l) cases" ;; *) echo "$1: $2 s: ${*:3}" ;; esac
  }
  parts=$(measure)
  echo "$parts"
  seconds=$(awk '{ sum += $2 } END { print sum }' <<<"$parts")
  echo "at most $seconds s, of $most s"
  [ "$seconds" -le "$most" ]
  exit
fi
if [ "${1:-}" = --pack ] && [ $# = 2 ]; then
  archive=$(realpath "$2")
  cd "$here/.."
  cargo build --release --locked -p volley-trainer --bin volley-train
  tar --create --auto-compress --file "$archive" \
    -C "$here" gpu-trainer.sh gpu-report.py \
    -C "$here/peers" "${files[@]}" \
    -C "$(realpath "${CARGO_TARGET_DIR:-target}")/release" volley-train
  ls -l "$archive"
  exit
fi
if [ $# != 1 ] || [[ $1 = -* ]]; then
  sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
mkdir -p "$1"
out=$(realpath "$1")
cd "$here"
export PYTHONDONTWRITEBYTECODE=1

# CUDA's libraries and headers, as PyTorch's wheels have them.
wheels=$("$python" -c 'import glob, sys; print(*(p for s in sys.path for p in glob.glob(s + "/nvidia/*/")), sep="\n")')
for wheel in $wheels; do
  if [ -d "${wheel}lib" ]; then
    LD_LIBRARY_PATH="${wheel}lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  fi
  if [ -e "${wheel}include/cuda_runtime.h" ]; then
    : "${CUDA_PATH:=${wheel%/}}"
  fi
done
export LD_LIBRARY_PATH CUDA_PATH

# part NAME SECONDS COMMAND…: its standard input is the command's.
part() {
  local name=$1 limit=$2 sampler status=0 began=$SECONDS
  shift 2
  nvidia-smi --id=0 --query-gpu=utilization.gpu --format=csv,noheader,nounits --loop-ms=200 \
    >"$out/$name.busy" 2>/dev/null </dev/null &
  sampler=$!
  timeout --kill-after=5 "$limit" "$@" >"$out/$name.jsonl" 2>"$out/$name.log" || status=$?
  kill "$sampler" 2>/dev/null || true
  wait "$sampler" 2>/dev/null || true
  echo "$name: status $status, $((SECONDS - began)) of $limit s, $(wc -l <"$out/$name.jsonl") cases" |
    tee -a "$out/parts.txt"
}

if ! nvidia-smi --id=0 --query-gpu=name,driver_version --format=csv,noheader >"$out/machine.txt"; then
  echo "error: this machine has no NVIDIA GPU that nvidia-smi finds" >&2
  exit 1
fi
report() { "$python" gpu-report.py "$out" | tee "$out/report.md"; }
trap report EXIT

{ echo "$(nproc) cores"; sed -n 's/^model name.*: //p' /proc/cpuinfo | uniq; "$python" -c 'import torch; print("PyTorch", torch.__version__)'; } \
  >>"$out/machine.txt" || true
rm -f "$out/parts.txt"
measure
