"""`cachewitness plan layout`: writes the layout file of a configuration, which a run, a plan and
an engine take by its name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from cachewitness._util import files, output
from cachewitness._util.names import identifier
from cachewitness.core.trace_format import Layout
from cachewitness.plan import options, sources
from cachewitness.plan.config import read
from cachewitness.plan.grouping import layout_of
from cachewitness.workloads.model import model_of

PINNED = "vLLM 0.33.0"


@click.command("layout")
@click.option(
    "--config", metavar="FILE", required=True, help="A published configuration (config.json)."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write it here (.toml); standard output by default.",
)
@click.option(
    "--name",
    metavar="NAME",
    help="What the layout is called; the checkpoint's name by default, or the folder's.",
)
@click.option(
    "--checkpoint-alignment",
    type=options.SIZE,
    default=1,
    show_default=True,
    help="The multiple at which the kernel exports states.",
)
def command(config: str, out: Path | None, name: str | None, checkpoint_alignment: int) -> None:
    """Write a layout file: the model of a configuration, and the groups that vLLM makes of it."""
    text = text_of(sources.config_path(config), name or "", checkpoint_alignment)
    if out is None:
        output.echo(text, nl=False)
    else:
        files.write(out, [text.encode()])


def text_of(path: Path, name: str = "", checkpoint_alignment: int = 1) -> str:
    """Return the layout file of a configuration, as TOML. Raises UsageError for what does not
    fit.
    """
    table = read.table_of(path) | {"checkpoint_alignment": checkpoint_alignment}
    model = model_of(table, path)
    layout = layout_of(model, sources.option(str(path)))
    heading = {
        "name": name or _name(model.checkpoint, path),
        "story": f"{len(layout.groups)} groups, worked out from a configuration",
        "source": f"{path}; groups and blocks by the rules of {PINNED}, one rank",
    }
    return "".join(_lines(heading, table, layout))


def _name(checkpoint: str, path: Path) -> str:
    named = checkpoint if checkpoint != read.UNNAMED else path.absolute().parent.name
    return identifier(named.rpartition("/")[2]).replace("_", "-") or "model"


def _lines(heading: Mapping[str, Any], table: Mapping[str, Any], layout: Layout) -> list[str]:
    caches: list[dict[str, Any]] = table["caches"]
    parts = [
        _pairs(heading),
        "\n[model]\n",
        _pairs({key: value for key, value in table.items() if key != "caches"}),
    ]
    parts += ["\n[[model.caches]]\n" + _pairs(cache) for cache in caches]
    return [
        *parts,
        *("\n[[groups]]\n" + _pairs(msgspec.to_builtins(group)) for group in layout.groups),
    ]


def _pairs(table: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {_value(value)}\n" for key, value in table.items())


def _value(value: str | int | Sequence[str | int]) -> str:
    """Return a value as TOML has it; a text of JSON is one of TOML but for the character 127,
    and for halves of a pair.
    """
    if isinstance(value, str):
        return json.dumps(value.encode("utf-8", "replace").decode(), ensure_ascii=False).replace(
            "\x7f", "\\u007f"
        )
    if isinstance(value, int):
        return str(value).lower()
    inner = [_value(each) for each in value]
    if sum(map(len, inner)) < 100:
        return f"[{', '.join(inner)}]"
    return "[\n" + "".join(f"    {each},\n" for each in inner) + "]"
