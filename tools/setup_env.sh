#!/bin/sh
# Create a virtual environment and install Mansard into it for development.
#   sh tools/setup_env.sh .venv       PYTHON=... chooses the interpreter (3.11 to 3.13)
set -eu

venv=${1:?usage: setup_env.sh VENV_FOLDER}
extras=${MANSARD_SETUP_EXTRAS:-dev}
fresh=  # whether the environment is created here

fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# Run, not just look for: version managers put shims on PATH that name versions nobody selected.
suitable() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' >/dev/null 2>&1
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        suitable "$PYTHON" || fail "PYTHON=$PYTHON is not a working Python 3.11, 3.12 or 3.13"
        echo "$PYTHON"
        return
    fi
    for candidate in python3.13 python3.12 python3.11 python3 python; do
        if suitable "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "no Python 3.11, 3.12 or 3.13 on PATH; install one, or name it: make PYTHON=/path/to/python3"
}

if ! suitable "$venv/bin/python"; then
    python=$(find_python)
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$python cannot make virtual environments; install its venv package (Debian: python3-venv)"
    echo "setup: creating $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv"
    fresh=yes
fi
python=$venv/bin/python

header=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h
[ -f "$header" ] || fail "$header is missing; install Python's headers (Debian: python3-dev)"
compiler=${CC:-cc}
command -v "$compiler" >/dev/null 2>&1 || command -v gcc >/dev/null 2>&1 ||
    fail "no C compiler ($compiler) found; install one (Debian: gcc libc6-dev) or set CC"

# torch goes first and exactly pinned, so that nothing installed later can choose another build of it.
torch=$("$python" - <<'PY'
import tomllib
with open("pyproject.toml", "rb") as file:
    extras = tomllib.load(file)["project"]["optional-dependencies"]
print(next(pin for pin in extras["torch"] if pin.startswith("torch==")))
PY
)
export PIP_DISABLE_PIP_VERSION_CHECK=1
echo "setup: installing $torch (a large download the first time)"
"$python" -m pip install --quiet ${fresh:+--no-compile} "setuptools>=77" "$torch"
echo "setup: installing Mansard, its compiler and its tools"
"$python" -m pip install --quiet ${fresh:+--no-compile} --no-build-isolation --editable ".[$extras]"
if [ -n "$fresh" ]; then
    # The byte code, on every CPU: pip would take most of the time of an installation for it, with one process.
    # Packages may hold files that are no Python of this version.
    packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$python" -m compileall -qq -j 0 "$packages" || true
fi
echo "setup: done"
