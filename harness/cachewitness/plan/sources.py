"""Where a plan's model comes from: a layout, by name or from a file, or a published configuration,
which is a `.json` file.

A configuration may be packed by gzip (`.json.gz`) or come on standard input (`-`).
"""

from __future__ import annotations

from pathlib import Path

from cachewitness._util.errors import UsageError
from cachewitness._util.reading import STANDARD_INPUT
from cachewitness.core.trace_format import Layout
from cachewitness.plan.config import read
from cachewitness.plan.grouping import layout_of
from cachewitness.workloads import layouts
from cachewitness.workloads.model import Model

SUFFIXES = (".json", ".json.gz")


def is_config(named: str) -> bool:
    """Whether a configuration is meant, and not a layout."""
    return named.endswith(SUFFIXES) or named == STANDARD_INPUT


def model(named: str) -> Model:
    """Return the model of a layout or a configuration. Raises UsageError with the file and the
    field.
    """
    return read.model(Path(named)) if is_config(named) else layouts.model(named)


def unquantized_model(named: str) -> Model:
    """Return the model, for a system that does not follow what vLLM makes of a checkpoint's own
    type of keys and values.

    Raises UsageError as `model` does, and for a checkpoint that names such a type.
    """
    found = model(named)
    if found.kv_cache_dtype:
        raise UsageError(
            f"{option(named)}: quantization_config: the checkpoint has keys and values in"
            f" {found.kv_cache_dtype}, and what this system makes of it is not worked out here"
        )
    return found


def has_model(named: str) -> bool:
    """Return whether a layout says what model it is of; a configuration always does."""
    return is_config(named) or layouts.has_model(named)


def layout(named: str) -> Layout:
    """Return the groups of a layout, or those that vLLM makes of a configuration. Raises
    UsageError as `model` does.
    """
    return layout_of(model(named), option(named)) if is_config(named) else layouts.load(named)


def config_path(named: str) -> Path:
    """Return the file that `--config` names. Raises UsageError if its name is not that of a
    configuration.
    """
    if not is_config(named):
        raise UsageError(
            f"--config {named}: a configuration is a file whose name ends in {SUFFIXES[0]}"
        )
    return Path(named)


def option(named: str) -> str:
    """Return the option by which it was named, for messages."""
    return f"--config {named}" if is_config(named) else f"--layout {named}"


def remarks(named: str) -> list[str]:
    """Return what of a configuration's numbers the file does not say; a layout has that in its
    own file.
    """
    return model(named).unverified if is_config(named) else []


def blocks_differ(block: int, named: str) -> list[str]:
    """Return, as a note or none, that a run of the layout has other blocks than the ones worked
    out for other circumstances.
    """
    sizes = {group.block_size for group in layout(named).groups}
    if sizes == {block}:
        return []
    listed = " and ".join(f"{size:,}" for size in sorted(sizes))
    if is_config(named):
        return [
            f"a layout of this configuration has blocks of {listed} tokens, those of one rank with"
            " the default kernels"
        ]
    return [
        f"a run with --layout {named} has blocks of {listed} tokens, those of one rank with the"
        f" kernels that the layout names; for N = {block} give it a copy of the layout with that"
        " block size"
    ]
