"""A model of transformers: computed from nothing, or continued from one of the library's cache
objects.

Logprobs are of float32 on one thread of a CPU. A tiny model has random weights from a fixed seed,
so that whoever opens it anywhere gets the same one; a checkpoint has its own.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from cachewitness._util.errors import UsageError
from cachewitness.core.engine_failure import native
from cachewitness.engines.answering import loading
from cachewitness.systems.transformers.architectures import COMMON, Architecture

SEED = 0
DELTA_RULE = "torch_chunk_gated_delta_rule"
"""What a modelling file of transformers calls the scan of GatedDeltaNet; its parameter `chunk_size`
is nowhere configured."""
NAMES = ("cache", "cache_params", "past_key_values")
"""What models call the cache that they are given: the first since transformers 5.24, before that
one of the others."""
SPREAD = 0.1
"""The deviation of what is added to a parameter that a constructor leaves constant."""
SCAN, SCAN_MIN = 32, 8
"""Tokens that a scan computes together, and the least of it."""


class Model:
    """A causal model of the library, and what it takes to resume it."""

    def __init__(self, module: Any) -> None:
        self.module = module.eval()
        self.config = module.config
        takes = inspect.signature(self.module.forward).parameters
        self._named = next(name for name in NAMES if name in takes)
        self._placed = "position_ids" in takes

    @classmethod
    def loaded(cls, checkpoint: Path) -> Model:
        """Return the model of a checkpoint: a folder that the library wrote, or a GGUF file.

        Raises UsageError if the library cannot load it.
        """
        _prepare()
        model = transformers.AutoModelForCausalLM
        return cls(_loaded(model, checkpoint, attn_implementation="eager", dtype=torch.float32))

    @classmethod
    def tiny(cls, architecture: Architecture) -> Model:
        """Return the model of an architecture with random weights.

        Raises what transformers raises, and UsageError for an architecture that this release does
        not have.
        """
        _prepare()
        if architecture.model_type not in transformers.CONFIG_MAPPING:
            reason = f"{architecture.model_type} is in transformers {architecture.since} and later"
            raise UsageError(
                f"--engine transformers: {reason}, and this is {transformers.__version__}"
            )
        config = transformers.CONFIG_MAPPING[architecture.model_type](
            **{**COMMON, "initializer_range": architecture.width, **architecture.options}
        )
        torch.manual_seed(SEED)
        module = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        for name, parameter in module.named_parameters():
            for end, value in architecture.weights.items():
                if name.endswith(end):
                    torch.nn.init.constant_(parameter, value)
        _draw(module.float())
        return cls(module)

    @property
    def vocabulary(self) -> int:
        """Return how many tokens it knows."""
        return int(self.config.get_text_config().vocab_size)

    def empty(self, room: int = 0) -> transformers.Cache:
        """Return a cache of the library that holds nothing: one that grows, or a static one with
        room for so many tokens.
        """
        if room:
            return transformers.StaticCache(config=self.config, max_cache_len=room)
        return transformers.DynamicCache(config=self.config)

    def resumed(self, cache: transformers.Cache, tokens: Sequence[int], at: int) -> torch.Tensor:
        """Compute the tokens behind the first `at`, which the cache holds and takes in; return the
        logprobs [vocabulary] of what follows.
        """
        return self.together(cache, [tokens], at)[0]

    def together(
        self, cache: transformers.Cache, rows: Sequence[Sequence[int]], at: int
    ) -> torch.Tensor:
        """Compute tokens behind the first `at` of each row of a cache, as many of each, which it
        takes in; return the logprobs [rows, vocabulary] of what follows.

        Positions are given, as `generate` does: some models count from 0 again if they are not.
        """
        more: dict[str, Any] = {self._named: cache, "use_cache": True}
        if self._placed:
            more["position_ids"] = torch.arange(at, at + len(rows[0])).expand(len(rows), -1)
        with native(), torch.inference_mode():
            logits = self.module(torch.tensor([list(row) for row in rows]), **more).logits
        return logits[:, -1].log_softmax(-1)

    def computed(self, rows: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Compute texts from nothing, in one batch without a cache; return the logprobs
        [vocabulary] of what follows each.

        Rows are padded behind their ends, which no causal model sees. The more rows, the fewer
        tokens a scan takes together, so that what batches and chunks do to rounding shows in the
        noise of one.
        """
        longest = max(map(len, rows))
        ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
        with native(), torch.inference_mode(), self._scanning(max(SCAN // len(rows), SCAN_MIN)):
            logits = self.module(ids, use_cache=False).logits
        return [logits[index, len(row) - 1].log_softmax(-1) for index, row in enumerate(rows)]

    @contextmanager
    def _scanning(self, tokens: int) -> Iterator[None]:
        """Let scans compute so many tokens together, in models that have scans of chunks."""
        code = sys.modules[type(self.module).__module__]
        rule = getattr(code, DELTA_RULE, None)
        mixers = {
            part: part.chunk_size
            for part in self.module.modules()
            if isinstance(getattr(part, "chunk_size", None), int)
        }
        if rule is not None:
            setattr(code, DELTA_RULE, partial(rule, chunk_size=tokens))
        for part in mixers:
            part.chunk_size = tokens
        try:
            yield
        finally:
            if rule is not None:
                setattr(code, DELTA_RULE, rule)
            for part, usual in mixers.items():
                part.chunk_size = usual


def _draw(module: Any) -> None:
    """Move by noise what constructors leave constant of what a checkpoint holds: behind a bias or a
    convolution of zeros a whole layer vanishes, and with it whatever its cache does wrong.
    """
    with torch.inference_mode():
        for values in module.state_dict().values():
            if values.numel() > 1 and bool((values == values.flatten()[0]).all()):
                values += SPREAD * torch.randn_like(values)


def tokenizer(checkpoint: Path) -> Callable[[str], list[int]]:
    """Return what makes a text token ids, as the tokenizer beside a checkpoint does.

    Raises UsageError if the library cannot load it.
    """
    loaded = _loaded(transformers.AutoTokenizer, checkpoint)

    def tokens(text: str) -> list[int]:
        return list(loaded(text)["input_ids"])

    return tokens


def _loaded(kind: Any, checkpoint: Path, **options: Any) -> Any:
    single = checkpoint.suffix == ".gguf"
    file = {"gguf_file": checkpoint.name} if single else {}
    with loading("transformers", checkpoint):
        return kind.from_pretrained(
            str(checkpoint.parent if single else checkpoint),
            local_files_only=True,
            **file,
            **options,
        )


def _prepare() -> None:
    """Compute on one thread, and print nothing beside the report."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
