#!/usr/bin/env bash
# LOCKS in vLLM on a GPU: whether it is right, and how fast it is. Needs a Python that has vLLM for CUDA and this package
# (`pip install ./python -C cmake.define.LOCKS_CUDA=ON -C cmake.define.LOCKS_CUDA_ARCHITECTURES=native`); a GPU of 141 GB for
# the longest contexts.
#   tools/vllm_gpu.sh [--python PYTHON] [--package DIR] [--out DIR] [--settings JSON]
#                     [--only kernels|tokens|serve|speed|prompts|parallel]...
# parallel is not among what runs without --only: it needs two GPUs. Its last line counts the steps that failed.
# --settings: of LOCKS, where speed is measured; without it the default, which is whole pages. '{"preset": "parts"}': parts.
# --package: a folder that holds locks_cpp as a build stages it (BUILD/python), if it is not installed.
set -euo pipefail
cd "$(dirname "$0")/.."

python=python3
package=""
out=out
settings={}
steps=()
while [ $# -gt 0 ]; do
  case $1 in
    --python) python=$2; shift 2 ;;
    --package) package=$(realpath "$2"); shift 2 ;;
    --out) out=$2; shift 2 ;;
    --settings) settings=$2; shift 2 ;;
    --only) steps+=("$2"); shift 2 ;;
    *) echo "tools/vllm_gpu.sh: $1 is no option; see its first lines" >&2; exit 2 ;;
  esac
done
[ ${#steps[@]} -gt 0 ] || steps=(kernels tokens serve speed prompts)
for name in "${steps[@]}"; do
  case $name in
    kernels | tokens | serve | speed | prompts | parallel) ;;
    *) echo "tools/vllm_gpu.sh: --only takes kernels, tokens, serve, speed, prompts or parallel, not $name" >&2; exit 2 ;;
  esac
done
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
here=tools/vllm_gpu
export PYTHONPATH=$PWD/$here${package:+:$package}${PYTHONPATH:+:$PYTHONPATH}
if [ -n "$package" ]; then # vLLM finds plug-ins by their packages' metadata
  mkdir "$work/locks_cpp-0.dist-info"
  printf 'Metadata-Version: 2.1\nName: locks-cpp\nVersion: 0\n' >"$work/locks_cpp-0.dist-info/METADATA"
  printf '[vllm.general_plugins]\nlocks = locks_cpp.vllm:register\n' >"$work/locks_cpp-0.dist-info/entry_points.txt"
  PYTHONPATH=$PYTHONPATH:$work
fi
failed=()

wants() { [[ " ${steps[*]} " == *" $1 "* ]]; }
step() {
  local name=$1 start=$SECONDS
  shift
  echo "=== $name"
  "$@" || failed+=("$name")
  echo "=== $name took $((SECONDS - start)) s"
}
# Arguments: model, rows, and more of speed.py's.
measure() {
  local model=$1 rows=$2 backend
  shift 2
  for backend in stock locks; do
    step "speed: $model, $backend" "$python" $here/speed.py --models "$work" --out "$out" --model "$model" --rows "$rows" \
      --backend $backend --settings "$settings" "$@"
  done
}
serve() { step "serve $*" "$python" $here/serve.py --models "$work" --out "$out" "$@"; }

if wants kernels; then step "kernels" "$python" $here/kernels.py; fi
if wants tokens; then step "tokens" "$python" $here/tokens.py --models "$work"; fi
if wants serve; then serve; fi
if wants parallel; then
  gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())')
  if [ "$gpus" -lt 2 ]; then
    echo "parallel: two GPUs are needed, and there are $gpus"
    failed+=(parallel)
  else
    step "parallel" "$python" $here/parallel.py --models "$work"
    serve --ranks 2 --kill
    step "parallel: a full GPU" "$python" $here/full_gpu.py --models "$work" --out "$out"
    measure glm 1x131072,4x131072,1x1048000,4x262000 --ranks 2 --stages 1x131072,4x131072,1x1048000
    measure llama 1x131072,4x131072 --ranks 2 --stages 1x131072,4x131072
    "$python" $here/speed.py --out "$out" --table
  fi
fi
if wants speed; then
  measure glm 1x131072,1x262144,1x524288,1x1048000
  measure glm 4x131072
  measure llama 4x131072
  measure glm 1x131072,1x1048000 --cache fp8
  measure llama 1x1024,1x4096,1x8192,1x16000,1x32768,1x65536
  measure llama 4x2048,4x4096
  measure glm 64x1024-32768
  "$python" $here/speed.py --out "$out" --table
fi
if wants prompts; then
  for backend in stock locks; do
    step "prompts: $backend" "$python" $here/prompts.py --models "$work" --out "$out" --model llama --backend $backend \
      --settings "$settings" --contexts 4096,32768,131072
  done
  "$python" $here/prompts.py --out "$out" --table
fi

for name in "${failed[@]}"; do echo "failed: $name"; done
if wants parallel; then echo "parallel: ${#failed[@]} failed"; fi
[ ${#failed[@]} = 0 ]
