#!/usr/bin/env bash
# DSPy's cache of answers, on by default and kept on disk, does not tell servers apart: the second one is not asked and agrees with the first.
#
# Package     dspy 3.4.1 (two stand-ins that answer HTTP)
# Surprise    An answer is kept under everything that a request says (model, messages, temperature, `extra_body`, `extra_headers`), but
#             `api_base` and `base_url`, which are left out beside `api_key` (dspy/clients/cache.py, `request_cache`). The cache is on unless
#             `cache=False` is given, and lies in the home folder, so it holds over processes and days. Two servers of one model, one with a
#             prefix cache and one without, or one before and one after an update, get one's answers and the same score; the second gets no
#             request. An answer from the cache has no usage, which is the one thing that differs.
# Who         Whoever compares two servers, releases or caches by a DSPy program or `dspy.Evaluate`.
# Documented  That answers are cached, and `cache=False`; which arguments are not in the key, in the source alone.
# Upstream    No report known.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check dspy==3.4.1
cd "$work"
HOME=$work DSPY_CACHEDIR=$work/cache LITELLM_LOCAL_MODEL_COST_MAP=True "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

import dspy


class Answering(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked += 1
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": self.server.name}}
        usage = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
        answer = {"id": "1", "object": "chat.completion", "created": 1, "model": asked["model"], "choices": [choice], "usage": usage}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def server(name):
    """Return a server that answers every chat with its name."""
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    serving.name, serving.asked = name, 0
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    return serving


def answer(serving, **options):
    model = dspy.LM("openai/model", api_base=f"http://127.0.0.1:{serving.server_port}/v1", api_key="-", temperature=0.0, **options)
    return model("Which server is this?")[0]


servers = [server("first"), server("second")]
print("dspy", version("dspy"))
print("expected: each server answers with its own name\n")
print("options                             first says   second says   requests to each so far")
seen = []
for label, options in (("cache=False", {"cache": False}), ("none", {}), ("another extra_body for each", None), ("none, the memory's cache cleared", {})):
    if label.endswith("cleared"):
        dspy.cache.reset_memory_cache()
    each = [options if options is not None else {"extra_body": {"server": serving.name}} for serving in servers]
    answers = [answer(serving, **given) for serving, given in zip(servers, each, strict=True)]
    seen.append((*answers, *(serving.asked for serving in servers)))
    print(f"{label:36}{answers[0]:13}{answers[1]:14}{servers[0].asked}, {servers[1].asked}")
if seen != [("first", "second", 1, 1), ("first", "first", 2, 1), ("first", "second", 3, 2), ("first", "first", 3, 2)]:
    raise SystemExit(f"changed: {seen}")
print("\nseen: the second server is not asked, and answers by the first one's name; clearing the memory leaves the disk's")
PYTHON
