# Sourced by scripts/demo, scripts/test and scripts/bench: brings .venv up to date and says what it does. Idempotent.
# THETA_VENV names another place for the environment; PYTHON another interpreter (3.11 or later).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${THETA_VENV:-$root/.venv}

say() { printf '\033[1m== %s\033[0m\n' "$*"; }

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else return 1; fi; }

need_program() { # program, Debian package
  command -v "$1" >/dev/null && return 0
  say "installing $2 with apt"
  as_root apt-get update -qq && as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$2" >/dev/null && return 0
  echo "$1 is missing: install the package $2" >&2
  return 1
}

set_up() { # extras of the package, for example test
  need_program git git
  need_program git-lfs git-lfs || echo "going on without git-lfs; what needs it is skipped" >&2
  local wanted stamp
  wanted=$(cat "$root/pyproject.toml" "$root/constraints.txt" "$root"/theta_daemon/*.c; echo "$1")
  stamp=$venv/.theta-setup-$(printf %s "$1" | tr , -)
  if [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    say "environment $venv is up to date"
    return 0
  fi
  if [ ! -x "$venv/bin/python" ]; then
    say "making a virtual environment in $venv"
    "${PYTHON:-python3}" -m venv "$venv"
  fi
  say "installing theta-daemon and its dependencies (extras: ${1:-none}); the first time takes a minute"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "$root/constraints.txt" \
    --editable "$root${1:+[$1]}" 2> >(grep -v "Location .* is ignored" >&2 || true)
  printf %s "$wanted" >"$stamp"
}
