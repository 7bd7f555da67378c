"""The server's loop behind the three methods."""

from __future__ import annotations

import mlx_lm

from cachewitness.core.events import Answering, Rules
from cachewitness.core.trace_format import TraceHeader
from cachewitness.engines.answering import SteppedEngine, declared
from cachewitness.systems.mlx_lm.server import Server


class MlxEngine(SteppedEngine[Server]):
    """The loop as an engine at answers level. The prompt cache counts caches, so the `pages` of
    a trace bound nothing.
    """

    def __init__(
        self,
        header: TraceHeader,
        model: str,
        *,
        caching: bool,
        chunk: int,
        segment: int,
        slots: int,
        salts: bool,
        files: bool,
    ) -> None:
        # The last cache that is kept of a prompt ends in front of its last token.
        repeats = 2 if caching else 0
        server = Server(
            model, caching=caching, chunk=chunk, segment=segment, slots=slots, files=files
        )
        answering = Answering("float32", server.vocabulary, repeats=repeats)
        rules = Rules(caching=caching, answering=answering)
        super().__init__(
            server, declared("mlx-lm", header, rules, version=mlx_lm.__version__, salt=salts)
        )

    def close(self) -> None:
        """Let go of the batch and of what is kept."""
        if self.server.folder is not None:
            self.server.folder.cleanup()
        self.server.batch.close()
        self.server.store = None
