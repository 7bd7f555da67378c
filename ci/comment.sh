#!/usr/bin/env bash
# Keep one comment of cachewitness on a pull request: written by the first gate, changed by every later one.
#
#   ci/comment.sh FILE
#
#   GH_TOKEN            may write to pull requests
#   GITHUB_REPOSITORY   OWNER/NAME (GitHub sets it)
#   PULL_REQUEST        the number of the pull request
#
# FILE begins with a line that no reader sees, by which the comment is found again among all others. A comment that cannot be
# written is a warning and exit code 0: it changes no verdict.
set -uo pipefail

warn() {
    printf '::warning title=cachewitness::the comment on the pull request was not written: %s\n' "$*"
    exit 0
}

file=${1:-}
[[ -s $file ]] || warn "the gate left no ${file:-file}"
IFS= read -r marker <"$file" || true
[[ $marker == '<!-- '*' -->' ]] || warn "$file does not begin with a marker"
[[ ${PULL_REQUEST:-} =~ ^[0-9]+$ ]] || warn 'PULL_REQUEST is no number'
comments=repos/$GITHUB_REPOSITORY/issues/$PULL_REQUEST/comments

# Only what this token's own user wrote can be changed; of others' comments that quote the marker none begins with it.
found=$(gh api --paginate "$comments?per_page=100" --jq ".[] | select(.body | startswith(\"$marker\")) | .id" 2>&1) ||
    warn "${found##*$'\n'}"
id=${found##*$'\n'}
if [[ -n $id ]]; then
    output=$(gh api --method PATCH "repos/$GITHUB_REPOSITORY/issues/comments/$id" --field "body=@$file" 2>&1) && exit 0
fi
output=$(gh api --method POST "$comments" --field "body=@$file" 2>&1) || warn "${output##*$'\n'}"
