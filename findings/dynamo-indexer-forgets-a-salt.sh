#!/usr/bin/env bash
# Dynamo's indexer forgets the salt of a block when a copy of it in host memory is gone: what a prompt adds on the device is then never matched.
#
# Package     ai-dynamo-runtime 1.6.1, `python -m dynamo.indexer`; pyzmq 27.3.0 and msgspec 0.22.0 to publish as vLLM does
# Surprise    A salt is in the event of a prompt's first block alone, so the process remembers it by block, to give it to what is
#             stored behind. The memory is one for all tiers: the removal of the block's copy on the medium CPU takes it away, though
#             the block is still on the device. What the device stores behind it later is hashed without a salt, and no query finds it.
#             Without a salt, or without a copy that is removed, the same events give the whole prompt.
# Who         Fleets with cache_salt and offloading to host memory: as soon as the host evicts the first block of a conversation, the
#             later turns of it are routed as if the worker had nothing behind that block.
# Documented  That a salt is taken from the first block and inherited; nothing of tiers.
# Upstream    none found.
set -euo pipefail
work=$(mktemp -d)
child=
trap 'kill "$child" 2>/dev/null || true; rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet ai-dynamo-runtime==1.6.1 pyzmq==27.3.0 msgspec==0.22.0
cd "$work"
port=$("$work/venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$work/venv/bin/python" -m dynamo.indexer --port "$port" --threads 1 >"$work/log" 2>&1 &
child=$!
"$work/venv/bin/python" - "$port" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import json
import sys
import time
import urllib.request
from importlib.metadata import version

import msgspec
import zmq

SIZE = 4
FIRST, SECOND, MARK = [1] * SIZE, [2] * SIZE, [3] * SIZE
URL = f"http://127.0.0.1:{sys.argv[1]}"


def ask(path, **body):
    request = urllib.request.Request(f"{URL}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def stored(name, parent, tokens, medium="GPU", salt=None):
    return {
        "type": "BlockStored",
        "block_hashes": [name],
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": SIZE,
        "lora_id": None,
        "medium": medium,
        "lora_name": None,
        "extra_keys": [[f"dynamo-cache-salt:{salt}"] if salt else None],
    }


def known(instance, salt, copied, gone):
    """Return how many tokens of a prompt of two blocks are known; the second is stored last."""
    model = f"model-{instance}"
    live = zmq.Context.instance().socket(zmq.XPUB)
    live.bind("tcp://127.0.0.1:*")
    endpoint = live.getsockopt_string(zmq.LAST_ENDPOINT)
    ask("register", instance_id=instance, model_name=model, block_size=SIZE, endpoint=endpoint)
    live.recv()  # the subscription
    events = [stored(1, None, FIRST, salt=salt)]
    if copied:
        events.append(stored(1, None, FIRST, medium="CPU", salt=salt))
    if gone:
        events.append({"type": "BlockRemoved", "block_hashes": [1], "medium": "CPU"})
    events += [stored(2, 1, SECOND), stored(3, None, MARK)]
    live.send_multipart([b"", (0).to_bytes(8, "big"), msgspec.msgpack.encode([0.0, events, 0])])
    ends = time.monotonic() + 20
    while not ask("query", model_name=model, token_ids=MARK)["scores"]:
        assert time.monotonic() < ends, "the message is not taken in"
    scores = ask("query", model_name=model, token_ids=FIRST + SECOND, cache_salt=salt)["scores"]
    return scores[str(instance)]["0"]


for _ in range(500):
    try:
        urllib.request.urlopen(f"{URL}/workers", timeout=20)
        break
    except OSError:
        time.sleep(0.1)
print("ai-dynamo-runtime", version("ai-dynamo-runtime"))
print("expected: both blocks are on the device, so 8 tokens are known, whatever becomes of a copy\n")
seen = {}
instance = 0
for salt in (None, "tenant"):
    for copied, gone in ((False, False), (True, False), (True, True)):
        seen[salt, copied, gone] = known(instance, salt, copied, gone)
        instance += 1
        print(f"salt {salt!s:<7} copy in host memory {copied!s:<6} gone {gone!s:<6} known {seen[salt, copied, gone]}")
expected = {case: 8 for case in seen} | {("tenant", True, True): 4}
if seen != expected:
    raise SystemExit(f"changed: {seen}")
print("\nseen: with a salt, the second block is lost once the copy of the first is gone")
PYTHON
