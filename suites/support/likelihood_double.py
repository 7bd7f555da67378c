"""A server of next-token likelihoods with a cache that is sound or has a fault, in this process.

The model reads entries: one for each token that it computed or restored. All of them count, as in
full attention, and the last `WINDOW` once more, as in a sliding window. What it answers is moved by
noise that depends on all of its tokens and on how they were cut into batches: on where the request
began to compute. So the same request asked twice is equal to the bit, and a hit is not.

A cache with a fault restores other entries than those of the tokens. A bias makes a token the
answer, and its logarithm is that before the bias, be it one of the vocabulary or not.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Literal

import numpy as np

from cachewitness.engines.answers import BackendError
from cachewitness.parity.likelihood.asking import Served

WINDOW, BLOCK, VOCABULARY = 64, 16, 24
IDS = 997
FULL, RECENT, NOISE = 16.0, 1.5, 0.03
KEPT = 20
"""Prompts that are kept under one salt."""
NOTHING = -1
"""The entry of a block that was lost."""
Form = Literal["llama.cpp", "vllm", "texts"]
Fault = Callable[["Double", list[int], list[int]], list[int]]
"""Takes the tokens of a prompt and those restored of it, and returns the entries that are restored.
"""


def stale_window(double: Double, prompt: list[int], restored: list[int]) -> list[int]:
    """Restore a window that is a block older than the prefix: its last entries are the older
    ones.
    """
    return restored[:-BLOCK] + restored[-2 * BLOCK : -BLOCK]


def foreign_prefix(double: Double, prompt: list[int], restored: list[int]) -> list[int]:
    """Restore what another prompt left in the same blocks."""
    other = next((one for one in double.seen if one[:BLOCK] != prompt[:BLOCK]), prompt)
    entries = other[: len(restored)]
    return entries + restored[len(entries) :]


def lost_blocks(double: Double, prompt: list[int], restored: list[int]) -> list[int]:
    """Restore nothing in two blocks in the middle."""
    begin = len(restored) // 2
    gone = [NOTHING] * (2 * BLOCK)
    return restored[:begin] + gone + restored[begin + len(gone) :]


FAULTS: Mapping[str, Fault] = {
    "stale window": stale_window,
    "foreign prefix": foreign_prefix,
    "lost blocks": lost_blocks,
}


class Double:
    """A server. `heeds`: how it can be asked cold. `inert`: it counts hits of 0 tokens, and
    restores none. `rounded`: keys are rounded, cold and cached, as by quantisation. `form`: how it
    writes logprobs. `exact`: it has no noise. `echo`: whether it knows `echo`, and then reads its
    cache, or computes such a prompt anew. `forgets`: it can be told to empty its own pools. `tier`:
    the fault of what a second tier brings back after that; None without one.
    """

    def __init__(
        self,
        fault: str = "",
        *,
        heeds: Literal["salts", "cache_prompt", "nothing"] = "cache_prompt",
        inert: bool = False,
        rounded: bool = False,
        exact: bool = False,
        caching: bool = True,
        form: Form = "llama.cpp",
        echo: Literal["no", "anew", "hits"] = "no",
        forgets: bool = True,
        tier: str | None = None,
    ) -> None:
        draw = np.random.default_rng(7)
        self._table = draw.normal(size=(IDS + 1, VOCABULARY))
        self._table[NOTHING] = 0.0
        if rounded:
            self._table = np.round(self._table * 2) / 2
        self._fault = FAULTS.get(fault)
        self._heeds = heeds
        self._inert = inert
        self._noise = 0.0 if exact else NOISE
        self._caching = caching
        self._form = form
        self._echo = echo
        self._forgets = forgets
        self._tiered = tier is not None
        self._tier_fault = FAULTS.get(tier or "")
        self._kept: dict[str, list[list[int]]] = {}
        self._second: dict[str, list[list[int]]] = {}
        self._brought_back = False
        self.seen: list[list[int]] = []
        self.bodies: list[dict[str, Any]] = []

    def served(self, url: str = "http://double") -> Served:
        """Return the server as it is asked, without a connection."""
        return Served(url, "double", lambda path, body, what: self.post(path, dict(body)))

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Answer a request."""
        if path == "/tokenize":
            return {"tokens": tokens(body["content"])}
        if path == "/reset_prefix_cache":
            if not self._forgets:
                raise BackendError("reset_prefix_cache: the server answers 404")
            self._kept.clear()
            return {"success": True}
        self.bodies.append(body)
        prompt = list(body["prompt"])
        restored = self._restore(prompt, body)
        if body.get("echo") and self._echo != "no":
            return self._echoed(prompt, restored if self._echo == "hits" else 0)
        entries = prompt[:restored]
        fault = self._tier_fault if self._brought_back else self._fault
        if fault is not None and restored:
            entries = fault(self, prompt, entries)
        self.seen.append(prompt)
        forced = next(map(int, body.get("logit_bias", ())), None)
        return self._completion(prompt, entries, restored, body["max_tokens"], forced)

    def _echoed(self, prompt: list[int], restored: int) -> dict[str, Any]:
        logprobs = {
            "token_logprobs": [-1.0] * (len(prompt) + 1),
            "top_logprobs": [{"a": -1.0}] * (len(prompt) + 1),
        }
        usage = {"prompt_tokens_details": {"cached_tokens": restored}}
        return {"choices": [{"index": 0, "logprobs": logprobs}], "usage": usage}

    def _restore(self, prompt: list[int], body: dict[str, Any]) -> int:
        """Return how many tokens are restored, and keep the prompt: with `cache_prompt` in one
        slot, else under its salt.
        """
        salt = body.get("cache_salt", "") if self._heeds == "salts" else ""
        kept = self._kept.setdefault(salt, [])
        cold = self._heeds == "cache_prompt" and body.get("cache_prompt") is False
        found = max((alike(prompt, one) for one in kept), default=0)
        behind = self._second.setdefault(salt, []) if self._tiered else []
        back = max((alike(prompt, one) for one in behind), default=0)
        self._brought_back = back > found
        found = max(found, back)
        behind.append(prompt)
        if self._heeds == "cache_prompt":
            kept.clear()
        del kept[:-KEPT]
        kept.append(prompt)
        if cold or self._inert or not self._caching:
            return 0
        return min(found, len(prompt) - 1)

    def _completion(
        self,
        prompt: list[int],
        entries: list[int],
        restored: int,
        count: int,
        forced: int | None = None,
    ) -> dict[str, Any]:
        entries = entries + prompt[restored:]
        cut = f"{restored}/{len(prompt)}"
        steps = []
        for _ in range(count):
            best = self._best(entries, cut)
            token = max(best, key=best.__getitem__)
            if forced is not None:
                token = forced
                best.setdefault(forced, min(best.values()) - 1.0 - forced / IDS)
            steps.append((token, best))
            entries = [*entries, token]
        usage = {
            "prompt_tokens": len(prompt),
            "prompt_tokens_details": {"cached_tokens": restored},
        }
        return {"model": "double", "choices": [{"logprobs": self._written(steps)}], "usage": usage}

    def _best(self, entries: list[int], cut: str) -> dict[int, float]:
        rows = self._table[entries]
        logits = FULL * rows.mean(0) + RECENT * rows[-WINDOW:].mean(0)
        seed = zlib.crc32(f"{cut}/{entries}".encode())
        logits = logits + np.random.default_rng(seed).normal(size=VOCABULARY) * self._noise
        logprobs = logits - np.log(np.exp(logits).sum())
        best = np.argsort(-logprobs)[:20]
        return {int(token): float(logprobs[token]) for token in best}

    def _written(self, steps: list[tuple[int, dict[int, float]]]) -> dict[str, Any]:
        if self._form == "llama.cpp":
            return {
                "content": [
                    {
                        "id": token,
                        "logprob": best[token],
                        "top_logprobs": [{"id": i, "logprob": v} for i, v in best.items()],
                    }
                    for token, best in steps
                ]
            }
        named = "token_id:{}" if self._form == "vllm" else "word {}"
        return {
            "tokens": [named.format(token) for token, _ in steps],
            "token_logprobs": [best[token] for token, best in steps],
            "top_logprobs": [{named.format(i): v for i, v in best.items()} for _, best in steps],
        }

    @contextmanager
    def serving(self, key: str = "") -> Iterator[str]:
        """Serve over HTTP, to whoever sends the key; yields the address."""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler) -> None:  # `self` is the double
                handler.send(lambda: {"data": [{"id": "double"}]})

            def do_POST(handler) -> None:
                length = int(handler.headers["Content-Length"])
                body = json.loads(handler.rfile.read(length))
                handler.send(lambda: self.post(handler.path, body))

            def send(handler, content: Callable[[], Any]) -> None:
                known = not key or handler.headers.get("Authorization") == f"Bearer {key}"
                if known:
                    _send(handler, content())
                else:
                    handler.send_error(401)

            def log_message(handler, format: str, *args: object) -> None:
                """Say nothing."""

        http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_address[1]}"
        finally:
            http.shutdown()
            http.server_close()
            thread.join()


def tokens(text: str) -> list[int]:
    """Return a text as tokens: one for each word and each other letter."""
    return [zlib.crc32(word.encode()) % IDS for word in re.findall(r"\w+|\W", text)]


def alike(one: list[int], other: list[int]) -> int:
    """Return how many tokens two prompts begin with alike."""
    most = min(len(one), len(other))
    return next((i for i in range(most) if one[i] != other[i]), most)


def _send(handler: BaseHTTPRequestHandler, content: Any) -> None:
    raw = json.dumps(content).encode()
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(raw)))
    handler.end_headers()
    handler.wfile.write(raw)
