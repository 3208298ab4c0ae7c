#!/usr/bin/env bash
# Builds Volley and measures training on this machine's NVIDIA GPU.
#
#   benchmarks/gpu.sh DATA [further arguments of `volley-benchmarks gpu`]
#
# DATA is the folder of the seven Rossmann tables. CUDA's run-time compiler (NVRTC) and cuBLAS must be installed.
set -euo pipefail

if [ $# -lt 1 ]; then
  echo "usage: $0 DATA [ARGUMENTS]" >&2
  exit 2
fi
data=$(realpath "$1")
shift
if ! nvidia-smi --list-gpus >&2; then
  echo "error: this machine has no NVIDIA GPU that nvidia-smi finds" >&2
  exit 1
fi
cd "$(dirname "$0")/.."
cargo build --release --workspace
exec "${CARGO_TARGET_DIR:-target}/release/volley-benchmarks" gpu --data "$data" "$@"
