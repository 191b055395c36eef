#!/bin/sh
# Create a virtual environment for each peer named, where benchmarks/models/cpu.py looks for it.
#   sh tools/bench_env.sh iree executorch-xnnpack litert llama.cpp       PYTHON=... chooses the interpreter
# A peer's packages are in benchmarks/requirements/PEER.txt. llama.cpp is compiled (CMake, minutes).
set -eu

cd "$(dirname "$0")/.."
lists=benchmarks/requirements
[ $# -gt 0 ] || { printf 'usage: bench_env.sh PEER ...   of: %s\n' "$(ls $lists | sed 's/\.txt$//' | tr '\n' ' ')" >&2; exit 2; }

# The interpreter that Mansard has, if it is set up: the peers should not differ in that.
python=${PYTHON:-}
[ -n "$python" ] || { [ -x .venv/bin/python ] && python=.venv/bin/python; } || python=python3

export PIP_DISABLE_PIP_VERSION_CHECK=1 CMAKE_ARGS="${CMAKE_ARGS:--DGGML_NATIVE=ON}"
for peer in "$@"; do
    [ -f "$lists/$peer.txt" ] || { printf 'bench_env: no %s/%s.txt\n' "$lists" "$peer" >&2; exit 2; }
    venv=.cache/bench/venvs/$peer
    echo "bench_env: $venv"
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet -r "$lists/$peer.txt"
done
