#!/usr/bin/env bash
# The tests on every Python that this package supports, as far as one is here: each makes a virtual environment of its own with
# the `dev` extra at the pinned versions. Says which were not found. Arguments go to pytest. Exits 1 if a Python fails or if none
# was found.
#
#   CACHEWITNESS_PYTHONS  the Pythons, by name or path, "python3.11 python3.12 python3.13 python3.14" if unset
set -uo pipefail
cd "$(dirname "$0")/.."
exec </dev/null

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONPYCACHEPREFIX="$work/pycache" HYPOTHESIS_STORAGE_DIRECTORY="$work/hypothesis"
unset PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE

ran=() failed=() missing=()
for python in ${CACHEWITNESS_PYTHONS:-python3.11 python3.12 python3.13 python3.14}; do
    # A name may be there and lead nowhere, as those of version managers do.
    if ! version=$("$python" -c 'import platform; print(platform.python_version())' 2>/dev/null); then
        missing+=("$python")
        continue
    fi
    printf '\n== Python %s (%s)\n' "$version" "$python"
    venv=$work/$version
    ran+=("$version")
    "$python" -m venv "$venv" &&
        "$venv/bin/python" -m pip install --quiet --editable '.[dev]' --constraint ci/constraints.txt &&
        "$venv/bin/python" -m pytest --numprocesses=auto --dist=worksteal -o cache_dir="$work/pytest" "$@" ||
        failed+=("$version")
done

printf '\nran: %s\n' "${ran[*]:-none}"
((${#missing[@]})) && printf 'not found: %s\n' "${missing[*]}"
((${#failed[@]})) && printf 'failed: %s\n' "${failed[*]}"
((${#ran[@]} && !${#failed[@]}))
