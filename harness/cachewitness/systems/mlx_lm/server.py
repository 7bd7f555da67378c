"""What mlx-lm's server does with a request, without its sockets, its threads and its clock.

A request is looked up in the prompt cache when it comes, goes into the batch with what was found,
and is kept at the end of each segment of its prompt and at the end of its answer (mlx-lm 0.32,
server.py: `_generate`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import (
    LRUPromptCache,
    load_prompt_cache,
    make_prompt_cache,
    save_prompt_cache,
)
from mlx_lm.utils import load_model, load_tokenizer

from cachewitness._util.errors import UsageError
from cachewitness.core.engine_failure import native
from cachewitness.core.events import Event
from cachewitness.core.trace_format import Submit
from cachewitness.engines.answering import Generating, loading
from cachewitness.systems.mlx_lm.architectures import ARCHITECTURES, COMMON

NAME = "mlx-lm"
SLOTS = 4
"""So many requests are computed together at most."""
KEPT = 10
"""So many caches are kept: what the server's --prompt-cache-size is if nobody says otherwise."""
SEED = 0
SPREAD = 0.1
"""The deviation of what is added to a parameter that a constructor leaves constant."""


@lru_cache(maxsize=2)
def model_of(name: str) -> Any:
    """Return the model of a checkpoint's folder, or of an architecture with random weights from a
    fixed seed; nothing is left in it by who uses it.

    Raises UsageError if the library cannot load it.
    """
    if name not in ARCHITECTURES:
        with loading(NAME, Path(name)):
            model, _ = load_model(Path(name))
            model.set_dtype(mx.float32)
        return model
    with native():
        module = importlib.import_module(f"mlx_lm.models.{name}")
        mx.random.seed(SEED)
        model = module.Model(
            module.ModelArgs.from_dict({"model_type": name, **COMMON, **ARCHITECTURES[name]})
        )
        model.eval()
        model.update(tree_map(_drawn, model.parameters()))
        mx.eval(model.parameters())
    return model


@lru_cache(maxsize=2)
def vocabulary_of(name: str) -> int:
    """Return how many tokens a model has logits of; a shape is known before anything is computed.

    Raises UsageError if the library cannot load it.
    """
    model = model_of(name)
    with native():
        logits = model(mx.array([[0]]), cache=make_prompt_cache(model))
    return int(logits.shape[-1])


def tokenizer(checkpoint: Path) -> Callable[[str], list[int]]:
    """Return what makes a text token ids, as the server does with the tokenizer of a checkpoint.

    Raises UsageError if the library cannot load it.
    """
    with loading(NAME, checkpoint):
        encode: Callable[[str], list[int]] = load_tokenizer(checkpoint).encode
    return encode


def _drawn(parameter: Any) -> Any:
    """Return a parameter, moved by noise if its constructor left it constant: behind a bias or a
    convolution of zeros a whole layer vanishes, and with it whatever its cache does wrong.
    """
    if parameter.size == 1 or bool(mx.any(parameter != parameter.flatten()[0])):
        return parameter
    return parameter + SPREAD * mx.random.normal(parameter.shape, parameter.dtype)


def _folder() -> TemporaryDirectory[str]:
    """Return a folder for a cache's file. Raises UsageError if there can be none."""
    try:
        return TemporaryDirectory(prefix="cachewitness-")
    except OSError as error:
        raise UsageError(f"--engine {NAME}: files: {error}") from None


@dataclass(eq=False)
class Request(Generating):
    """A request in the batch: what is left of its prompt's segments, and whose caches it finds."""

    left: list[str]
    owner: str


class Server:
    """Answers requests, `slots` of them together. `chunk` tokens of a prompt are computed in a
    step; the first `segment` of one are a system's. With `files` each cache that is found is saved
    to a file and loaded, as who keeps caches on disk does.
    """

    def __init__(
        self,
        model: str,
        *,
        caching: bool,
        chunk: int,
        segment: int,
        slots: int = SLOTS,
        files: bool = False,
    ) -> None:
        self.segment = segment
        self.folder = _folder() if files else None
        self.store = LRUPromptCache(KEPT) if caching else None
        self.name = model
        self.vocabulary = vocabulary_of(model)
        computing = model_of(model)
        with native():
            self.batch = BatchGenerator(
                computing,
                completion_batch_size=slots,
                prefill_batch_size=slots,
                prefill_step_size=chunk,
            )
        self.requests: dict[int, Request] = {}
        self.ended: list[Event] = []

    def submit(self, op: Submit) -> None:
        """Look a prompt up and put the request into the batch."""
        prompt = list(op.tokens)
        owner = f"{self.name} {op.salt}"
        cache = None
        rest = prompt
        if self.store is not None:
            with native():
                cache, rest = self.store.fetch_nearest_cache(owner, prompt)
            if self.folder is not None and cache is not None:
                cache = self.through_file(cache, f"{self.folder.name}/cache.safetensors")
        found = len(prompt) - len(rest)
        segments, kinds = self.segments(prompt, found)
        with native():
            (uid,) = self.batch.insert_segments(
                [segments], [op.generate], [cache], [prompt[:found]]
            )
        self.requests[uid] = Request(kinds, owner, r=op.r, restored=found)

    def through_file(self, cache: list[Any], file: str) -> list[Any]:
        """Return what the library loads of what it saved of a cache."""
        with native():
            save_prompt_cache(file, cache)
            loaded: list[Any] = load_prompt_cache(file)
            mx.eval([layer.state for layer in loaded])
        return loaded

    def segments(self, prompt: list[int], found: int) -> tuple[list[list[int]], list[str]]:
        """Return what is left of a prompt's segments behind what was found, and of what kind each
        is, the last first.

        A prompt is a system's part, of so many tokens as the server was told, and a user's; a short
        one is all a user's.
        """
        cut = self.segment if self.segment < len(prompt) else 0
        parts = [(prompt[found:cut], "system"), (prompt[max(found, cut) :], "user")]
        left = [(tokens, kind) for tokens, kind in parts if tokens]
        return [tokens for tokens, _ in left], [kind for _, kind in reversed(left)]

    def step(self) -> None:
        """Let everybody have a token, or a chunk of its prompt."""
        with native():
            prompts, generated = self.batch.next()
            ends = [
                one.uid
                for one in prompts
                if one.end_of_segment and not one.end_of_prompt and self.requests[one.uid].left
            ]
            kept = self.batch.extract_cache(ends) if self.store is not None else {}
        for uid, (cache, tokens) in kept.items():
            request = self.requests[uid]
            self.keep(request.owner, tokens[:], cache, request.left.pop())
        for one in generated:
            self._take(one)

    def _take(self, response: Any) -> None:
        """Take in a token, and what is kept if it was the last."""
        request = self.requests[response.uid]
        request.tokens.append(int(response.token))
        request.logprobs.append(float(response.logprobs[response.token]))
        if response.finish_reason is not None:
            self.keep(request.owner, response.all_tokens[:], response.prompt_cache, "assistant")
            self.ended.append(self.requests.pop(response.uid).answer("length"))

    def keep(self, owner: str, tokens: list[int], cache: list[Any], kind: str) -> None:
        """Keep the cache of these tokens. The owner is the library's key of a model, which a salt
        makes another one: its prompt cache keeps those apart.
        """
        if self.store is not None:
            with native():
                self.store.insert_cache(owner, tokens, cache, cache_type=kind)

    def cancel(self, r: str) -> None:
        """Take a request out."""
        for uid in [uid for uid, request in self.requests.items() if request.r == r]:
            with native():
                self.batch.remove([uid])
            self.ended.append(self.requests.pop(uid).answer("cancelled"))

    def has(self, r: str) -> bool:
        """Whether a request is in the batch."""
        return any(request.r == r for request in self.requests.values())
