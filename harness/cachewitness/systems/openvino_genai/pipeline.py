"""OpenVINO GenAI's `ContinuousBatchingPipeline` behind the three methods.

Prompts are given as token ids, so no tokenizer has a part in it. Requests are echoed: each has one
logprob for every token of its prompt that was computed but the first, and so what was restored is
known exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai

from cachewitness.core.engine_failure import native
from cachewitness.core.events import Answer, Answering, Ended, Event, Header, Rules
from cachewitness.core.trace_format import Abort, Finish, Op, Step, Submit, TraceHeader
from cachewitness.engines.answering import declared, loading
from cachewitness.systems.openvino_genai.settings import KV_BLOCK, MODEL, NAME, PipelineSettings

VOCABULARY = 256
"""Ids below the special ones, of a model that ci/openvino_models.py made."""
FLOAT32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


@dataclass
class LiveRequest:
    """A request under way: its handle, the length of its prompt, and what was read from the
    handle so far.
    """

    handle: Any
    prompt: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def read(self) -> None:
        """Read what there is."""
        while self.handle.can_read():
            outputs = self.handle.read()
            if not outputs:  # a handle that was given up can be read for ever, and has nothing
                return
            for output in outputs.values():
                self.tokens += output.generated_ids
                self.logprobs += output.generated_log_probs

    def answer(self, r: str, ended: Ended) -> Answer:
        """Return the answer: what was echoed in front of it is the prompt."""
        tokens = self.tokens[self.prompt :]
        echoed = len(self.logprobs) - len(tokens)
        logprobs = self.logprobs[echoed:] if echoed >= 0 else []
        return Answer(
            r=r, tokens=tokens, logprobs=[*logprobs], restored=self._restored(echoed), ended=ended
        )

    def _restored(self, echoed: int) -> int:
        """Return what was restored; −1 if the prompt was computed more than once, or not to its
        end.
        """
        if len(self.tokens) <= self.prompt or not 0 <= echoed <= self.prompt:
            return -1
        return max(self.prompt - 1 - echoed, 0)


@dataclass(frozen=True)
class Loaded:
    """The folder of an exported model, and what is known of it: whether it has recurrent states,
    and how many tokens.
    """

    folder: Path
    hybrid: bool
    vocabulary: int = VOCABULARY


def checkpoint(folder: Path) -> Loaded:
    """Return what is in the folder of a checkpoint. Raises what OpenVINO raises if it cannot read
    it.

    Its states are not looked for: it is taken for a hybrid, of which less is declared.
    """
    with native():
        logits = openvino.Core().read_model(folder / MODEL).output("logits").get_partial_shape()
        return Loaded(folder, hybrid=True, vocabulary=logits[-1].get_length())


def tokenizer(folder: Path) -> Callable[[str], list[int]]:
    """Return what makes a text token ids, by the tokenizer of a checkpoint.

    Raises UsageError if OpenVINO GenAI cannot load it.
    """
    with loading(NAME, folder):
        loaded = genai.Tokenizer(str(folder))
        loaded.encode(" ")  # a folder without a tokenizer is refused only now

    def tokens(text: str) -> list[int]:
        return [int(token) for token in loaded.encode(text).input_ids.data[0]]

    return tokens


class Pipeline:
    """The pipeline as an engine at answers level. `pages` of a trace are KV blocks, from which
    OpenVINO sizes the states.
    """

    def __init__(
        self,
        header: TraceHeader,
        model: Loaded,
        settings: PipelineSettings,
        *,
        caching: bool,
    ) -> None:
        config = genai.SchedulerConfig()
        config.num_kv_blocks = settings.kv_blocks
        config.max_num_batched_tokens = settings.chunk
        config.max_num_seqs = settings.sequences
        config.dynamic_split_fuse = settings.split_fuse
        config.enable_prefix_caching = caching
        if caching and settings.multiplier:
            config.cache_interval_multiplier = settings.multiplier
        if caching and model.hybrid:
            config.num_linear_attention_blocks = settings.states
        with native():
            self.pipeline = genai.ContinuousBatchingPipeline(
                str(model.folder), config, "CPU", FLOAT32
            )
        self.blocks = settings.kv_blocks
        self._asked: dict[str, LiveRequest] = {}
        self._count = 0
        # A prompt is kept in whole blocks, and of a hybrid as far as a state was; how far that is
        # the model's weights decide where no multiplier is set, so nothing is declared then.
        unit = KV_BLOCK * (settings.multiplier if model.hybrid else 1)
        repeats = unit + 1 if caching and unit else 0
        answering = Answering("float32", model.vocabulary, repeats=repeats)
        # A prompt takes all blocks. Where a trace says how many states there are, they may be too
        # few for that, and how many a prompt takes OpenVINO does not say.
        blocks = config.num_kv_blocks if not settings.states else 0
        rules = Rules(caching=caching, answering=answering, max_prompt=blocks * KV_BLOCK)
        self.header = declared(NAME, header, rules, version=genai.__version__)

    def describe(self) -> Header:
        """Return what the engine declares."""
        return self.header

    def apply(self, op: Op) -> list[Event]:
        """Carry one operation out and return the answers that came with it."""
        with native():
            return self._carried_out(op)

    def _carried_out(self, op: Op) -> list[Event]:
        if isinstance(op, Submit):
            self._submit(op)
        elif isinstance(op, Step):
            self._step()
        elif isinstance(op, Abort):
            asked = self._asked.pop(op.r)
            asked.handle.cancel()
            asked.read()
            return [asked.answer(op.r, "cancelled")]
        elif isinstance(op, Finish):
            answers: list[Event] = []
            while op.r in self._asked and self._step():
                answers += self._collect()
            return answers
        return self._collect()

    def close(self) -> None:
        """Let go of the pipeline."""
        self._asked.clear()
        self.pipeline = None

    def _submit(self, op: Submit) -> None:
        asked = genai.GenerationConfig()
        asked.max_new_tokens = op.generate
        asked.ignore_eos = True
        asked.do_sample = False
        asked.logprobs, asked.echo = 1, True
        self._count += 1
        ids = openvino.Tensor(np.asarray([op.tokens], dtype=np.int64))
        self._asked[op.r] = LiveRequest(
            self.pipeline.add_request(self._count, ids, asked), len(op.tokens)
        )

    def _step(self) -> bool:
        """Let the pipeline make a step; return whether there was anything to do."""
        if not self.pipeline.has_non_finished_requests():
            return False
        self.pipeline.step()
        return True

    def _collect(self) -> list[Event]:
        """Return the answers of requests that are over."""
        over: dict[str, Ended] = {}
        for r, asked in self._asked.items():
            asked.read()
            status = asked.handle.get_status()
            if status == genai.GenerationStatus.FINISHED:
                over[r] = "length"
            elif status == genai.GenerationStatus.IGNORED:
                over[r] = "refused"
        return [self._asked.pop(r).answer(r, ended) for r, ended in over.items()]
