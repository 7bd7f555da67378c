#!/usr/bin/env bash
# Hands a million changed files to the readers of files and bodies that somebody else made: traces, histories, vectors, layouts,
# configurations, reports, ... (suites/support/readers.py). Fails, and keeps the input, if one does anything but take it or
# refuse it in a line. Needs the `dev` extra in the Python that `python` names; an hour on one core. READERS_EACH: how many for each.
set -euo pipefail
cd "$(dirname "$0")/.."
READER_INPUTS=${READERS_EACH:-72000} exec python -m pytest -q -s -p no:cacheprovider suites/sessions/fuzz/test_readers.py "$@"
