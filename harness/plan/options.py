"""What the plan commands of policies share: the ranges of numbers, the options that all have, and how an answer is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from harness.plan.result import Plan


class Whole(click.IntRange):
    """A whole number within a range, by that name in messages."""

    name = "whole number"


COUNT = Whole(0, 2**64 - 1)
SIZE = Whole(1, 2**63 - 1)
GIB = Whole(1, 2**33 - 1)

layout = click.option("--layout", metavar="NAME|PATH", required=True, help="A layout with a model (`ls layouts`).")
as_json = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")

kernel_block = click.option(
    "--kernel-block", type=SIZE, default=16, show_default=True, help="The attention kernel's own block."
)
checkpoint_alignment = click.option(
    "--checkpoint-alignment", type=SIZE, help="The multiple at which the kernel exports states; default: the layout's."
)
tensor_parallel_size = click.option(
    "--tensor-parallel-size", type=SIZE, default=1, show_default=True, help="Ranks that share the heads."
)


def show(answer: Plan, *, as_json: bool) -> None:
    """Print a plan on standard output."""
    from harness.plan.show import show as printed

    printed(answer, as_json=as_json)
