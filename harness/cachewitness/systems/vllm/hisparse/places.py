"""Where the blocks of HiSparse lie, as pages of one pool of the ledger.

The device's blocks come first, then those of the host. A block of the host holds all layers; the
layers whose copies on the device lie in different blocks (vLLM's resident groups) are groups of
their own here, so a block of the host is a page for each.

Source: vLLM 0.33.0, `v1/hisparse/layout.py`, `_lay_out_hisparse_groups`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from cachewitness.systems.vllm.source import Source


class Places(NamedTuple):
    """vLLM's groups by what they are, and the pools. The groups of the ledger are the resident ones
    in order, then the indexer.

    `source`, `indexer`, `resident` and `hot` are vLLM's indices of groups. `device` and `host` are
    blocks in the pools.
    """

    source: int
    indexer: int
    resident: list[int]
    hot: list[int]
    device: int
    host: int
    block_size: int

    @staticmethod
    def of(source: Source, config: Any) -> Places:
        """Return where the blocks of a KVCacheConfig of vLLM's lie."""
        interface = source.interface
        groups = config.kv_cache_groups
        specs = [group.kv_cache_spec for group in groups]
        roles = [group.role for group in groups]
        return Places(
            roles.index(interface.KVCacheGroupRole.HISPARSE_SOURCE),
            roles.index(interface.KVCacheGroupRole.HISPARSE_INDEXER),
            [
                index
                for index, spec in enumerate(specs)
                if isinstance(spec, interface.HiSparseResidentSpec)
            ],
            [
                index
                for index, spec in enumerate(specs)
                if isinstance(spec, interface.HiSparseHotSpec)
            ],
            config.num_blocks,
            config.hisparse_host_num_blocks,
            specs[0].block_size,
        )

    @property
    def parts(self) -> range:
        """The ledger's groups whose blocks lie on the host, and in copies on the device."""
        return range(len(self.resident))

    @property
    def of_indexer(self) -> int:
        """The ledger's group of the indexer, whose blocks lie on the device alone."""
        return len(self.resident)

    @property
    def pages(self) -> int:
        """How many pages the ledger's pool has."""
        return self.device + len(self.resident) * self.host

    def on_host(self, part: int, block: int) -> int:
        """Return the page of a block of the host, for one of `parts`."""
        return self.device + part * self.host + block

    def null(self) -> list[int]:
        """Return the pages that nobody owns: block 0 of either pool."""
        return [0, *(self.on_host(part, 0) for part in self.parts)]
