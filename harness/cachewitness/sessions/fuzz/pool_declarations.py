"""What a test class of an allocator declares, checked before its first run."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from difflib import get_close_matches
from typing import Any, Literal, get_args

import hypothesis
from hypothesis.strategies import SearchStrategy

from cachewitness._util.errors import UsageError
from cachewitness.sessions.fuzz.pool_model import Order

Misuse = Literal["raises", "refused", "undefined"]
Method = Literal[
    "alloc",
    "free",
    "share",
    "touch",
    "publish",
    "lookup",
    "unpublish",
    "evict",
    "reset",
    "available",
    "references",
]
"""What a pool may have beside `make`."""
_MISSPELT = 0.85
"""How like a known name another must be to be a misspelt one."""


def _one_of(*known: Any) -> tuple[Callable[[Any], bool], str]:
    # `in` would take 1 for True.
    return lambda value: any(value is one or value == one for one in known), " or ".join(
        map(repr, known)
    )


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int) and value is not True and value > 0)


def _are_exceptions(value: Any) -> bool:
    kinds = value if isinstance(value, tuple) else (value,)
    return all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds)


_FLAG = (lambda value: isinstance(value, bool), "True or False")
_NUMBER = (_is_number, "a whole number from 1 on, or None")
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "null_block": (lambda value: isinstance(value, Hashable), "a block"),
    "order": _one_of(*get_args(Order), None),
    "misuse": _one_of(*get_args(Misuse)),
    "exhausted": (_are_exceptions, "a tuple of exceptions"),
    "alloc_max": _NUMBER,
    "keys_per_block": _NUMBER,
    "lookup_acquires": _FLAG,
    "keeps": _FLAG,
    "isolate": _FLAG,
    "sizes": (lambda value: isinstance(value, SearchStrategy), "a strategy of Hypothesis"),
    "settings": (lambda value: isinstance(value, hypothesis.settings), "hypothesis.settings"),
}


def check_declarations(allocator: type, base: type) -> None:
    """Raise UsageError, in one line, for a declaration that is none, and for a method or a
    declaration whose name is nearly one of those of `base`.
    """
    for name, (fits, what) in _RULES.items():
        value = getattr(allocator, name)
        if not isinstance(value, property) and not fits(value):
            raise UsageError(f"{allocator.__name__}: {name} is {what}, and not {value!r}")
    harness = [one for one in allocator.__mro__ if one.__module__.startswith("cachewitness.")]
    public = {
        name: value
        for one in harness
        for name, value in vars(one).items()
        if not name.startswith(("_", "test_"))
    }
    methods = sorted(name for name, value in public.items() if callable(value))
    declarations = sorted(set(_RULES) | (set(public) - set(methods)))
    for mine in allocator.__mro__:
        if mine is not object and mine not in harness:
            for name, value in vars(mine).items():
                if name not in public and not name.startswith(("_", "test")):
                    known = methods if callable(value) else declarations
                    _check_spelling(allocator, name, known)


def _check_spelling(allocator: type, name: str, known: list[str]) -> None:
    plain = {one.replace("_", ""): one for one in known}
    near = get_close_matches(name.lower().replace("_", ""), plain, n=1, cutoff=_MISSPELT)
    if near:
        raise UsageError(
            f"{allocator.__name__} has no use for {name}; is {plain[near[0]]} meant? Known are"
            f" {', '.join(known)}; a name of your own that is alike begins with an underscore"
        )
