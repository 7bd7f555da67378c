#!/usr/bin/env bash
# Run routers that others wrote in front of fleets of reference engines: Dynamo's radix tree in process, and its indexer as a process
# of its own, with every way of delivery but those that they are known for; then the tests that need them. What it is known for (docs/systems/dynamo.md) has to fail still. No GPU.
# Exits with the first status that is not as it should be, after everything has run.
#
#   CACHEWITNESS_ROUTERS_CACHE   where the virtual environment is kept between runs (~0.3 GB)
#   PYTHON                       the Python that makes the environment (3.11 or later)
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${CACHEWITNESS_ROUTERS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/cachewitness/routers}
pins=(ai-dynamo-runtime==1.6.1 pyzmq==27.3.0)
tree=cachewitness.systems.dynamo.radix_tree:RadixTreeRouter
indexer=cachewitness.systems.dynamo.indexer:IndexerRouter

# The environment is named after what is in it; `.ready` says that it was finished.
venv=$cache/venv-$(echo "${pins[@]}" | sha256sum | cut -c1-12)
if [[ ! -e $venv/.ready ]]; then
    rm -rf "$venv"
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet "${pins[@]}"
    touch "$venv/.ready"
fi
"$venv/bin/python" -m pip install --quiet -e '.[dev]' -c ci/constraints.txt

status=0
route() { # ROUTER, deliveries
    local router=$1 layout
    shift
    for layout in full full-swa full-mamba full-swa-mamba; do
        printf '\n== %s %s\n' "${router##*:}" "$layout"
        "$venv/bin/python" -m cachewitness.cli route --router "$router" --layout "$layout" --traces 12 "${@/#/--delivery=}" ||
            status=$((status ? status : $?))
    done
}
route "$tree" whole late gaps twice media restart
route "$indexer" whole late gaps twice restart
printf '\n== tests\n'
"$venv/bin/python" -m pytest suites/systems/dynamo || status=$((status ? status : $?))
exit "$status"
