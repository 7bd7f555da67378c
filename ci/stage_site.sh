#!/usr/bin/env bash
# Build the documentation as a site, in an environment of its own; a warning (a link that leads nowhere, a page that the index
# does not name) fails it.
#
#   CACHEWITNESS_SITE  folder for the site; a temporary one, which is removed, if unset
#   PYTHON             the Python that makes the environment (3.11 or later)
set -euo pipefail
cd "$(dirname "$0")/.."
exec </dev/null

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
site=$(realpath -m "${CACHEWITNESS_SITE:-$work/site}")
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet 'mkdocs-material>=9.6,<10' 'mkdocs>=1.6,<2'
(cd ci/site && PYTHONPATH=. NO_MKDOCS_2_WARNING=1 "$work/venv/bin/python" -m mkdocs build --strict --quiet --site-dir "$site")
echo "$(find "$site" -name '*.html' | wc -l) pages in $site"
