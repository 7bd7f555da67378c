"""The second tier of an engine, behind its own cache."""

from __future__ import annotations

from typing import NamedTuple


class SecondTier(NamedTuple):
    """A second tier: its `name`, of an engine that always has one, or the `option` that gives it
    one.

    A run with it that loads nothing from there has not checked what it should.
    """

    name: str = ""
    option: str = ""
