"""`ExampleConnector`: each prompt that was computed, in a folder of a file for each layer, found by
the whole prompt alone.

Everything is vLLM's, and the folders are real: the scheduler looks whether they exist. Of the
worker the files' content is replaced. The device's caches hold the numbers of their own slots, so
what vLLM's worker extracts says from which blocks, and where it injects what it reads says into
which. A load is over before the runs of its step, a store with them.

Source: vLLM 0.33.0, `distributed/kv_transfer/kv_connector/v1/example_connector.py`.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from shutil import rmtree
from types import SimpleNamespace
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.core.engine_failure import EngineFailure
from cachewitness.engines.cache_state import Claim, KeyId
from cachewitness.systems.vllm.connectors.copies import Job
from cachewitness.systems.vllm.connectors.kinds import CopiesOf, VllmSide
from cachewitness.systems.vllm.connectors.tier import Books, KeyNames
from cachewitness.systems.vllm.source import Source

PAGES = 1 << 12
"""How many pages the folder has room for; nothing in it is ever deleted."""


class Stored:
    """What a folder of a prompt holds: a page for each of its blocks, the job that fills them,
    and whose blocks they were.
    """

    def __init__(self, pages: list[int], job: Job, r: str, layer: str) -> None:
        self.pages = pages
        self.job = job
        self.r = r
        self.layers = {layer}


class Files:
    """In place of `safetensors`: files of slots. `caches` are the layers' slots; pages are
    numbered as they are stored.
    """

    def __init__(
        self, caches: dict[str, Any], block_size: int, copies: CopiesOf, pool: Any
    ) -> None:
        self.caches = caches
        self.folders = dict[str, Stored]()
        self._size = block_size
        self._copies = copies
        self._pool = pool
        self._own = {name: cache.clone() for name, cache in caches.items()}
        self._count = 0
        self.torch = self

    def save_file(self, tensors: dict[str, Any], filename: str) -> None:
        """Store the blocks whose slots these are; the layers of a prompt share its pages, and a
        later save fills them anew.

        Raises EngineFailure if the layers of a prompt do not lie in the same blocks.
        """
        path = Path(filename)
        blocks = self._blocks(tensors["kv_cache"])
        path.touch()
        folder = str(path.parent)
        known = self.folders.get(str(path.parent))
        if known is None or path.name in known.layers:
            self.folders[folder] = self._stored(blocks, path.name, known)
        elif [move.src for move in known.job.moves] != blocks:
            raise EngineFailure(
                "engine-crashed",
                f"had its worker save other blocks of one layer than of the others: {path.name}",
            )
        else:
            known.layers.add(path.name)

    def _stored(self, blocks: list[int], layer: str, before: Stored | None) -> Stored:
        pages = before.pages[: len(blocks)] if before is not None else []
        more = len(blocks) - len(pages)
        pages += range(self._count, self._count + more)
        self._count += more
        have = [self._pool.who_has([block]) for block in blocks]
        r, *_ = (sorted(set.intersection(*have)) if have else []) or [""]
        return Stored(pages, self._copies.begin(blocks, pages, stores=True, steps=1), r, layer)

    def load_file(self, filename: str) -> dict[str, Any]:
        """Return the slots of a file's pages. Raises EngineFailure if it was never saved: the
        worker does not survive that.
        """
        path = Path(filename)
        known = self.folders.get(str(path.parent))
        if known is None or path.name not in known.layers:
            raise EngineFailure(
                "engine-crashed", f"had its worker load a file that was never saved, {path.name}"
            )
        cache = next(iter(self.caches.values()))
        slots = [page * self._size + offset for page in known.pages for offset in range(self._size)]
        return {"kv_cache": -1 - cache.new_tensor(slots).reshape(len(slots), 1, 1)}

    def injected(self) -> None:
        """Begin, and end, the loads that the worker has made: of pages that have arrived whole
        in every layer.
        """
        arrived = [self._arrived(name, cache) for name, cache in self.caches.items()]
        moves = sorted(set.intersection(*arrived)) if arrived else []
        if moves:
            pages, blocks = zip(*moves, strict=True)
            self._copies.wait([self._copies.begin(pages, blocks, stores=False)])

    def _arrived(self, name: str, cache: Any) -> set[tuple[int, int]]:
        """Return which pages lie in which blocks of a layer now, and put the layer's own slots
        back.
        """
        moved = {int(block) for block in (cache != self._own[name]).nonzero()[:, 0]}
        rows = {block: [-1 - slot for slot in cache[block].flatten().tolist()] for block in moved}
        cache.copy_(self._own[name])
        whole = {
            block: row
            for block, row in rows.items()
            if row == [*range(row[0], row[0] + self._size)]
        }
        return {
            (row[0] // self._size, block)
            for block, row in whole.items()
            if row[0] % self._size == 0
        }

    def _blocks(self, slots: Any) -> list[int]:
        """Return the blocks that slots make up. Raises EngineFailure for a part of a block."""
        rows = slots.reshape(-1, self._size).tolist()
        if any(row != [*range(row[0], row[0] + self._size)] or row[0] % self._size for row in rows):
            raise EngineFailure(
                "engine-crashed", "had its worker save slots that are not whole blocks"
            )
        return [row[0] // self._size for row in rows]


class Forward:
    """A forward pass over the layers of the only group, as vLLM's worker shows it to its
    connector.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        layers = {name: SimpleNamespace(kv_cache=cache) for name, cache in files.caches.items()}
        self.context = SimpleNamespace(
            attn_metadata=dict.fromkeys(layers), no_compile_layers=layers
        )

    def loaded(self) -> None:
        """Take note that what is to be loaded before the pass has been."""
        self._files.injected()

    def layers(self) -> Iterable[tuple[str, Any]]:
        """Return the layers with their caches, in order."""
        return self._files.caches.items()

    def ended(self, transfers: Any) -> None:
        """Do nothing: it loads before the pass alone."""


class Example(VllmSide):
    """The connector, both sides. Its folder goes with it."""

    fenced = unordered = False
    forward: Forward
    null: Sequence[int] = ()

    def __init__(self, source: Source, connector: Any, worker: Any, names: KeyNames) -> None:
        # Its own methods find `safetensors` in vLLM's module; a class that derives from it may have
        # imported it too.
        self._modules: list[Any] = [
            module
            for kind in type(connector).__mro__
            if hasattr(module := importlib.import_module(kind.__module__), "safetensors")
        ]
        groups = connector._kv_cache_config.kv_cache_groups
        if len(groups) > 1:
            raise UsageError(
                "--engine: vLLM refuses its ExampleConnector where layers have several cache groups"
                " (it is not SupportsHMA)"
            )
        (group,) = groups
        self._size = connector._block_size
        slots = importlib.import_module("torch").arange(
            connector._kv_cache_config.num_blocks * self._size
        )
        self._caches = {
            name: slots.reshape(-1, 1, self._size, 1).clone() for name in group.layer_names
        }
        self._files: Files | None = None
        weakref.finalize(self, rmtree, connector._storage_path, ignore_errors=True)

    def attach(self, pool: Any, copies: CopiesOf) -> None:
        """Take the device's block pool, observed, and what stands in for the device's copies."""
        self._files = files = Files(self._caches, self._size, copies, pool)
        for module in self._modules:
            module.safetensors = files
        self.forward = Forward(files)

    def hold_back(self, *, held: bool) -> None:
        """Do nothing: it stores what requests have computed."""

    def tell(self, meta: Any) -> None:
        """Do nothing: its copies begin when the worker reads and writes files."""

    def books(self) -> Books:
        """Return what lies in the folders: a prompt's blocks, each keyed as the end of the
        prefix that it ends.
        """
        keys: dict[KeyId, Claim] = {}
        for folder, stored in self._files.folders.items() if self._files is not None else ():
            for index, page in enumerate(stored.pages if stored.job.over else ()):
                keys[0, page, (folder, index)] = Claim((index + 1) * self._size, stored.r)
        return Books(keys, {}, PAGES)
