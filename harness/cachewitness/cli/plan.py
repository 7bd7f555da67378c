"""`cachewitness plan SYSTEM`: applies a system's sizing rules to a model and an amount of memory.

A system is a policy that has a plan, or an engine that registers one. Only the module of the one
that is asked for is imported, so that an answer takes no longer than it must.
"""

from __future__ import annotations

import click

LAYOUT = "layout"
"""What stands in place of a system to write a layout file."""


class _Systems(click.Group):
    """Subcommands by the name of a system, in any spelling."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """Return the command of a system, or the one that writes a layout. Raises UsageError
        with the nearest system.
        """
        from cachewitness.plan.systems import sizing_of, system_of

        if cmd_name == LAYOUT:
            from cachewitness.plan import layout_file

            return layout_file.command
        return sizing_of(system_of(cmd_name)).plan()

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the systems, the default first, and the command that writes a layout."""
        from cachewitness.plan.systems import systems

        return [*systems(), LAYOUT]

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what the command is for, with the names that a system can be given."""
        from cachewitness.plan.systems import sizing_of, systems

        sizings = {name: sizing_of(name) for name in systems()}
        names = [
            f"{name} (or {', '.join(sizing.aliases)})" if sizing.aliases else name
            for name, sizing in sizings.items()
        ]
        super().format_help_text(ctx, formatter)
        with formatter.indentation():
            formatter.write_paragraph()
            formatter.write_text(
                f"SYSTEM is one of {', '.join(names)}; hyphens do as well. Layouts of real models:"
                f" `ls layouts`; `plan {LAYOUT} --config config.json` writes one of a published"
                " configuration."
            )


@click.group(cls=_Systems, subcommand_metavar="SYSTEM [OPTIONS]")
def plan() -> None:
    """Work out block sizes, pools and flags for a model."""
