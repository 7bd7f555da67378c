"""Describes a difference between logits and those of the definition: which token, which layer,
which block.
"""

from __future__ import annotations

from cachewitness.core.events import Compare, Culprit

STATE = {"memory": "memory", "conv": "convolution's state"}
"""The parts of a recurrent state, in words."""


class Blind(Exception):
    """A comparison whose tolerance exceeds its ceiling: the engine cannot be judged."""


WIDE = ("float32", "float64")


def wider(dtype: str) -> str:
    """Return what can be done about rounding that hides what is looked for, as a clause; nothing
    if the dtype is wide.
    """
    return "" if dtype in WIDE else "; use a wider dtype"


def sighted(event: Compare) -> None:
    """Raise Blind if the tolerance of a comparison is more than its ceiling allows, or is no
    number.
    """
    if not event.tolerance <= event.ceiling:
        raise Blind(
            f"rounding alone moves {event.dtype} logits of this model by {event.floor:.1e}; the"
            f" tolerance {event.tolerance:.1e} would exceed its ceiling {event.ceiling:.1e}, so"
            f" nothing is judged{wider(event.dtype)}"
        )


def divergence(event: Compare) -> str:
    """Return what is wrong with logits that are beyond the tolerance, and where it begins, in
    one clause.
    """
    rows = (
        f"{event.beyond} of {event.stop - event.start} rows of its {event.dtype} logits"
        f" {_how(event)}"
    )
    begins = (
        f"; the first that is wrong is {_describe(event.first)}" if event.first is not None else ""
    )
    return f"{rows}, first at position {event.at}: {_token(event)}{begins}"


def _how(event: Compare) -> str:
    numbers = event.beyond - event.nan - event.infinite
    parts = [
        f"hold {name} ({count})"
        for name, count in (("NaN", event.nan), ("infinity", event.infinite))
        if count
    ]
    if numbers:
        parts.append(
            f"differ from those of the definition by up to {event.largest:.1e}, more than the"
            f" tolerance {event.tolerance:.1e} (noise floor {event.floor:.1e})"
        )
    return " and ".join(parts)


def _token(event: Compare) -> str:
    if event.chose == -1:
        return f"no token can be chosen there, and token {event.right} is right"
    if event.chose == event.right:
        return f"token {event.right} is still the likeliest there"
    return f"token {event.chose} is chosen there instead of token {event.right}"


def _describe(culprit: Culprit) -> str:
    layer = f"layer {culprit.layer} ({culprit.layer_type}, group {culprit.group})"
    off = f"holds {culprit.holds}" if culprit.holds else f"is off by {culprit.off:.1e}"
    where = f"at position {culprit.position}"
    block = f"(block {culprit.block})"
    if culprit.part == "output":
        return f"the output of {layer} {where} {block}, which {off} although what it read is right"
    if culprit.part in STATE:
        after = f"after {culprit.position} tokens" if culprit.position else "before the first token"
        return f"the {STATE[culprit.part]} {after} that {layer} read {block}, which {off}"
    return f"the {culprit.part} {where} that {layer} read {block}, which {off}"
