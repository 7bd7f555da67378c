#!/usr/bin/env bash
# Which lines and branches the tests run, by room. Not a part of ci/check.sh: on Python 3.11 it made the same tests 3.4 times as
# slow (81 s without, 277 s with coverage, one process, those of the references among them); what measures at less cost counts no
# branches before Python 3.14. What a test starts as a process of its own is not counted.
# Needs the `dev` extra in the Python that `python` names. Arguments go to pytest. Exits with pytest's status.
set -euo pipefail
cd "$(dirname "$0")/.."
exec </dev/null

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export COVERAGE_FILE="$work/data"

status=0
python -m pytest --numprocesses=auto --dist=worksteal --cov --cov-report="json:$work/coverage.json" "$@" || status=$?
python ci/coverage_by_room.py "$work/coverage.json"
exit "$status"
