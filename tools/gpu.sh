#!/usr/bin/env bash
# Builds, tests, checks and measures the CUDA backend on a machine with a GPU; some 10 minutes.
#   tools/gpu.sh [--built DIR] [--out DIR] [--only build|test|check|bench]...
# --built takes cuda_test and locks from DIR instead of building them. What is measured goes to DIR/cuda_bench.json (out/).
set -euo pipefail
cd "$(dirname "$0")/.."

built=""
out=out
steps=()
while [ $# -gt 0 ]; do
  case $1 in
    --built) built=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --only) steps+=("$2"); shift 2 ;;
    *) echo "tools/gpu.sh: $1 is no option; see its first lines" >&2; exit 2 ;;
  esac
done
[ ${#steps[@]} -gt 0 ] || steps=(build test check bench)
for name in "${steps[@]}"; do
  case $name in
    build | test | check | bench) ;;
    *) echo "tools/gpu.sh: --only takes build, test, check or bench, not $name" >&2; exit 2 ;;
  esac
done
mkdir -p "$out"
failed=()

wants() { [[ " ${steps[*]} " == *" $1 "* ]]; }
step() {
  local name=$1 start=$SECONDS
  shift
  echo "=== $name"
  "$@" || failed+=("$name")
  echo "=== $name took $((SECONDS - start)) s"
}

if [ -z "$built" ]; then
  built=build/release
  if wants build; then
    step "build" bash -c "tools/setup.sh && cmake --preset release -DLOCKS_CUDA=ON -DLOCKS_CUDA_ARCHITECTURES=native &&
      cmake --build $built --target cuda_test locks_cli"
  fi
fi
test_program=$(find "$built" -name cuda_test -type f | head -1)
locks_program=$(find "$built" -name locks -type f | head -1)

# Arguments: a tool of compute-sanitizer, and which tests. Processes share them: each waits for the host most of the time.
sanitize() {
  local processes running=() i status=0
  processes=$(nproc)
  if [ "$processes" -gt 12 ]; then processes=12; fi
  for ((i = 0; i < processes; ++i)); do
    GTEST_TOTAL_SHARDS=$processes GTEST_SHARD_INDEX=$i compute-sanitizer --tool "$1" --error-exitcode 1 --print-limit 5 \
      "$test_program" --gtest_brief=1 --gtest_filter="$2" &
    running+=($!)
  done
  for i in "${running[@]}"; do wait "$i" || status=1; done
  return $status
}
# racecheck slows a kernel down a hundredfold: it runs some tests of every stage.
some='CudaDevice*:Shapes/CudaScoreTest.*_d64:HeadDims/CudaSummarizeTest.*/d64:CudaSummarizeFilled*:Records/CudaCompleteTest.*_d64'
some+=':All/CudaSelect.*/0:All/CudaSelect.*/31:All/CudaSelect.*/77:CudaRanks.*:CudaBounds.*:All/CudaSelectors.*/0:All/CudaSelectors.*/9'
some+=':All/CudaSelectorScores.*_64*:Rows/CudaAttendRows.*_64:All/CudaAttendWhole.*/0:All/CudaAttendWhole.*/9'
some+=':CudaAttendAndComplete.*:CudaHeadRows.*:All/CudaDecode.*/0:All/CudaDecode.*/3:All/CudaDecode.*/7'
if wants test; then step "tests" "$test_program" --gtest_brief=1; fi
if wants check; then
  step "verify" "$locks_program" verify --device cuda --seconds 30 --seed 1
  for tool in memcheck initcheck synccheck; do step "$tool" sanitize "$tool" '*'; done
  step "racecheck" sanitize racecheck "$some"
fi
if wants bench; then step "bench" "$locks_program" bench --device cuda --json "$out/cuda_bench.json"; fi

for name in "${failed[@]}"; do echo "failed: $name"; done
[ ${#failed[@]} = 0 ]
