"""An OpenAI-compatible server over any backend: what talks to a server can be tried, and tested,
where there is none.

It answers `POST /v1/completions` (one prompt or a list; stop, max_tokens, cache_salt; greedy only)
with `usage.prompt_tokens_details.cached_tokens`, `POST /reset_prefix_cache` with `{"success": …}`,
`GET /v1/models`, `/health`, `/version` and `/metrics`, whose counters have vLLM's names and count
tokens. Requests that arrive together are answered by one call of the backend, which is never called
by two threads at once.

A reset takes vLLM's two parameters, `?reset_external=true` for the second tier as well and
`?reset_running_requests=…`; since a reset waits here until nothing runs, the second has nothing to
do (vLLM 0.33.0, entrypoints/serve/dev/cache/api_router.py).
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from cachewitness import __version__
from cachewitness.engines.answers import Answer, Ask, Backend
from cachewitness.parity.scores.dispatcher import Dispatcher

BODY_MAX = 16 << 20
"""Bytes of a request that are read; a longer one is refused."""
_TRUE = ("1", "true", "t", "yes", "y", "on")
_FALSE = ("0", "false", "f", "no", "n", "off")
"""How a flag of a query is written, in any case."""


class Refused(Exception):
    """A request that cannot be answered: the status, and why in one line."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class _Body(msgspec.Struct, frozen=True):
    """What a completion request may say; everything else is ignored, as servers do."""

    prompt: str | list[str]
    model: str = ""
    max_tokens: int = 16
    temperature: float = 0.0
    stop: str | list[str] | None = None
    cache_salt: str = ""


class LocalServer:
    """A server on a port of this machine, to be used as a context manager; `url` is where it
    listens.

    Raises OSError if the port cannot be had.
    """

    def __init__(self, backend: Backend, model: str = "toy", port: int = 0) -> None:
        self.model = model
        self._http = _Http(("127.0.0.1", port), _Handler)
        self._http.owner = self
        self.dispatcher = Dispatcher(backend)
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
        """Answer the body of a completion request. Raises Refused if it does not fit,
        BackendError if there is no answer.
        """
        answers = self.dispatcher.answer(self._asks(content))
        prompt_tokens = sum(a.prompt_tokens for a in answers)
        tokens = sum(len(a.tokens) for a in answers)
        return {
            "object": "text_completion",
            "model": self.model,
            "choices": [
                {"index": i, "text": a.text, "finish_reason": "stop"} for i, a in enumerate(answers)
            ],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": tokens,
                "total_tokens": prompt_tokens + tokens,
                "prompt_tokens_details": {
                    "cached_tokens": sum(restored(answer) for answer in answers)
                },
            },
        }

    def _asks(self, content: bytes) -> list[Ask]:
        try:
            body = msgspec.json.decode(content, type=_Body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Refused(400, f"the body is no request for a completion: {error}") from None
        if body.model not in ("", self.model):
            raise Refused(404, f"there is no model {body.model!r}; this server has {self.model}")
        if body.temperature:
            raise Refused(400, f"temperature is {body.temperature}; this server is greedy")
        if body.max_tokens < 1:
            raise Refused(400, f"max_tokens is {body.max_tokens}; an answer has at least 1")
        stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
        prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
        if not all(prompts) or not prompts:
            raise Refused(400, "prompt is empty")
        return [
            Ask(id="", prompt=p, stop=tuple(stop), max_tokens=body.max_tokens, salt=body.cache_salt)
            for p in prompts
        ]

    def reset(self, query: str) -> dict[str, Any]:
        """Forget what is cached, as the query of the request says. Raises Refused for a flag
        that is none.
        """
        flags = {
            key: _flag(key, values[-1])
            for key, values in parse_qs(query, keep_blank_values=True).items()
        }
        return {"success": self.dispatcher.reset(external=flags.get("reset_external", False))}

    def metrics(self) -> str:
        """Return the counters as Prometheus reads them: the engine's own cache, and the one
        beside it for what is left.
        """
        counted = self.dispatcher
        counters = {
            "vllm:prefix_cache_queries_total": counted.queries,
            "vllm:prefix_cache_hits_total": counted.hits - counted.from_tier,
            "vllm:external_prefix_cache_queries_total": (
                counted.queries - counted.hits + counted.from_tier
            ),
            "vllm:external_prefix_cache_hits_total": counted.from_tier,
            "vllm:request_success_total": counted.requests,
        }
        return "".join(
            f'# TYPE {name} counter\n{name}{{model_name="{self.model}"}} {count}\n'
            for name, count in counters.items()
        )


def restored(answer: Answer) -> int:
    """Return how many tokens of its prompt an answer took from any cache."""
    return answer.restored.get("", 0)


def _flag(key: str, text: str) -> bool:
    """Read a flag of a query; those that nobody knows are ignored."""
    if key not in ("reset_external", "reset_running_requests"):
        return False
    if text.lower() not in (*_TRUE, *_FALSE):
        raise Refused(422, f"{key} is {text!r}; it is true or false")
    return text.lower() in _TRUE


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    owner: LocalServer

    def handle_error(self, *_: Any) -> None:
        """Say nothing of a client that went away."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # headers and body in one packet: apart, the second waits 40 ms for the first to be acknowledged
    wbufsize = -1
    disable_nagle_algorithm = True
    server: _Http

    def do_GET(self) -> None:
        """Answer what is asked of the server itself."""
        owner = self.server.owner
        path = urlsplit(self.path).path
        if path == "/health":
            self._send(200, b"")
        elif path == "/metrics":
            self._send(200, owner.metrics().encode(), "text/plain; version=0.0.4")
        elif path == "/version":
            self._json(200, {"version": f"cachewitness {__version__}"})
        elif path == "/v1/models":
            self._json(200, {"object": "list", "data": [{"id": owner.model, "object": "model"}]})
        else:
            self._json(404, _error(f"there is no {path}"))

    def do_POST(self) -> None:
        """Answer a completion, or forget what is cached."""
        try:
            status = 200
            content = self._answered()
        except Refused as error:
            status = error.status
            content = _error(str(error))
        except Exception as error:  # of the backend, which may die in any way
            status = 500
            content = _error(str(error) or type(error).__name__)
        self._json(status, content)

    def _answered(self) -> dict[str, Any]:
        asked = urlsplit(self.path)
        content = self._content()
        if asked.path == "/v1/completions":
            return self.server.owner.completion(content)
        if asked.path == "/reset_prefix_cache":
            return self.server.owner.reset(asked.query)
        raise Refused(404, f"there is no {asked.path}")

    def _content(self) -> bytes:
        length = self.headers.get("Content-Length") or "0"
        if not length.isdecimal() or int(length) > BODY_MAX:
            self.close_connection = True
            raise Refused(
                413, f"Content-Length is {length[:40]}; at most {BODY_MAX} bytes are read"
            )
        return self.rfile.read(int(length))

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


def _error(why: str) -> dict[str, Any]:
    return {"error": {"message": " ".join(why.split())}}
