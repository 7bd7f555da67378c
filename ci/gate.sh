#!/usr/bin/env bash
# The gate of a fork: run the suites on its cache, keep what was found, exit with the run's own code. Installs nothing.
#
#   ci/gate.sh ENGINE[:KEY=VALUE,…] [options of `cachewitness run`]
#
#   CACHEWITNESS_SEED       seed of the random workloads (0)
#   CACHEWITNESS_SECONDS    how long the random workloads run (60)
#   CACHEWITNESS_EXPECTED   list of expected failures (.cachewitness-expected, if there is one where the gate is called)
#   CACHEWITNESS_ARTEFACTS  folder for what is kept (cachewitness-artefacts)
#   CACHEWITNESS_PYTHON     run this checkout's harness with this Python; else `cachewitness` on PATH, else with python3
#
# The artefacts: report.txt (what was printed), report.html (each failure step by step), report.json, report.sarif (for code
# scanning), junit.xml, badge.json (for shields.io), comment.md (for a pull request: comment.sh), summary.md, and in
# failures/ the trace, the trace before it was shrunk and the history of each failure. On GitHub failures are annotated and the summary is shown.
# Exit codes: 0 pass, 1 fail, 2 unknown, 3 the harness itself crashed, 4 usage or set-up, 5 something was not checked, 130 stopped.
# A verdict counts only with a whole report that says the same: an engine that ends the process chooses no verdict.
set -euo pipefail
status=0
# What goes wrong in this script must not leave with 1 either, which is a verdict on the engine.
trap 'exit $((status ? status : 3))' ERR

refuse() {
    printf 'gate: %s\n' "$*" >&2
    exit 4
}

[[ ${1:--} != -* ]] || refuse 'name an engine first: gate.sh ENGINE[:KEY=VALUE,…] [options of cachewitness run]'
engine=$1
shift
before=
for option in "$@"; do
    [[ $before$option != --isolate?(=)no ]] || refuse '--isolate no: an engine that shares the process of the harness can choose its exit code'
    [[ $option == --isolate ]] && before=$option || before=
    case ${option%%=*} in
    --engine | --report | --expected | --json | --quiet) refuse "${option%%=*} is the gate's own; see the head of ${0##*/}" ;;
    esac
done

checkout=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
artefacts=${CACHEWITNESS_ARTEFACTS:-cachewitness-artefacts}
seed=${CACHEWITNESS_SEED:-0}
seconds=${CACHEWITNESS_SECONDS:-60}
verdicts=(pass FAIL unknown 'no verdict' 'something that was given does not fit' 'something was not checked')

# -P keeps the fork's own folders (vllm/, benchmarks/) from being imported merely because the gate is called there.
if [[ -z ${CACHEWITNESS_PYTHON:-} ]] && command -v cachewitness >/dev/null; then
    harness=(cachewitness)
else
    harness=("${CACHEWITNESS_PYTHON:-python3}" -P -m cachewitness.cli)
    export PYTHONPATH=$checkout/harness:$checkout/reference_impl${PYTHONPATH:+:$PYTHONPATH}
fi
# Python leaves with 1 when a package is missing; that must not look like a verdict.
version=$("${harness[@]}" --version 2>&1) || refuse "the harness does not start (${version##*$'\n'}); see ci/README.md"

mkdir -p -- "$artefacts" || refuse "CACHEWITNESS_ARTEFACTS: $artefacts cannot be made"
# What an earlier run left there must not be taken for this one's, but for failures/last-failed.json, the list of what is run first.
rm -rf -- "$artefacts"/{.output.*,report.txt,report.html,report.json,report.sarif,junit.xml,badge.json,comment.md,summary.md,crashes}
rm -f -- "$artefacts"/failures/*.{jsonl,txt}
rmdir -- "$artefacts/failures" 2>/dev/null || true

run=("${harness[@]}" run --engine "$engine" --seed "$seed" --seconds "$seconds" --report "$artefacts")
if [[ -n ${CACHEWITNESS_EXPECTED:-} ]]; then
    run+=(--expected "$CACHEWITNESS_EXPECTED")
elif [[ -e .cachewitness-expected ]]; then
    run+=(--expected .cachewitness-expected)
fi
[[ ${GITHUB_ACTIONS:-} != true ]] || run+=(--github)
run+=("$@")

printf 'gate: %s:' "${version##*$'\n'}"
printf ' %q' "${run[@]}"
printf '\n\n'
# The run is a child in the background, so that a signal to this script alone reaches it too; it then reports what it has found so
# far. What copies its output ignores signals: it ends with the run, however that ends.
pipe=$(mktemp -u "$artefacts/.output.XXXXXX")
mkfifo -- "$pipe"
(
    trap '' HUP INT TERM
    exec tee -- "$artefacts/report.txt" <"$pipe"
) &
copying=$!
"${run[@]}" >"$pipe" 2>&1 </dev/null &
running=$!
trap 'stopped=yes; kill -TERM "$running" 2>/dev/null || true' HUP INT TERM

ended() { # a child; sets `code`. A signal ends `wait`, and not the child.
    stopped=yes
    while [[ -n $stopped ]]; do
        stopped= code=0
        wait "$1" || code=$?
    done
}

ended "$running"
status=$code
ended "$copying"
rm -f -- "$pipe"

# report.json is kept up while the run goes on, and says that the run was interrupted until it has ended. Without it, or against it,
# no code is a verdict.
case $status in
3 | 4 | 130) ;;
*)
    reported=$(sed -n 's/^  "exit_code": \([0-9]*\),$/\1/p' "$artefacts/report.json" 2>/dev/null || true)
    if [[ $reported != "$status" ]]; then
        printf 'gate: the run ended with %d and left %s; whatever ended it, the engine was not judged\n' \
            "$status" "$([[ -n $reported ]] && printf 'a report of %s' "$reported" || printf 'no report')" | tee -a -- "$artefacts/report.txt"
        status=3
    fi
    ;;
esac
verdict=${verdicts[status]:-stopped}
if ((status == 3)) && [[ -d .cachewitness/crashes ]]; then
    cp -R -- .cachewitness/crashes "$artefacts/"
fi

# The fence is one that no report contains; annotations are for the log alone.
{
    printf '### cachewitness: %s (exit code %d)\n\n' "$verdict" "$status"
    printf '~~~~~text\n'
    sed '/^::error /d' <"$artefacts/report.txt"
    printf '~~~~~\n'
} >"$artefacts/summary.md"
# A run that left no comment of its own, or not the code that the gate ends with, gets one that says that. A comment has 65,536
# characters at most.
if ! grep -qs "^### cachewitness: .*(exit code $status)\$" "$artefacts/comment.md"; then
    {
        printf '<!-- cachewitness -->\n'
        head -n 2 -- "$artefacts/summary.md"
        printf '~~~~~text\n'
        sed '/^::error /d' <"$artefacts/report.txt" | tail -n 100 | tail -c 50000
        printf '~~~~~\n'
    } >"$artefacts/comment.md"
fi
if [[ -n ${GITHUB_STEP_SUMMARY:-} ]]; then
    cat -- "$artefacts/summary.md" >>"$GITHUB_STEP_SUMMARY"
fi

printf '\ngate: %s (exit code %d); artefacts in %s:\n' "$verdict" "$status" "$(cd -- "$artefacts" && pwd)"
for path in "$artefacts"/*; do
    if [[ -d $path ]]; then
        files=("$path"/*)
        printf '  %s/ (%d files)\n' "${path##*/}" "${#files[@]}"
    else
        printf '  %s\n' "${path##*/}"
    fi
done
if [[ ! -e $artefacts/report.json ]]; then
    printf 'gate: no check came to an end; the engine was neither cleared nor convicted\n'
fi
exit "$status"
