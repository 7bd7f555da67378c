#!/usr/bin/env bash
# Print the folder of an environment with a CPU build of torch and just what a file pins; make it first, unless it is there.
#
#   ci/pinned_venv.sh CACHE REQUIREMENTS
#
#   CACHEWITNESS_TORCH_INDEX  index of CPU builds of torch; empty for none but the configured ones
#   PYTHON                    the Python that makes the environment; `python3.11` if unset
set -euo pipefail
cache=$1 pins=$2
torch=torch==2.13.0

# The environment is named after what is in it, so a changed pin makes a new one; `.ready` says that it was finished.
venv=$cache/venv-$({ echo "$torch"; cat "$pins"; } | sha256sum | cut -c1-12)
if [[ ! -e $venv/.ready ]]; then
    rm -rf "$venv"
    "${PYTHON:-python3.11}" -m venv "$venv"
    index=${CACHEWITNESS_TORCH_INDEX-https://download.pytorch.org/whl/cpu}
    "$venv/bin/python" -m pip install --quiet ${index:+--extra-index-url "$index"} "$torch" >&2
    "$venv/bin/python" -m pip install --quiet --no-deps -r "$pins" >&2
    touch "$venv/.ready"
fi
printf '%s\n' "$venv"
