"""What is read of a completion's body, as OpenAI's interface has it."""

from __future__ import annotations

from typing import Any

import msgspec

from harness.engines.answers import Answer, BackendError


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Choice(msgspec.Struct, frozen=True):
    text: str


class Completion(msgspec.Struct, frozen=True):
    """The parts of a completion that are read."""

    choices: list[_Choice]
    usage: _Usage | None = None

    def answer(self, name: str) -> Answer:
        """Return the answer to one prompt."""
        usage = self.usage or _Usage()
        cached = (usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else 0) or 0
        return Answer(id=name, text=self.choices[0].text, prompt_tokens=usage.prompt_tokens, restored={"": cached})


def read(content: Any, name: str) -> Answer:
    """Return the answer to a question from a decoded body.

    Raises BackendError if the body is empty or no completion.
    """
    try:
        found = msgspec.convert(content, Completion)
    except msgspec.ValidationError as error:
        why = "with an empty body" if content is None else f"but its body is no completion ({error})"
        raise BackendError(f"question {name}: the server answered 200 {why}") from None
    if len(found.choices) != 1:
        raise BackendError(f"question {name}: the server answered 200 with {len(found.choices)} choices, not 1")
    return found.answer(name)
