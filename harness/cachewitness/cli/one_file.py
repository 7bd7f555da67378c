"""A command that takes one file, and says so where a pattern of the shell matched several."""

from __future__ import annotations

import click

from cachewitness._util.errors import UsageError


class OneFile(click.Command):
    """A command whose last word is a file; any word behind it is a file too many."""

    def parse_args(self, context: click.Context, words: list[str]) -> list[str]:
        """Parse the words of a call. Raises UsageError if there is one too many."""
        context.allow_extra_args = True
        left = super().parse_args(context, words)
        if context.args and not context.resilient_parsing:
            raise UsageError(
                f"{context.info_name} takes one file, and {len(context.args)} more"
                f" {'is' if len(context.args) == 1 else 'are'} named: name one of them"
            )
        return left
