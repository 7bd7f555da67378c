"""What a server must prove before its answers are compared: that it counts what it restores, and
that it can be asked cold.

One prompt that nobody asked before is asked again and again. The count of cached tokens must be 0
at first and rise the second time. Asked cold it must be 0, and rise once more afterwards: so the
prompt was still cached while it was not used. The ways to ask cold, in the order in which they are
tried: a server of its own, a salt that nobody used (`cache_salt`), and `cache_prompt` false, as
llama.cpp's server has it.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Event
from typing import Any, Literal

from cachewitness._util.errors import UsageError
from cachewitness._util.lines import printable
from cachewitness.core.events import Answer
from cachewitness.core.intake import BadEvents
from cachewitness.core.trace_format import Submit
from cachewitness.systems.openai_server.address import NAME, Address, ServerFailed
from cachewitness.systems.openai_server.completion import body
from cachewitness.systems.openai_server.request import Request

ASKED_S = 60.0
"""Seconds in which a server answers a question that is asked before the first trace."""
TOKENS = 2
"""Tokens of such an answer."""
LENGTHS = (2, 8, 32)
"""Blocks of the prompts that are asked; from the second on to say what size of block would be
right."""
CONTEXT = 4
"""So many blocks a prompt may have at least, since how far right answers lie apart is measured on
prompts of some blocks."""
SAYS = (
    "(`usage.prompt_tokens_details.cached_tokens`; vLLM's does with --enable-prompt-tokens-details)"
)
"""Where a server says how many tokens it restored."""

PROOFS = 3
"""So often the questions are asked anew, with other prompts, if one of them had to be sent twice.
"""

Way = Literal["another server", "salts", "cache_prompt"]


@dataclass(frozen=True)
class Manner:
    """How a server is asked: how without its cache, whether it keeps salts apart, whether it
    leaves a count of 0 out, and whether salts are sent since it promises to keep them apart.
    """

    way: Way
    salted: bool
    zero_left_out: bool = False
    promised: bool = False

    @property
    def sends_salts(self) -> bool:
        """Whether requests have salts."""
        return self.salted or self.promised

    def fields(self, salt: str, *, caching: bool) -> dict[str, Any]:
        """Return what a request has beside its prompt; without the cache the salt must be one
        that nobody used.
        """
        salted = {"cache_salt": salt} if self.sends_salts else {}
        return salted | (
            {"cache_prompt": False} if self.way == "cache_prompt" and not caching else {}
        )


@dataclass(frozen=True)
class Asker:
    """Asks a server one question at a time, and refuses a server that does not answer it as it
    must.
    """

    address: Address
    model: str
    vocabulary: int
    stream: bool

    def prompt(self, length: int) -> list[int]:
        """Return a prompt that nobody asked before."""
        return random.Random(secrets.randbits(64)).choices(range(self.vocabulary), k=length)

    def restored(self, prompt: list[int], **fields: Any) -> int:
        """Return how many tokens of a prompt the server restores; −1 if it does not say.

        Raises UsageError if it does not answer, or not what was asked.
        """
        submit = Submit(r="a first question", prompt="", tokens=prompt, generate=TOKENS)
        over = Event()
        content = body(self.model, submit, stream=self.stream, **fields)
        request = Request(
            self.address,
            submit,
            content,
            lambda: over.set() if request.over else None,
            model=self.model,
        )
        request.send()
        try:
            if not over.wait(ASKED_S):
                raise self.refused(f"{self.address.base} gives no answer within {ASKED_S:g} s")
            answer = request.answer()
        except (BadEvents, ServerFailed) as error:
            raise self.refused(str(error)) from None
        finally:
            request.leave()
        self._check(request, answer, prompt)
        if request.again:
            raise _AskedAgain
        return answer.restored

    def _check(self, request: Request, answer: Answer, prompt: list[int]) -> None:
        if request.refusal:
            raise self.refused(
                f"the server takes no prompt of {len(prompt)} token ids: {request.refusal}"
            )
        if answer.restored > len(prompt):
            raise self.refused(
                f"the server says that it restored {answer.restored} tokens of a prompt of"
                f" {len(prompt)}"
            )

    def refused(self, why: str) -> UsageError:
        """Return the refusal of a server, in one line."""
        return UsageError(f"--engine {NAME}: {self.address.key.redacted(why)}")


class _AskedAgain(Exception):
    """A question was sent twice, since the server turned it away: what it restores may be of the
    first sending.
    """


SERVERS = 6
"""So often a prompt is asked again to see whether one server answers."""


def prove(warm: Asker, cold: Asker | None, block: int) -> Manner:
    """Ask until it is proven how a server is asked without its cache. Raises UsageError if it is
    not.
    """
    for _ in range(PROOFS):
        with suppress(_AskedAgain):
            return _proven(warm, cold, block)
    raise warm.refused(
        f"the server turned questions away in each of {PROOFS} attempts; ask it when it is less"
        " busy"
    )


def _proven(warm: Asker, cold: Asker | None, block: int) -> Manner:
    prompt, salt, zero_left_out = _cached(warm, block)
    salted = (
        warm.restored(prompt, cache_salt=new_salt()) <= 0 < warm.restored(prompt, cache_salt=salt)
    )
    if cold is not None:
        for _ in range(2):
            _without_cache(cold, cold.restored(prompt))
        return Manner("another server", salted, zero_left_out)
    if salted:
        return Manner("salts", salted, zero_left_out)
    if warm.restored(prompt, cache_prompt=False) <= 0 < warm.restored(prompt):
        return Manner("cache_prompt", salted, zero_left_out)
    _check_that_one_answers(warm, prompt, salt, warm.restored(prompt, cache_salt=salt))
    raise warm.refused(
        "the server cannot be asked without its cache, so no answer can be called cold: it heeds"
        " neither a new `cache_salt` nor `cache_prompt` false; start a second server of the same"
        " model without prefix caching, cold_url=URL"
    )


def _without_cache(cold: Asker, restored: int) -> None:
    """Check that the other server says it restored nothing. Raises UsageError if it restored
    some, or does not say.
    """
    if restored > 0:
        raise cold.refused(
            "cold_url: that server restores tokens as well; start it without prefix caching"
        )
    if restored < 0:
        raise cold.refused(
            "cold_url: that server does not say how many tokens it restored, so it may cache as"
            f" well {SAYS}"
        )


def _cached(warm: Asker, block: int) -> tuple[list[int], str, bool]:
    """Return a prompt of which tokens are restored, the salt that it was asked with, and whether
    a count of 0 is left out.
    """
    warm.restored(warm.prompt(CONTEXT * block))
    prompt, salt, first, restored = _asked_twice(warm, LENGTHS[0] * block + 1)
    if restored > 0:
        return prompt, salt, first < 0
    for blocks in LENGTHS[1:]:
        try:
            longer, _, _, more = _asked_twice(warm, blocks * block + 1)
        except UsageError:  # longer than its context
            break
        if more > 0:
            raise warm.refused(
                f"the server restores nothing of {len(prompt)} tokens, and {more} of {len(longer)}:"
                f" its blocks are larger than {block} tokens; say how large, block=N"
            )
    if restored < 0:
        raise warm.refused(f"the server does not say how many tokens it restored {SAYS}")
    _check_that_one_answers(warm, prompt, salt, restored)
    raise warm.refused(
        f"the server restores nothing of {len(prompt)} tokens that it just computed; is caching on,"
        " and does nobody in front of it answer from memory?"
    )


def _check_that_one_answers(warm: Asker, prompt: list[int], salt: str, before: int) -> None:
    """Raise UsageError if of a prompt that was asked before now nothing is restored and now some
    is, as where several servers have caches of their own. `before` is what was restored when it
    was asked a second time.
    """
    restored = [before, *(warm.restored(prompt, cache_salt=salt) for _ in range(SERVERS))]
    if min(restored) <= 0 < max(restored):
        counts = ", ".join(str(max(tokens, 0)) for tokens in restored)
        raise warm.refused(
            f"of the same {len(prompt)} tokens, asked again and again, {counts} are restored:"
            " several servers seem to answer at this address, each with a cache of its own, or a"
            " prompt is kept only when it comes again; name one of them by its own address,"
            " url=URL, or have the gateway keep a client on one"
        )


def _asked_twice(warm: Asker, length: int) -> tuple[list[int], str, int, int]:
    """Ask a prompt twice; return it, its salt, and how many tokens were restored each time."""
    prompt = warm.prompt(length)
    salt = new_salt()
    first, second = (warm.restored(prompt, cache_salt=salt) for _ in range(2))
    if first > 0:
        raise warm.refused(
            f"the server says that it restored {first} tokens of a prompt that nobody asked before"
        )
    return prompt, salt, first, second


def new_salt() -> str:
    """Return a salt that nobody used."""
    return f"cachewitness-{secrets.token_hex(8)}"


def model_of(address: Address, asked: str) -> str:
    """Return the model that is asked: the one named, or the only one that the server lists.

    Raises UsageError if the server lists none, or several and none was named, or not the one.
    """
    try:
        names = models_of(address)
    except ServerFailed as error:
        raise UsageError(f"--engine {NAME}: {error}; is a server running there?") from None
    if asked in names or (not asked and len(names) == 1 and names[0].isprintable()):
        return asked or names[0]
    listed = printable(address.key.redacted(", ".join(names)))[:200] or "none"
    wrong = f"there is no model {asked!r}" if asked else "name a model, model=NAME"
    raise UsageError(f"--engine {NAME}: {wrong}; {address.base} has {listed}")


def models_of(address: Address) -> list[str]:
    """Return the models that a server lists. Raises ServerFailed if it lists none."""
    return [*_listed(address)]


def _listed(address: Address) -> dict[str, Mapping[str, Any]]:
    listed = address.ask("/v1/models", ASKED_S)
    try:
        return {str(entry["id"]): entry for entry in listed["data"]}
    except (TypeError, LookupError):
        raise ServerFailed(f"/v1/models of {address.base} lists no models") from None


def longest_prompt(address: Address, model: str) -> int:
    """Return the longest prompt that a server says that it takes, in tokens; 0 if it does not say.

    vLLM lists `max_model_len`, which leaves a token to generate, and llama.cpp the `n_ctx` of a
    slot, alike. SGLang refuses prompts of `max_req_input_len` tokens, and says how many in
    `/server_info`; the length that it lists is the model's.
    """
    entry = _listed(address).get(model, {})
    meta = entry.get("meta")
    stated = entry.get("max_model_len") or (meta.get("n_ctx") if isinstance(meta, dict) else None)
    if entry.get("owned_by") == "sglang":
        stated = None
        with suppress(ServerFailed):
            info = address.ask("/server_info", ASKED_S)
            stated = info.get("max_req_input_len") if isinstance(info, dict) else None
    return stated - 1 if isinstance(stated, int) and stated > 1 else 0


def version_of(address: Address) -> str:
    """Return what the server says of its version; empty if it does not."""
    try:
        reply: Mapping[str, Any] | Any = address.ask("/version", ASKED_S)
    except ServerFailed:
        return ""
    return (
        printable(address.key.redacted(str(reply["version"])))[:80]
        if isinstance(reply, dict) and "version" in reply
        else ""
    )
