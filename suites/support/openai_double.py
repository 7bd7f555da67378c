"""A server that speaks OpenAI's completions over the sample engine, as vLLM's does or llama.cpp's,
lawful or with a fault.

It runs in this process, on a port of this machine. `said` may change what an answer says of itself;
`meets` may do something else to a completion's connection altogether. Both are told the number of
the completion, from 1 on.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cachewitness.core.trace_format import TraceHeader
from cachewitness.engines.fault_tools import wrap
from cachewitness.systems.sample.engine import SampleEngine, configurations
from cachewitness.systems.sample.server import Request
from cachewitness_faults.sample.server_faults import FAULTS

BLOCK = 8
Meets = Callable[[Any, int], bool]
"""Does something to a completion's handler, and returns whether that was its answer."""


class Double:
    """A server.

    `salts`: it heeds `cache_salt`; `switch`: it heeds `cache_prompt`; `counts`: it says what it
    restored. `pace`: seconds in front of each of its steps. `noise`: by which share logits move for
    each other request in a batch, if it has a prompt of `noisy_from` tokens or more; `decoding`: by
    which share decoding moves a state otherwise than prefill does. `lists`: what it says of its
    model; `takes`: the longest prompt, 0: any.
    """

    def __init__(
        self,
        *,
        mutant: str = "",
        caching: bool = True,
        salts: bool = True,
        switch: bool = False,
        counts: bool = True,
        noise: float = 0.0,
        noisy_from: int = 0,
        decoding: float = 0.0,
        pace: float = 0.0,
        lists: Mapping[str, Any] = {},  # nobody writes to it
        takes: int = 0,
        rewrite: Callable[[dict[str, Any], int], Any] = lambda part, number: part,
        meets: Meets = lambda handler, number: False,
    ) -> None:
        layout = configurations()[0].layout
        header = TraceHeader("double", layout, 4096, "answers", "", {})
        engine = SampleEngine(header, {"caching": "on" if caching else "off"})
        if mutant:
            FAULTS[mutant].plant(engine)

        def token(original: Any, request: Request) -> None:
            original(request)
            if request.computed > request.prompt:
                request.state = tuple(value * (1 + decoding) for value in request.state)

        wrap(engine.server, "_token", token)
        self.server = engine.server
        self.salts = salts
        self.switch = switch
        self.counts = counts
        self.pace = pace
        self.lists = lists
        self.takes = takes
        self.rewrite = rewrite
        self.meets = meets
        self.noise = noise
        self.noisy_from = noisy_from
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.over = threading.Event()
        self.changed = threading.Condition()
        self.ended: dict[str, str] = {}
        self._http = _Http(("127.0.0.1", 0), _Handler)
        self._http.owner = self
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    @contextmanager
    def serving(self) -> Iterator[Double]:
        """Serve."""
        serve = partial(self._http.serve_forever, poll_interval=0.01)
        threads = [
            threading.Thread(target=target, daemon=True) for target in (serve, self._compute)
        ]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self.over.set()
            with self.changed:
                self.changed.notify_all()
            self._http.shutdown()
            self._http.server_close()
            for thread in threads:
                thread.join()

    def _compute(self) -> None:
        while not self.over.wait(self.pace):
            with self.changed:
                server = self.server
                if not server.running and not server.waiting:
                    self.changed.wait(1)
                    continue
                server._noise = self.noise * (
                    max(one.prompt for one in server.running or server.waiting) >= self.noisy_from
                )
                server.step()
                self.ended |= {answer.r: answer.ended for answer in server.ended}
                server.ended.clear()
                self.changed.notify_all()

    def begin(self, body: dict[str, Any], number: int) -> Request:
        """Take a completion in."""
        with self.changed:
            salt = body.get("cache_salt", "") if self.salts else ""
            if self.switch and body.get("cache_prompt") is False:
                salt = f"never again {number}"
            tokens = list(body["prompt"])
            request = Request(str(number), salt, tokens, len(tokens), body["max_tokens"])
            self.server.waiting.append(request)
            self.changed.notify_all()
        return request

    def parts(
        self, body: dict[str, Any], number: int, request: Request
    ) -> Iterator[dict[str, Any]]:
        """Yield an answer in parts, as its tokens come."""
        sent, over = 0, ""
        while not over:
            with self.changed:
                while (
                    len(request.generated) == sent
                    and request.r not in self.ended
                    and not self.over.is_set()
                ):
                    self.changed.wait(1)
                fresh = request.generated[sent:]
                logprobs = request.logprobs[sent:]
                over = self.ended.get(request.r, "") or ("shut" if self.over.is_set() else "")
            sent += len(fresh)
            chosen = {
                "tokens": [f"token_id:{token}" for token in fresh],
                "token_logprobs": logprobs,
            }
            finish = "length" if over else None
            yield {
                "model": body["model"],
                "choices": [{"index": 0, "text": "", "logprobs": chosen, "finish_reason": finish}],
            }
        usage: dict[str, Any] = {"prompt_tokens": request.prompt}
        if self.counts:
            usage["prompt_tokens_details"] = {"cached_tokens": max(request.restored, 0)}
        yield {"model": body["model"], "choices": [], "usage": usage}


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    owner: Double

    def handle_error(self, *_: Any) -> None:
        """Say nothing of a client that went away."""


class _Handler(BaseHTTPRequestHandler):
    server: _Http

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self.send(200, {"data": [{"id": "toy", **self.server.owner.lists}]})
        else:
            self.send(404, {"error": {"message": "Not Found"}})

    def do_POST(self) -> None:
        owner = self.server.owner
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked = body
        with owner.changed:
            owner.headers.append(dict(self.headers))
            owner.bodies.append(body)
            number = len(owner.bodies)
        if owner.meets(self, number):
            return
        if 0 < owner.takes < len(body["prompt"]):
            self.send(400, {"error": {"message": "the prompt is too long"}})
            return
        request = owner.begin(body, number)
        try:
            self._answer(body, number, request)
        except OSError:
            with owner.changed:
                owner.server.cancel(request.r)

    def _answer(self, body: dict[str, Any], number: int, request: Request) -> None:
        owner = self.server.owner
        parts = (owner.rewrite(part, number) for part in owner.parts(body, number, request))
        if not body["stream"]:
            self.send(200, whole(list(parts)))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.end_headers()
        for part in parts:
            self.wfile.write(
                part if isinstance(part, bytes) else b"data: " + json.dumps(part).encode() + b"\n\n"
            )
        self.wfile.write(b"data: [DONE]\n\n")

    def send(self, status: int, content: Any, **headers: str) -> None:
        """Answer with JSON, or with bytes as they are."""
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def whole(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the parts of an answer as one."""
    chosen = [part["choices"][0] for part in parts if part["choices"]]
    logprobs = {
        name: [one for choice in chosen for one in choice["logprobs"][name]]
        for name in ("tokens", "token_logprobs")
    }
    return {**parts[-1], "choices": [{**chosen[-1], "logprobs": logprobs}]}
