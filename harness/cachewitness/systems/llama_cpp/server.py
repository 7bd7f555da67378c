"""llama.cpp's server in this process, and what is asked of it over its own port.

It runs in threads of its own. It is ended only after it has served something: else `xllamacpp` may
not come back.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import xllamacpp

from cachewitness._util import http
from cachewitness.systems.llama_cpp.completion import HEADERS, LINE_MAX, ServerFailed
from cachewitness.systems.llama_cpp.settings import ServerSettings

HTTP_THREADS = 16
"""Requests that are heard at once; each one under way takes a thread."""
ASKED_S = 60.0
"""Seconds in which it must answer what is asked beside the prompts."""
POLL = 0.001
"""Seconds between two questions."""
VERBOSE = 4
"""How much is written to the log: one more than by default, which tells what is kept and restored.
"""
NAMES = {
    **{
        name: name
        for name in ("n_ubatch", "n_parallel", "checkpoint_min_step", "kv_unified", "swa_full")
    },
    "ctx_checkpoints": "n_ctx_checkpoints",
    "cache_ram": "cache_ram_mib",
}
"""What llama.cpp's command line calls a setting, and what `xllamacpp` calls it."""


class Server:
    """A server for one trace; `files` is a folder for the files of its slots."""

    def __init__(self, model: Path, settings: ServerSettings, files: str) -> None:
        self._server: Any = xllamacpp.Server(_parameters(model, settings, files))
        self.address = self._server.listening_address
        self.slots()

    def slots(self) -> list[dict[str, Any]]:
        """Return what the server says of its slots."""
        status, reply = self.ask("GET", "/slots")
        if status != http.OK or not isinstance(reply, list):
            raise ServerFailed(f"/slots answers {status}, {str(reply)[:80]!r}")
        return reply

    def context(self) -> int:
        """Return how many tokens the smallest slot says that a prompt and its answer may have."""
        try:
            return min(int(slot["n_ctx"]) for slot in self.slots())
        except (TypeError, LookupError, ValueError):
            raise ServerFailed("/slots answers without `n_ctx`") from None

    def vocabulary(self) -> int:
        """Return how many tokens the model knows."""
        return self._of_model("n_vocab")

    def bits(self) -> float:
        """Return the bits of a weight of the model, in the mean."""
        return 8 * self._of_model("size") / self._of_model("n_params")

    def _of_model(self, name: str) -> int:
        status, listed = self.ask("GET", "/v1/models")
        try:
            return int(listed["data"][0]["meta"][name])
        except (TypeError, LookupError):
            raise ServerFailed(f"/v1/models answers {status} without `{name}`") from None

    def under_way(self) -> int:
        """Return how many requests run in slots."""
        return sum(bool(slot["is_processing"]) for slot in self.slots())

    def settle(self, running: int, seconds: float) -> None:
        """Wait until no more than so many requests run, for some seconds at most."""
        until = time.monotonic() + seconds
        while self.under_way() > running and time.monotonic() < until:
            time.sleep(POLL)

    def through_files(self) -> dict[int, int]:
        """Save every slot that holds something, erase it, and restore it from its file; return how
        many tokens each has then, by the server's own words.
        """
        restored = {}
        for slot in self.slots():
            number = slot["id"]
            for action in ("save", "erase", "restore"):
                status, reply = self.ask(
                    "POST", f"/slots/{number}?action={action}", {"filename": f"slot{number}"}
                )
                if status != http.OK:
                    raise ServerFailed(
                        f"to {action} slot {number} answers {status}, {str(reply)[:200]!r}"
                    )
                if action == "save" and not reply["n_saved"]:
                    break
                if action == "restore":
                    restored[number] = int(reply["n_restored"])
        return restored

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return the status and the JSON that the server answers. Raises ServerFailed if it is
        none.
        """
        content = None if body is None else json.dumps(body).encode()
        try:
            reply = http.ask(
                method, f"{self.address}{path}", content, HEADERS, within=ASKED_S, most=LINE_MAX
            )
            return reply.status, reply.json()
        except (http.NoAnswer, ValueError) as error:
            raise ServerFailed(f"{method} {path}: {error!r}") from None

    def close(self) -> None:
        """End the server."""
        self._server = None


def version() -> str:
    """Return the version of the wheel, by which alone a build of llama.cpp can be had again."""
    return f"xllamacpp {xllamacpp.__version__}"


def _parameters(model: Path, settings: ServerSettings, files: str) -> Any:
    """Return the parameters: one thread, and 32-bit numbers without flash attention, so that
    little is rounded.
    """
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model)
    asked = {**settings.numbers, **settings.switches}
    values = {
        "n_ctx": settings.n_ctx,
        "n_batch": settings.n_batch,
        "slot_save_path": files,
        "fit_params": False,
        "warmup": False,
        "verbosity": VERBOSE,
        "endpoint_slots": True,
        "n_threads_http": HTTP_THREADS,
        **dict.fromkeys(("cache_type_k", "cache_type_v"), xllamacpp.ggml_type.GGML_TYPE_F32),
        "flash_attn_type": xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED,
        **{theirs: asked[ours] for ours, theirs in NAMES.items()},
    }
    for name, value in values.items():
        setattr(parameters, name, value)
    for threads in (parameters.cpuparams, parameters.cpuparams_batch):
        setattr(threads, "n_threads", 1)  # noqa: B010  # nobody reads it here
    return parameters
