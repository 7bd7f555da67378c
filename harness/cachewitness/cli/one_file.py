"""A command that takes one file, and says so where a pattern of the shell matched several."""

from __future__ import annotations

from typing import Any

import click

from cachewitness._util.errors import UsageError


class OneFile(click.Command):
    """A command whose last word is a file; any word behind it is a file too many."""

    def make_context(self, *where: Any, **settings: Any) -> click.Context:
        """Return the context of a call. Raises UsageError if it has a word too many."""
        context = super().make_context(*where, **settings, allow_extra_args=True)
        if context.args and not context.resilient_parsing:
            raise UsageError(
                f"{context.info_name} takes one file, and {len(context.args)} more"
                f" {'is' if len(context.args) == 1 else 'are'} named: name one of them"
            )
        return context
