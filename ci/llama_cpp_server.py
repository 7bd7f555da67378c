"""Serves one of the models that `llama_cpp_models.py` makes with llama.cpp's own defaults, for the
engine `openai-server`.

    python ci/llama_cpp_server.py MODEL.gguf [apart]

`apart`: slots do not share their cells (`kv_unified` false). It needs `xllamacpp`. It prints its
address when it serves, and serves until it is ended.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from threading import Event

from cachewitness.systems.llama_cpp.server import Server
from cachewitness.systems.llama_cpp.settings import (
    CONTEXT,
    NUMBERS,
    SWITCHES,
    UNSPLIT,
    ServerSettings,
)


def main(model: str, cells: str = "shared") -> None:
    """Serve a model."""
    with tempfile.TemporaryDirectory(prefix="cachewitness-") as files:
        apart = cells == "apart"
        tokens = (
            CONTEXT * NUMBERS["n_parallel"] if apart else CONTEXT
        )  # without shared cells every slot has as many for itself
        server = Server(
            Path(model),
            ServerSettings(tokens, UNSPLIT, NUMBERS, SWITCHES | {"kv_unified": not apart}),
            files + "/",
        )
        print(server.address, flush=True)
        Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
