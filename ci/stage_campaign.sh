#!/usr/bin/env bash
# Campaigns on a real PostgreSQL server and a real Ray cluster of this machine, workers and drivers killed: what the default
# tests skip without the extra `cluster`. Needs PostgreSQL (apt-get install postgresql).
# Installs into an environment of its own, or uses the Python that CACHEWITNESS_CLUSTER_PYTHON names.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${CACHEWITNESS_CLUSTER_PYTHON:-}
if [ -z "$python" ]; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    python3 -m venv "$folder"
    python=$folder/bin/python
    "$python" -m pip install -q -e '.[dev,cluster]' -c ci/constraints.txt
fi

output=$("$python" -m pytest suites/sessions/campaign -rs) || { printf '%s\n' "$output"; exit 1; }
printf '%s\n' "$output"
if grep -q SKIPPED <<<"$output"; then
    echo "a test was skipped; this stage runs them all"
    exit 1
fi
"$python" -m benchmarks.campaign_kills --kills 20
"$python" -m benchmarks.campaign_kills --kills 21 --ray
