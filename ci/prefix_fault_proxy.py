"""Plants a fault into what hits restore: a server in front of a llama.cpp server.

    python ci/prefix_fault_proxy.py URL FAULT

It stands for a damaged cache, and is none: a request that may hit is passed on with other tokens in
its prefix, so that the real server computes and restores those. Requests with `cache_prompt` false
are passed on as they are. It prints its address when it serves, and serves until it is ended.
"""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

FIRST, BLOCK = 1, 16
"""The first token behind the one that begins a text, and a block's tokens."""
WINDOW = 512
UNUSED = 0
"""The id of padding."""
SHARED = 640
"""So many tokens at least begin every prompt of the problems; faults lie within them."""

Fault = Callable[[list[int], list[int]], list[int]]
"""Takes a prompt, and another one that was asked before; returns what is passed on."""


def foreign(prompt: list[int], other: list[int]) -> list[int]:
    """Put another prompt's tokens into the window at the end of the prefix."""
    begin = SHARED - WINDOW
    return prompt[:begin] + other[begin:SHARED] + prompt[SHARED:]


def whole(prompt: list[int], other: list[int]) -> list[int]:
    """Put another prompt's tokens into the whole prefix."""
    return prompt[:FIRST] + other[FIRST:SHARED] + prompt[SHARED:]


def block(prompt: list[int], other: list[int]) -> list[int]:
    """Let the last block of the prefix be another prompt's."""
    begin = SHARED - BLOCK
    return prompt[:begin] + other[begin:SHARED] + prompt[SHARED:]


def token(prompt: list[int], other: list[int]) -> list[int]:
    """Lose the last token of the prefix."""
    return [*prompt[: SHARED - 1], UNUSED, *prompt[SHARED:]]


def stale(prompt: list[int], other: list[int]) -> list[int]:
    """Let the last two blocks of the prefix be those in front of them."""
    begin = SHARED - 2 * BLOCK
    return prompt[:begin] + prompt[begin - 2 * BLOCK : begin] + prompt[SHARED:]


def skipped(prompt: list[int], other: list[int]) -> list[int]:
    """Lose two blocks in the middle of the window."""
    begin = SHARED - WINDOW // 2
    return prompt[:begin] + [UNUSED] * (2 * BLOCK) + prompt[begin + 2 * BLOCK :]


FAULTS: dict[str, Fault] = {
    "foreign": foreign,
    "whole": whole,
    "block": block,
    "token": token,
    "stale": stale,
    "skipped": skipped,
}


class Proxy(ThreadingHTTPServer):
    """Passes requests on to `address`, those that may hit with a fault."""

    def __init__(self, url: str, fault: str) -> None:
        self.address = urlsplit(url).netloc
        self.fault = FAULTS[fault]
        self.prompts: dict[tuple[int, ...], list[int]] = {}
        super().__init__(("127.0.0.1", 0), _Handler)

    def changed(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return what is passed on of a completion."""
        prompt = body["prompt"]
        if len(prompt) < SHARED:
            return body
        own = tuple(prompt[FIRST:SHARED])
        other = next((one for key, one in self.prompts.items() if key != own), prompt)
        self.prompts.setdefault(own, prompt)
        if body.get("cache_prompt") is False:
            return body
        return {**body, "prompt": self.fault(prompt, other)}


class _Handler(BaseHTTPRequestHandler):
    server: Proxy

    def do_GET(self) -> None:
        self._pass_on(None)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/v1/completions":
            body = self.server.changed(body)
        self._pass_on(json.dumps(body).encode())

    def _pass_on(self, body: bytes | None) -> None:
        connection = http.client.HTTPConnection(self.server.address)
        headers = {"Content-Type": "application/json"} if body else {}
        connection.request("POST" if body else "GET", self.path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def main(url: str, fault: str) -> None:
    """Serve."""
    proxy = Proxy(url, fault)
    print(f"http://127.0.0.1:{proxy.server_address[1]}", flush=True)
    proxy.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
