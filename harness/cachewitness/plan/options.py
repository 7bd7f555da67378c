"""What the plan commands of policies share: the ranges of numbers, the options that all have,
and how an answer is printed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from cachewitness._util.errors import UsageError
from cachewitness.plan import sources

if TYPE_CHECKING:
    from cachewitness.plan.result import Plan


class Whole(click.IntRange):
    """A whole number within a range, by that name in messages."""

    name = "whole number"


class Memory(click.ParamType[int]):
    """An amount of memory: a number and its unit, a power of 1024 or of 1000; without one it is
    in bytes. `G` alone is vLLM's 1024^3, and `g` its 1000^3.
    """

    name = "memory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return bytes, rounded down."""
        try:
            found = amount(str(value))
        except ValueError:
            self.fail(
                f"{value!r} is no amount of memory such as 40GiB, 40GB, 40G or 1048576.",
                param,
                ctx,
            )
        if not 1 <= found <= _AMOUNT_MAX:
            self.fail(f"{value!r} is not from 1 byte to 8 EiB.", param, ctx)
        return found


class Amount(click.ParamType[int]):
    """A whole number as vLLM takes it: `k`, `m`, `g` for powers of 1000, `K`, `M`, `G` of 1024."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number, at least 1."""
        try:
            found = amount(str(value))
        except ValueError:
            found = 0
        if not 1 <= found <= _AMOUNT_MAX:
            self.fail(
                f"{value!r} is no number from 1 to 2^63 - 1, such as 32768 or 32K.", param, ctx
            )
        return found


def amount(text: str) -> int:
    """Return a number with a unit as a whole number, rounded down. Raises ValueError for none.

    A letter alone is read as vLLM reads it (`utils/argparse_utils.py`): small for powers of 1000,
    capital for powers of 1024, which take no fraction.
    """
    found = _AMOUNT.fullmatch(text.strip())
    if found is None:
        raise ValueError(text)
    number, letter, binary, in_bytes = found.groups()
    if letter and not in_bytes and letter.isupper() and "." in number:
        raise ValueError(text)
    power = " KMGTP".index(letter.upper()) if letter else 0
    by_letter = bool(letter) and not in_bytes and letter.isupper()
    return int(Fraction(number) * (1024 if binary or by_letter else 1000) ** power)


_AMOUNT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,6})?) ?(?:([kKmMgGtTpP])(?:(i?)(B))?|B)?")
_AMOUNT_MAX = 2**63 - 1
COUNT = Whole(0, 2**64 - 1)
SIZE = Whole(1, 2**63 - 1)
GIB = Whole(1, 2**33 - 1)

LAYOUT_HELP = "A layout with a model (`ls layouts`)."
CONFIG_HELP = "A published configuration (config.json) instead of a layout."
Command = Callable[..., Any]


def model_options(
    *, required: bool = True, help: str = LAYOUT_HELP
) -> Callable[[Command], Command]:
    """Return `--layout` and `--config`, of which a command gets the one that was given, as
    `layout`.

    Raises UsageError for both, for none where one is required, and for a configuration whose name
    does not end in .json.
    """

    def decorate(command: Command) -> Command:
        @wraps(command)
        def chosen(layout: str | None, config: str | None, **given: Any) -> Any:
            return command(layout=_one(layout, config, required=required), **given)

        with_config = click.option("--config", metavar="FILE", help=CONFIG_HELP)(chosen)
        return click.option("--layout", metavar="NAME|PATH", help=help)(with_config)

    return decorate


def _one(layout: str | None, config: str | None, *, required: bool) -> str | None:
    if layout and config:
        raise UsageError("--layout and --config both name a model; leave one of them out")
    if required and not layout and not config:
        raise UsageError("name a model: '--layout' NAME|PATH (`ls layouts`), or '--config' FILE")
    return str(sources.config_path(config)) if config else layout


memory = click.option(
    "--memory",
    type=Memory(),
    metavar="40GiB",
    help="Memory for the cache, on one rank: how many requests fit.",
)
explain = click.option(
    "--explain", is_flag=True, help="Print how every value comes about below the answer."
)
"""Gives a plan command `--explain`."""
request_tokens = click.option(
    "--request-tokens", type=SIZE, metavar="N", help="Tell how many requests of N tokens fit."
)
as_json = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a JSON document (`schema plan`), and nothing else, on standard output.",
)
"""Gives a plan command `--json`, which it takes as `as_json`."""

kernel_block = click.option(
    "--kernel-block",
    type=SIZE,
    default=16,
    show_default=True,
    help="The attention kernel's own block.",
)
checkpoint_alignment = click.option(
    "--checkpoint-alignment",
    type=SIZE,
    help="The multiple at which the kernel exports states; default: the layout's.",
)
tensor_parallel_size = click.option(
    "--tensor-parallel-size",
    type=SIZE,
    default=1,
    show_default=True,
    help="Ranks that share the heads.",
)


def show(answer: Plan, *, as_json: bool, explain: bool = True) -> None:
    """Print a plan on standard output; with `explain` all its lines, else those of the answer if
    there is one.
    """
    from cachewitness.plan.show import show as printed

    answer.notes += sources.remarks(answer.layout)
    printed(answer, as_json=as_json, explain=explain)
