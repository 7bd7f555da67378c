#!/usr/bin/env bash
# SGLang's router refuses prompts of token ids that SGLang takes, and drops fields of a chat request that it passes on elsewhere.
#
# Package     sglang-router 0.3.2
# Surprise    The router reads each request into types of its own and writes it anew. `/v1/completions` refuses `"prompt": [1, 2, 3]` with
#             422, which SGLang and OpenAI's API accept and lm-eval's `local-completions` sends by default. Of fields that its types do
#             not know, `/v1/completions` passes all on and `/v1/chat/completions` none, without a word: `priority`, `return_token_ids`,
#             `return_cached_tokens_details` and `session_id`, all of them SGLang's own, never arrive.
# Who         Whoever measures prefix caching through a router: what a request says of priority, session or accounting is gone, and the
#             answers look as if the server did not support it. Evaluations that worked against the server end with 422.
# Documented  No.
# Upstream    No report known.
set -euo pipefail
lib=$(cd "$(dirname "${BASH_SOURCE[0]}")/lib" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check sglang-router==0.3.2
cd "$work"
HOME=$work PYTHONPATH=$lib "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import urllib.error
from importlib.metadata import version

from router import post, routed

FIELDS = {"priority": 3, "return_token_ids": True, "return_cached_tokens_details": True, "session_id": "s1", "custom_params": {"a": 1},
          "min_tokens": 1, "stop_token_ids": [5]}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}

print("sglang-router", version("sglang-router"))
print("expected: what the server behind accepts arrives there as it was sent\n")
with routed("sglang_router", workers=1) as (port, _):
    arrived = {}
    for path, body in (("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)):
        asked = post(port, path, body | FIELDS)["asked"]
        arrived[path] = [field for field in FIELDS if asked.get(field) == FIELDS[field]]
        print(f"{path:22} arrived: {', '.join(arrived[path])}\n{'':22} dropped: {', '.join(f for f in FIELDS if f not in asked) or 'none'}")
    answers = {}
    for label, path, body in (("prompt of ids", "/v1/completions", {"model": "m", "prompt": [1, 2, 3], "max_tokens": 1}),
                              ("list of such prompts", "/v1/completions", {"model": "m", "prompt": [[1, 2, 3]], "max_tokens": 1}),
                              ("input_ids", "/generate", {"input_ids": [1, 2, 3]})):
        try:
            post(port, path, body)
            answers[label] = 200
        except urllib.error.HTTPError as error:
            answers[label] = error.code
        print(f"{path:22} {label}: {answers[label]}")
dropped = ["priority", "return_token_ids", "return_cached_tokens_details", "session_id"]
if len(arrived["/v1/completions"]) != len(FIELDS) or any(field in arrived["/v1/chat/completions"] for field in dropped):
    raise SystemExit(f"changed: arrived {arrived}")
if list(answers.values()) != [422, 422, 200]:
    raise SystemExit(f"changed: {answers}")
print("\nseen: one path passes all of them, the other drops them silently, and token ids are refused")
PYTHON
