#!/bin/sh
# Create build/plugins/NAME for each plug-in named, with what plugins/mansard-NAME/environment.txt lists and the plug-in.
#   sh tools/plugin_env.sh qnn openvino       PYTHON=... chooses the interpreter of Mansard's environment
# The environment sees the packages of Mansard's own (.venv); what it lists comes before those. Where the plug-in has a worker.txt,
# build/plugins/NAME-worker is an environment of its own with that, which sees nothing else unless it says so: for vendors' packages that clash.
set -eu

cd "$(dirname "$0")/.."
[ $# -gt 0 ] || { printf 'usage: plugin_env.sh NAME ...   of: %s\n' "$(ls plugins | sed 's/^mansard-//' | tr '\n' ' ')" >&2; exit 2; }
shared=${PYTHON:-.venv/bin/python}

export PIP_DISABLE_PIP_VERSION_CHECK=1
for name in "$@"; do
    folder=plugins/mansard-$name environment=build/plugins/$name
    [ -f "$folder/pyproject.toml" ] || { printf 'plugin_env: no %s\n' "$folder" >&2; exit 2; }
    stamp=$environment/.setup-done
    [ "$stamp" -nt "$folder/pyproject.toml" ] && [ "$stamp" -nt "$folder/environment.txt" ] \
        && { [ ! -f "$folder/worker.txt" ] || [ "$stamp" -nt "$folder/worker.txt" ]; } && continue
    echo "plugin_env: $environment"
    [ -x "$environment/bin/python" ] || "$shared" -m venv --without-pip "$environment"
    site=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$shared" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$site/mansard-shared.pth"
    pwd >> "$site/mansard-shared.pth"
    install="$shared -m pip --python $environment/bin/python install --quiet --no-deps"
    $install -r "$folder/environment.txt"
    $install --no-build-isolation -e "$folder"
    if [ -f "$folder/worker.txt" ]; then
        echo "plugin_env: $environment-worker"
        [ -x "$environment-worker/bin/python" ] || "$shared" -m venv --without-pip "$environment-worker"
        alone=
        if grep -q '^# with: ' "$folder/worker.txt"; then  # behind its own packages it sees Mansard's
            alone=--no-deps
            site=$("$environment-worker/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
            "$shared" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$site/mansard-shared.pth"
        fi
        "$shared" -m pip --python "$environment-worker/bin/python" install --quiet $alone -r "$folder/worker.txt"
    fi
    touch "$stamp"
done
