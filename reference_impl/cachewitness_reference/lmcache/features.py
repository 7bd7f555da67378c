"""What LMCache can do to the content of pages, and why it is refused for the models of this
specification.

A recurrent state is moved as the bytes of a page (`opaque`), so nothing may look inside, and what
is served must be what was stored, for the prefix that it was computed behind. Three features do
otherwise.

Sources: the document, "Caveats"; `remote_serde` and `enable_blending` in `lmcache/v1/config.py`;
`--engine-type` in `lmcache/v1/multiprocess/config.py` (0.5.6, as its documentation of 2026-08 names
them).
"""

from __future__ import annotations

from collections.abc import Mapping

CACHEGEN = (
    "CacheGen is refused: its compression is lossy, so a page that is loaded is not the page that"
    " was stored, and it takes pages for keys and values, which a recurrent state is not"
)
KIVI = (
    "kivi is refused: LMCache 0.5.6 compresses nothing by it, and each put takes a reference of the"
    " local cache's, so a page is freed that a later hit reads (findings/lmcache-kivi-frees-local)"
)
CACHEBLEND = (
    "CacheBlend is refused: it serves chunks that are no prefix of the prompt and computes some of"
    " their tokens again, and a recurrent state holds all that came before it"
)
VARIABLES = {"LMCACHE_REMOTE_SERDE": "remote_serde", "LMCACHE_ENABLE_BLENDING": "enable_blending"}
"""The environment variables by which they are turned on, and the options that they set."""
_OFF = ("", "0", "false", "no", "off", "none", "null")
_NAMES = {"cachegen": CACHEGEN, "cacheblend": CACHEBLEND, "enable_blending": CACHEBLEND}
"""Options that turn a feature on unless their value turns it off."""
_VALUES = {
    "remote_serde": {"cachegen": CACHEGEN, "kivi": KIVI},
    "engine_type": {"blend": CACHEBLEND},
}
"""Options that turn a feature on if their value begins so."""
FEATURES = (*_NAMES, *_VALUES)


def refusal(option: str, value: object) -> str:
    """Return why an option cannot have a value here; empty if it can, or if it is none of these
    options.
    """
    name = option.lower().replace("-", "_")
    text = str(value).strip().lower()
    if name in _NAMES:
        return "" if text in _OFF else _NAMES[name]
    whys = _VALUES.get(name, {})
    return next((why for begins, why in whys.items() if text.startswith(begins)), "")


def refused_by(variable: str, environment: Mapping[str, str]) -> None:
    """Raise ValueError, naming the variable, if the environment turns a feature on by it."""
    value = environment.get(variable)
    if value is not None and (why := refusal(VARIABLES[variable], value)):
        raise ValueError(f"{variable}={value}: {why}")
