"""Sessions on vLLM's own scheduler: requests that get more input when an answer is over
(`resumable`, streaming input).

vLLM takes more input in as a request of the same name. It waits while an answer goes on; when that
is over the last token of the answer is taken off, the input comes behind the rest, and the request
is admitted again with the blocks that it has.

The first, third, fifth answer of a session ends at a stop token, which nobody foresees: steps in
flight go on behind it. The others end by their length, behind which vLLM schedules nothing.

Source: vLLM 0.29.0 to 0.33.0, `v1/core/sched/scheduler.py` (`add_request`,
`_handle_stopped_request`, `_update_request_as_session`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from cachewitness.core.scripted import Sampler
from cachewitness.core.trace_format import Extend, Submit
from cachewitness.engines.adapter import Host, Refused
from cachewitness.engines.manager_adapter import NewRequest
from cachewitness.systems.vllm.source import Source


@dataclass(slots=True)
class _Session:
    """A session: what it was submitted as, its prompt in tokens, and the most that it has when
    all its answers are over.
    """

    submit: Submit
    prompt: int
    most: int
    queued: deque[int] = field(default_factory=deque)
    """How many tokens each input has that waits for the end of an answer."""
    answers: int = 0
    paused: bool = False


@dataclass(slots=True)
class _Position:
    """A request that has generated so many tokens, as a sampler sees it."""

    request_id: str
    num_output_tokens: int
    all_token_ids: list[int] = field(default_factory=list)


class Sessions:
    """The sessions of a scheduler that have not ended."""

    def __init__(self, source: Source, max_model_len: int) -> None:
        self._waiting = source.part("v1.request", "RequestStatus")["WAITING_FOR_STREAMING_REQ"]
        self._sampling = source.part("sampling_params", "SamplingParams")
        self._max_model_len = max_model_len
        self._of: dict[str, _Session] = {}

    def add(self, submit: Submit, request: Any, sampler: Sampler) -> None:
        """Take note of a request, if it is a session."""
        if submit.session:
            prompt = request.num_prompt_tokens
            self._of[submit.r] = _Session(submit, prompt, prompt + submit.generate)
            self._end_answer(submit, request, sampler)

    def _end_answer(self, submit: Submit, request: Any, sampler: Sampler) -> None:
        """Have the answer to vLLM's request end at a stop token, if it is its turn."""
        session = self._of[submit.r]
        session.answers += 1
        if session.answers % 2:
            last = sampler.sample(_Position(submit.r, submit.generate - 1), [])
            stops = self._sampling(max_tokens=self._max_model_len, stop_token_ids=last)
            vars(request).update(sampling_params=stops, max_tokens=stops.max_tokens)

    def end(self, r: str) -> Submit | None:
        """Forget a request; return what tells vLLM that no more input comes if it is a session
        that waits for some.
        """
        session = self._of.pop(r, None)
        return replace(session.submit, session=False) if session and session.paused else None

    def more(
        self, extend: Extend, tokens: list[int], new_request: NewRequest, sampler: Sampler
    ) -> Any:
        """Return the request of vLLM's by which it is given more input.

        Raises Refused if the session would be longer than the model, or is none.
        """
        session = self._of.get(extend.r)
        if session is None:
            raise Refused(f"more input for {extend.r}, which is no session")
        most = session.most + len(tokens) + extend.generate
        if most > self._max_model_len:
            raise Refused(f"a session of {most} tokens; the model has {self._max_model_len}")
        session.most = most
        session.queued.append(len(tokens))
        submit = replace(session.submit, generate=extend.generate, media=[])
        request = new_request(submit, tokens)
        self._end_answer(submit, request, sampler)
        return request

    def paused(self, r: str, request: Any) -> bool:
        """Whether the answer of a session is over that was not before; `request` is vLLM's."""
        session = self._of.get(r)
        if session is None or session.paused:
            return False
        session.paused = (
            request.status == self._waiting or request.num_prompt_tokens > session.prompt
        )
        return session.paused

    def go_on(self, r: str, request: Any, engine: Host, step: int) -> None:
        """Report that a session goes on, if vLLM has put more input behind its tokens."""
        session = self._of.get(r)
        if session is None or request.num_prompt_tokens == session.prompt:
            return
        keep = request.num_tokens - session.queued.popleft()
        session.prompt = request.num_prompt_tokens
        session.paused = False
        engine.extended(r, keep, [*request.all_token_ids[keep:]], step)
