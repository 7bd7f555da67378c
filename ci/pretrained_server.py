"""Serves a model for `score --likelihood`: llama.cpp's own defaults, one thread and one slot.

    python ci/pretrained_server.py MODEL.gguf [KEYS [VALUES]]

KEYS is the type of the cached keys, such as q4_0, VALUES that of the cached values; default:
llama.cpp's own (f16). It needs `xllamacpp`. It prints its address when it serves, and serves until
it is ended.
"""

from __future__ import annotations

import sys
from threading import Event
from typing import Any

import xllamacpp

CONTEXT = 4096
"""Tokens of the one slot."""


def main(model: str, keys: str = "", values: str = "") -> None:
    """Serve a model."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = model
    chosen: dict[str, Any] = {
        "n_ctx": CONTEXT,
        "n_parallel": 1,
        "fit_params": False,
        "warmup": False,
    }
    for name, kind in (("cache_type_k", keys), ("cache_type_v", values)):
        if kind:
            chosen[name] = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{kind.upper()}")
    for name, value in chosen.items():
        setattr(parameters, name, value)
    for threads in (parameters.cpuparams, parameters.cpuparams_batch):
        setattr(threads, "n_threads", 1)  # noqa: B010  # xllamacpp has no types
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
