"""A local OpenAI-compatible server over any backend, so that what talks to a server can be tested where there is none.

It answers `POST /v1/completions` (one prompt or a list; stop, max_tokens, cache_salt; greedy only) with
`usage.prompt_tokens_details.cached_tokens`, `POST /reset_prefix_cache` with `{"success": …}`, `GET /v1/models`, `/health` and
`/metrics`, whose counters have vLLM's names and count tokens. Requests that arrive together are answered by one call of the
backend, which is never called by two threads at once.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from harness.engines.answers import Answer, Ask, Backend, BackendError

GATHER_S = 0.005
"""How long the first request waits for others to be answered with it."""
BATCH_MAX = 128


class _Body(msgspec.Struct, frozen=True):
    """What a completion request may say; everything else is ignored, as servers do."""

    prompt: str | list[str]
    model: str = ""
    max_tokens: int = 16
    temperature: float = 0.0
    stop: str | list[str] | None = None
    cache_salt: str = ""


class Dispatcher:
    """Answers requests of many threads by one thread that calls the backend with all that wait."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._waiting: queue.SimpleQueue[tuple[Ask, Future[Answer]] | None] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self.queries = self.hits = self.requests = self.batches = 0
        self._thread = threading.Thread(target=self._work, name="dispatcher", daemon=True)
        self._thread.start()

    def answer(self, asks: Sequence[Ask]) -> list[Answer]:
        """Answer prompts, together with whatever else is waiting. Raises what the backend raises."""
        futures: list[Future[Answer]] = [Future() for _ in asks]
        for ask, future in zip(asks, futures, strict=True):
            self._waiting.put((msgspec.structs.replace(ask, id=f"{next(self._numbers)}"), future))
        return [future.result() for future in futures]

    def reset(self) -> bool:
        """Forget every cached prefix, between two calls of the backend."""
        with self._lock:
            return self._backend.reset()

    def close(self) -> None:
        """End the thread."""
        self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        while batch := self._gather():
            asks = [ask for ask, _ in batch]
            try:
                with self._lock:
                    answers = self._backend.answer(asks)
            except Exception as error:
                for _, future in batch:
                    future.set_exception(error)
                continue
            self.batches += 1
            for (_, future), answer in zip(batch, answers, strict=True):
                self.requests += 1
                self.queries += answer.prompt_tokens
                self.hits += answer.restored.get("", 0)
                future.set_result(answer)

    def _gather(self) -> list[tuple[Ask, Future[Answer]]]:
        """Return the requests that wait now or come within a moment; none once the dispatcher is closed."""
        first = self._waiting.get()
        batch = [first] if first else []
        until = time.monotonic() + GATHER_S
        while batch and len(batch) < BATCH_MAX:
            try:
                item = self._waiting.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if item is None:
                self._waiting.put(None)
                break
            batch.append(item)
        return batch


class LocalServer:
    """A server on a port of this machine, to be used as a context manager; `url` is where it listens."""

    def __init__(self, backend: Backend, model: str = "toy", port: int = 0) -> None:
        self.dispatcher = Dispatcher(backend)
        self.model = model
        self._http = _Http(("127.0.0.1", port), _Handler)
        self._http.owner = self
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, name="http", daemon=True)

    def __enter__(self) -> LocalServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        self.dispatcher.close()

    def completion(self, content: bytes) -> dict[str, Any]:
        """Answer the body of a completion request. Raises msgspec.DecodeError or ValueError if it does not fit."""
        body = msgspec.json.decode(content, type=_Body)
        if body.temperature:
            raise ValueError(f"temperature is {body.temperature}; this server is greedy")
        stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
        prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
        asks = [Ask(id="", prompt=p, stop=tuple(stop), max_tokens=body.max_tokens, salt=body.cache_salt) for p in prompts]
        answers = self.dispatcher.answer(asks)
        prompt_tokens, tokens = sum(a.prompt_tokens for a in answers), sum(len(a.tokens) for a in answers)
        return {
            "object": "text_completion",
            "model": self.model,
            "choices": [{"index": i, "text": a.text, "finish_reason": "stop"} for i, a in enumerate(answers)],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": tokens,
                "total_tokens": prompt_tokens + tokens,
                "prompt_tokens_details": {"cached_tokens": sum(a.restored.get("", 0) for a in answers)},
            },
        }

    def metrics(self) -> str:
        """Return the counters as Prometheus reads them."""
        counters = {
            "vllm:prefix_cache_queries_total": self.dispatcher.queries,
            "vllm:prefix_cache_hits_total": self.dispatcher.hits,
            "vllm:request_success_total": self.dispatcher.requests,
        }
        return "".join(
            f'# TYPE {name} counter\n{name}{{model_name="{self.model}"}} {count}\n' for name, count in counters.items()
        )


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    owner: LocalServer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body in one packet: apart, the second waits 40 ms for the first to be acknowledged
    disable_nagle_algorithm = True
    server: _Http

    def do_GET(self) -> None:
        """Answer what is asked of the server itself."""
        owner = self.server.owner
        if self.path == "/health":
            self._send(200, b"")
        elif self.path == "/metrics":
            self._send(200, owner.metrics().encode(), "text/plain; version=0.0.4")
        elif self.path == "/v1/models":
            self._json(200, {"object": "list", "data": [{"id": owner.model, "object": "model"}]})
        else:
            self._json(404, {"error": {"message": f"there is no {self.path}"}})

    def do_POST(self) -> None:
        """Answer a completion, or forget what is cached."""
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            if self.path == "/v1/completions":
                self._json(200, self.server.owner.completion(content))
            elif self.path == "/reset_prefix_cache":
                self._json(200, {"success": self.server.owner.dispatcher.reset()})
            else:
                self._json(404, {"error": {"message": f"there is no {self.path}"}})
        except (msgspec.DecodeError, ValueError) as error:
            self._json(400, {"error": {"message": str(error)}})
        except BackendError as error:
            self._json(500, {"error": {"message": str(error)}})

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the report is the other side's."""

    def _json(self, status: int, content: Any) -> None:
        self._send(status, msgspec.json.encode(content), "application/json")

    def _send(self, status: int, content: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
