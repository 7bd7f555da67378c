"""Which pages the worker's recurrent states come from and go to: what vLLM's own `mamba_utils`
copies, on tensors of the CPU.

In front of a step, vLLM copies each request's running state from the column where the last step
left it to the column that this step fills (`preprocess_mamba`), and its kernels then read and write
one page, which `mamba_get_block_table_tensor` names. Both run here. Each page of a small state
tensor holds its own number, so afterwards the page of a request says whose state it has.

`batch_memcpy` launches a Triton kernel: the copies that it is given are made by the host instead,
one after another. States after drafts are moved by a kernel alone
(`postprocess_mamba_fused_kernel`), which is not run.

Source: vLLM 0.29.0 to 0.33.0, `v1/worker/mamba_utils.py`, `v1/attention/backends/utils.py`.
"""

from __future__ import annotations

import ctypes
import importlib
from types import SimpleNamespace
from typing import Any, NamedTuple

from cachewitness.engines.cache_state import Tables
from cachewitness.systems.vllm.source import Source

UTILS = "v1.worker.mamba_utils"


class Moved(NamedTuple):
    """Of one request in one group: the page whose state the step goes on from (-1: it has none),
    and the page that it fills.
    """

    source: int
    target: int


class StateCopies:
    """Copies running states in front of each step."""

    def __init__(
        self, source: Source, config: Any, kv_cache_config: Any, groups: list[int], pages: int
    ) -> None:
        import torch

        module: Any = importlib.import_module(f"vllm.{UTILS}")
        vars(module)["batch_memcpy"] = _copy_in_turn
        self._preprocess = module.preprocess_mamba
        self._config = config.cache_config
        self._kv_cache_config = kv_cache_config
        self.groups = groups
        self._table_of = source.part("v1.attention.backends.utils", "mamba_get_block_table_tensor")
        self._specs = {
            group: kv_cache_config.kv_cache_groups[group].kv_cache_spec for group in groups
        }
        self._numbers = torch.arange(pages)[:, None]
        self._states = {group: torch.zeros((pages, 1), dtype=torch.int64) for group in groups}
        self._layers = {
            layer: SimpleNamespace(kv_cache=[self._states[group]])
            for group in groups
            for layer in kv_cache_config.kv_cache_groups[group].layer_names
        }
        copy = source.part("model_executor.layers.mamba.mamba_utils", "get_temporal_copy_spec")
        self._copy_funcs = {spec.mamba_type: (copy,) for spec in self._specs.values()}
        self._columns: dict[str, int] = {}
        """vLLM's `mamba_state_idx`: the column of each request's running state."""
        buffer = source.part("v1.utils", "CpuGpuBuffer")
        self._buffers = module.MambaCopyBuffers.create(
            config.scheduler_config.max_num_seqs,
            kv_cache_config,
            self._copy_funcs,
            lambda count, dtype: buffer(
                count, dtype=dtype, device=torch.device("cpu"), pin_memory=False
            ),
        )
        self._moved: dict[tuple[str, int], tuple[int, int, Moved]] = {}

    def update(self, output: Any, batch: Any, requests: Any) -> None:
        """Make the copies in front of a step."""
        import torch

        for state in self._states.values():
            state.copy_(self._numbers)
        self._preprocess(
            output,
            self._kv_cache_config,
            self._config,
            self._columns,
            batch,
            requests,
            self._layers,
            self._copy_funcs,
            self._buffers,
        )
        self._moved.clear()
        starts = [int(batch.num_computed_tokens_cpu[index]) for index in range(len(batch.req_ids))]
        stops = [
            start + output.num_scheduled_tokens[r]
            for start, r in zip(starts, batch.req_ids, strict=True)
        ]
        lengths = torch.tensor(stops)
        for group, spec in self._specs.items():
            rows = batch.block_table[group].get_cpu_tensor()[: len(stops)]
            pages = self._table_of(rows, lengths, spec, self._config.mamba_cache_mode)[
                :, 0
            ].tolist()
            for r, start, stop, page in zip(batch.req_ids, starts, stops, pages, strict=True):
                held = int(self._states[group][page, 0]) if start else -1
                self._moved[r, group] = (
                    (start - 1) // spec.block_size,
                    (stop - 1) // spec.block_size,
                    Moved(held, page),
                )

    def shown(self, r: str, rows: Tables) -> Tables:
        """Return a request's rows with the pages that states come from and go to in the columns
        where they belong.
        """
        for group in self.groups:
            before, after, moved = self._moved[r, group]
            if after < len(rows[group]):
                rows[group][after] = moved.target
            if moved.source >= 0 and before < len(rows[group]):
                rows[group][before] = moved.source
        return rows


def _copy_in_turn(sources: Any, targets: Any, sizes: Any) -> None:
    """Copy so many bytes from each address to another one: what vLLM's kernel of that name does."""
    for source, target, size in zip(
        sources.tolist(), targets.tolist(), sizes.tolist(), strict=True
    ):
        ctypes.memmove(target, source, size)
