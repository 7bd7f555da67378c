#!/usr/bin/env bash
# The tests with every configuration, fault, operation and page: those that take some of many in ci/check.sh take all of them here.
# Needs the `dev` extra in the Python that `python` names. Arguments go to pytest. Exits with pytest's status. For what needs torch:
# CACHEWITNESS_TESTS=all ci/stage_toy.sh
set -euo pipefail
cd "$(dirname "$0")/.."
exec </dev/null

CACHEWITNESS_TESTS=all exec python -m pytest --numprocesses=auto --dist=worksteal "$@"
