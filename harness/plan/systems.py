"""The systems that can be planned, under every spelling of their names."""

from __future__ import annotations

from harness._util.errors import UsageError

SYSTEMS = ("vllm", "openvino_genai", "lmcache", "furiosa", "tensorrt_edge")
_SPELLINGS = {
    "openvino": "openvino_genai",
    "furiosa_llm": "furiosa",
    "tensorrt_edge_llm": "tensorrt_edge",
}


def system_of(name: str) -> str:
    """Return the system that a name means; hyphens and capitals do not matter. Raises UsageError with the nearest one."""
    plain = name.lower().replace("-", "_")
    plain = _SPELLINGS.get(plain, plain)
    if plain not in SYSTEMS:
        from harness.trace.model import choices

        raise UsageError(f"plan: no system is called {name!r}; {choices(plain, SYSTEMS)}")
    return plain
