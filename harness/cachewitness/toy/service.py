"""Answers prompts with the toy model: greedy decoding over a paged cache, many requests at a time.

It is the engine that traces run on (scheduler, cache manager, pages), but what a request generates
is what the model says. What a request took from the cache is read from the engine's own events, as
everything else is.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from cachewitness import __version__
from cachewitness._util import data
from cachewitness._util.collecting import seldom_collected
from cachewitness._util.errors import UsageError
from cachewitness.core.events import Accept, Event, Hit, Preempted, ResetDone, StepBegin, Unpublish
from cachewitness.core.restored import restored
from cachewitness.core.trace_format import Abort, Finish, GroupSpec, Layout, Preempt, Reset, Step
from cachewitness.engines import policy as policies
from cachewitness.engines.answers import Answer, Ask, BackendError
from cachewitness.engines.faults import plant
from cachewitness.engines.on_tensors import Serving
from cachewitness.engines.registry import kinds
from cachewitness.toy.engine import check, check_kernels
from cachewitness.toy.greedy import GreedyEngine
from cachewitness.toy.model import kind_of, loaded
from cachewitness_reference.toy_model import checkpoint as checkpoints
from cachewitness_reference.toy_model import config as configs
from cachewitness_reference.toy_model.config import ModelError, ToyConfig
from cachewitness_reference.toy_model.tokenizer import END, Tokenizer

PAGES = 4096
MODEL_LEN = 4096
BLOCK_SIZE = 8
"""Shorter than any question of the problems, so that a replay resumes inside the question and not
before it."""
STALLED_STEPS = 64
"""So many steps in which nobody computed anything, and the engine is stuck."""


class ToyService:
    """A `Backend` over the toy model of a checkpoint folder.

    It follows a `policy`, of a `release`; `caching` turns prefix caching on; `mutant` plants a
    seeded fault. The pool has `pages` blocks of `block_size` tokens, at most `batch` requests run
    at a time, and a step computes at most `budget` tokens; `retention_interval` is the policy's
    option. `tier_pages` > 0 adds a second tier. With `preempt_every` n > 0 each n-th step takes its
    place from the request that came last, once for each request. So many `drafts` are verified with
    each token; so many steps are `in_flight` when the next one is scheduled (0 to 2). `dtype` is
    float32, float64, bfloat16 or bf16-state (float32, recurrent memories in bfloat16); `device` is
    cpu or cuda, `kernels` are torch or triton. `engine` is what carries the requests out.

    Raises UsageError for an option or a checkpoint that does not fit.
    """

    name = "toy"

    def __init__(
        self,
        checkpoint: Path | None = None,
        *,
        caching: bool = True,
        policy: str = "vllm",
        mutant: str = "",
        release: str = "",
        block_size: int = BLOCK_SIZE,
        pages: int = PAGES,
        batch: int = 16,
        budget: int = 1024,
        retention_interval: int | None = None,
        tier_pages: int = 0,
        preempt_every: int = 0,
        drafts: int = 0,
        in_flight: int = 0,
        dtype: str = "float32",
        device: str = "cpu",
        kernels: str = "torch",
    ) -> None:
        check(dtype, device)
        kind = policies.get(policy)
        folder = checkpoint or data.checkpoints() / kind.tensors.checkpoint
        try:
            layout = layout_of(configs.load(folder / checkpoints.CONFIG), block_size)
            self.tokenizer = Tokenizer.load(folder / checkpoints.TOKENIZER)
        except ModelError as error:
            raise UsageError(f"--checkpoint: {error}") from None
        serving = Serving(
            caching=caching,
            pages=pages,
            batch=batch,
            budget=budget,
            model_len=MODEL_LEN,
            retention_interval=retention_interval,
            drafts=drafts,
            in_flight=in_flight,
            tier_pages=tier_pages,
        )
        header = kind.serve(layout, serving)
        engine: Any = kind.open(header, {"release": release})
        model = loaded(folder, engine.header.local_groups(), precision=dtype, device=device)
        check_kernels(kernels, device, model.config)
        self.engine = GreedyEngine(engine, model, kernels=kernels)
        self._header = engine.header
        if mutant:
            plant(mutant, kinds()["toy"], self.engine, header)
        self._preempt_every = preempt_every
        self._asked = self._steps = 0
        self._versions = {
            "engine": f"toy {__version__}" + (f" mutant {mutant}" if mutant else ""),
            "policy": f"{policy} {engine.header.engine_version}",
            "checkpoint": model.sha256,
            "device": device,
            "dtype": dtype,
            "kernels": kernels,
            "torch": str(torch.__version__),
        }

    def answer(self, asks: Sequence[Ask]) -> list[Answer]:
        """Answer every prompt, in the order asked.

        Raises BackendError for a prompt that can never run, or if the engine stops computing.
        """
        jobs = {
            f"q{self._asked + index}": _Job(ask, self.tokenizer) for index, ask in enumerate(asks)
        }
        self._asked += len(asks)
        with seldom_collected():
            self._run(jobs)
        return [self._answer_of(r, job) for r, job in jobs.items()]

    def _run(self, jobs: Mapping[str, _Job]) -> None:
        self._submit_all(jobs)
        live = dict(jobs)
        idle = 0
        while live:
            ran = self._step(live)
            idle = 0 if ran else idle + 1
            if idle > STALLED_STEPS:
                waiting = next(iter(live.values())).ask.id
                self._abort(live)
                raise BackendError(
                    f"question {waiting}: nothing was computed in {idle} steps; is the pool too"
                    " small?"
                )

    def reset(self, *, external: bool = False) -> bool:
        """Forget every cached prefix of the local pool; with `external` those of the second tier
        too.
        """
        op = Reset() if external else Reset(tier="local")
        done = [event.ok for event in self.engine.apply(op) if isinstance(event, ResetDone)]
        return all(done)

    def versions(self) -> Mapping[str, str]:
        """Return engine, checkpoint hash, device, precision and packages."""
        return self._versions

    def close(self) -> None:
        """Let go of the pools."""
        self.engine.close()

    def _submit_all(self, jobs: Mapping[str, _Job]) -> None:
        """Submit every prompt, or none: if one can never run, those before it are taken back."""
        submitted: list[str] = []
        for r, job in jobs.items():
            try:
                self._submit(r, job)
            except ValueError as error:
                self._abort(submitted)
                raise BackendError(f"question {job.ask.id}: {error}") from None
            submitted.append(r)

    def _abort(self, requests: Iterable[str]) -> None:
        for r in requests:
            self.engine.apply(Abort(r))

    def _submit(self, r: str, job: _Job) -> None:
        engine = self.engine.engine
        ask = job.ask
        self.engine.events_of(
            lambda: engine.submit_tokens(r, job.prompt, salt=ask.salt, shared=job.shared)
        )

    def _step(self, live: dict[str, _Job]) -> bool:
        """Run one step, end who is through, and return whether anybody computed anything."""
        self._steps += 1
        events = self.engine.apply(Step())
        ran = self._see(events, live)
        for r in [r for r, job in live.items() if job.done]:
            self.engine.apply(Finish(r))
            del live[r]
        if self._preempt_every and self._steps % self._preempt_every == 0:
            fresh = [
                r
                for r in self.engine.engine.running()
                if r in live and not live[r].preemptions and live[r].tokens
            ]
            if fresh:
                self._see(self.engine.apply(Preempt(fresh[-1])), live)
        return ran

    def _see(self, events: Iterable[Event], live: Mapping[str, _Job]) -> bool:
        ran = False
        evictions = 0
        hits = []
        for event in events:
            if isinstance(event, Accept) and event.r in live:
                live[event.r].take(event.tokens)
                live[event.r].drafted += len(event.tokens) - 1
            elif isinstance(event, Unpublish) and event.reason == "evict":
                evictions += 1
            elif isinstance(event, Hit) and event.r in live and not live[event.r].restored:
                live[event.r].restored = {"": event.resume} | restored(self._header, event)
                hits.append(event)
            elif isinstance(event, Preempted) and event.r in live:
                live[event.r].preemptions += 1
            elif isinstance(event, StepBegin):
                ran = bool(event.runs)
                for hit in hits:
                    live[hit.r].from_tier = self._fetched(hit, event)
        for job in live.values() if evictions else ():
            job.evictions += evictions
        return ran

    def _fetched(self, hit: Hit, begin: StepBegin) -> int:
        """Return how many of the restored tokens came from the second tier: those of the group
        of which most did.
        """
        fetched = {
            (move.dst_pool, move.dst) for move in begin.copies if move.src_pool != move.dst_pool
        }
        most = 0
        for group in self._header.local_groups():
            columns = [
                column
                for column, page in enumerate(hit.pages[group.id])
                if (group.pool, page) in fetched
            ]
            if columns:
                tokens = (
                    max(columns) + 1 if group.kind == "recurrent" else len(columns)
                ) * group.block_size
                most = max(most, min(hit.resume, tokens))
        return most

    def _answer_of(self, r: str, job: _Job) -> Answer:
        choices = self.engine.chosen.pop(r, [])
        return Answer(
            id=job.ask.id,
            text=job.text,
            tokens=tuple(job.tokens),
            prompt_tokens=len(job.prompt),
            restored=job.restored
            or {"": 0} | {group.kind: 0 for group in self._header.local_groups()},
            from_tier=job.from_tier,
            preemptions=job.preemptions,
            drafted=job.drafted,
            evictions=job.evictions,
            margins=tuple(choice.margin for choice in choices[: len(job.tokens)]),
        )


class _Job:
    """One prompt under way."""

    def __init__(self, ask: Ask, tokenizer: Tokenizer) -> None:
        self.ask = ask
        self._tokenizer = tokenizer
        self._end = tokenizer.vocabulary[END]
        self.prompt = tokenizer.encode(ask.prompt)
        shared = tokenizer.encode(ask.prompt[: ask.shared]) if ask.shared else []
        self.shared = len(shared) if self.prompt[: len(shared)] == shared else 0
        self.tokens: list[int] = []
        self.text = ""
        self.done = False
        self._whole = ""
        self._begun = b""
        """The text of whole characters, and the bytes of one that has begun."""
        self._longest_stop = max(map(len, ask.stop), default=0)
        self.restored: dict[str, int] = {}
        self.from_tier = self.preemptions = self.drafted = self.evictions = 0

    def take(self, tokens: Sequence[int]) -> None:
        """Add generated tokens, up to the one that ends the answer."""
        for token in tokens:
            if self.done:
                return
            self.tokens.append(token)
            # What was there before has been searched.
            searched = max(len(self._whole) - self._longest_stop, 0)
            raw = self._begun + self._tokenizer.bytes_of(token)
            text, used = codecs.utf_8_decode(raw, "replace", False)
            self._whole += text
            self._begun = raw[used:]
            self.text = self._whole + self._begun.decode(errors="replace")
            found = [at for stop in self.ask.stop if (at := self.text.find(stop, searched)) >= 0]
            if found:
                self.text = self.text[: min(found)]
            self.done = bool(found) or token == self._end or len(self.tokens) >= self.ask.max_tokens


def layout_of(config: ToyConfig, block_size: int) -> Layout:
    """Return the cache groups of a model: one for each type of layer that it has, all with the
    same block size.
    """
    order = ("full_attention", "sliding_attention", "linear_attention", "mamba2")
    kinds: list[Any] = [
        kind_of(layer_type) for layer_type in order if layer_type in config.layer_types
    ]
    windows = {"sliding": config.sliding_window}
    return Layout(
        "checkpoint", [GroupSpec(kind, block_size, window=windows.get(kind, 0)) for kind in kinds]
    )
