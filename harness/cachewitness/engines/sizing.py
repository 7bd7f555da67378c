"""How a policy's system sizes its caches for a model (`cachewitness plan`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import click


@dataclass(frozen=True)
class Sizing:
    """The command that works out the sizes for a model, `plan()`, and other names of the system,
    as `cachewitness plan` takes them: in lower case, with underscores.
    """

    plan: Callable[[], click.Command]
    aliases: tuple[str, ...] = ()
