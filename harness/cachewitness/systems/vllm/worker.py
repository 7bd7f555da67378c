"""vLLM's own model runner, as far as it keeps the batch: without a device, a model and weights.

The runner makes its batch itself, so the length of the rows is vLLM's. It takes in the scheduler's
output by its own `_update_states`: its cached requests, its `InputBatch` with a block table for
each group, `condense`, and the copies of blocks on tensors of the CPU. What a step computes from
and over is then read from that batch: the number of computed tokens, and the rows of the block
tables, in which running states stand where they were copied
(`worker_states`). The copies are those that were made: each block of two small caches, of the two
forms in which vLLM's layers keep theirs, holds its own number, and afterwards that of the block
whose content it has.

Not run, because there is no device: `KVBlockZeroer` (a Triton kernel: what is to be zeroed is taken
as told), the encoder, the sampler and the second model runner (`v1/worker/gpu`), whose block tables
are written by Triton kernels.

Sources: vLLM 0.29.0 to 0.33.0, `v1/worker/gpu_model_runner.py`, `gpu_input_batch.py`,
`block_table.py`, `utils.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.core.engine_failure import EngineFailure
from cachewitness.engines.cache_state import Tables
from cachewitness.systems.vllm.build import fill
from cachewitness.systems.vllm.engine_config import most_drafts
from cachewitness.systems.vllm.source import Source
from cachewitness.systems.vllm.worker_copies import Copies
from cachewitness.systems.vllm.worker_slots import SlotMapping
from cachewitness.systems.vllm.worker_states import StateCopies
from cachewitness.systems.vllm.worker_tables import WorkerTables, without_cleared
from cachewitness.systems.vllm.worker_tokens import tokens_of
from cachewitness_reference.vllm_extended.config import Options

RUNNER = "v1.worker.gpu_model_runner"
SECOND_SINCE = (0, 33)
"""The oldest release whose second runner the adapter was written for."""
VOCABULARY = 1 << 30
"""More than there are tokens. The batch compares it with the sampler's limits alone."""


def worker_of(
    source: Source, scheduler: Any, kv_cache_config: Any, config: Any, options: Options
) -> WorkerTables:
    """Return what follows the outputs of a scheduler: vLLM's model runner, the first or the second.

    With the second before 0.33, and with the first where it is open how many drafts of a step in
    flight were accepted, what the scheduler told is followed. There the rows are as long as the
    first runner would make them.
    """
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    pages = max(len(single.block_pool.blocks) for single in managers)
    drafts = most_drafts(options)
    second = scheduler.use_v2_model_runner
    if second and not source.is_before(SECOND_SINCE):
        from cachewitness.systems.vllm.worker_second import SecondWorker

        unpinned()
        return SecondWorker(source, config, kv_cache_config, pages, late=drafts > 0)
    if second or (options.async_depth and drafts):
        tables = _runner(source, config, kv_cache_config).input_batch.block_table.block_tables
        return WorkerTables([table.max_num_blocks_per_req for table in tables])
    return RealWorker(source, config, kv_cache_config, options, pages)


class RealWorker(WorkerTables):
    """Has vLLM's model runner follow what its scheduler says."""

    def __init__(
        self, source: Source, config: Any, kv_cache_config: Any, options: Options, pages: int
    ) -> None:
        super().__init__()
        self._copies = Copies(pages)
        self._states = _states(source, config, kv_cache_config, options, pages)
        self._runner = _runner(source, config, kv_cache_config)
        vars(self._runner).update(kv_caches=list(self._copies.caches))
        self._slots = SlotMapping(self._runner.input_batch)
        self._tokens = tokens_of(
            source, self._runner, ahead=config.scheduler_config.async_scheduling
        )

    def update(self, output: Any) -> dict[str, int]:
        """Take in what a step tells the worker; return the position from which each request
        computes.

        Raises EngineFailure for a request that is to compute and that the worker does not know, or
        has not in its batch.
        """
        super().update(output)
        with self._copies.of(output.kv_cache_block_copies) as self.copies:
            self._runner._update_states(output)
        batch = self._runner.input_batch
        if missing := [r for r in output.num_scheduled_tokens if r not in batch.req_id_to_index]:
            raise EngineFailure(
                "engine-crashed", f"had {missing[0]} compute, which was not in its worker's batch"
            )
        if self._states is not None:
            self._states.update(output, batch, self._runner.requests)
        self._slots.update(output.num_scheduled_tokens, batch)
        self._counts = output.num_scheduled_tokens
        return {
            r: int(batch.num_computed_tokens_cpu[batch.req_id_to_index[r]])
            for r in output.num_scheduled_tokens
        }

    def fed(
        self, drafts: Mapping[str, list[int]], requests: Mapping[str, Any]
    ) -> dict[str, list[int]]:
        """Return, by request of the last step whose row is not its own tokens, what is fed of it
        but its drafts.
        """
        if self._tokens is None:
            return {}
        wrong = self._tokens.fed(self._counts, drafts, requests)
        self._tokens.prepared(self._counts)
        return wrong

    def sampled(self, tokens: Mapping[str, list[int]]) -> None:
        """Have the runner note what the last step has sampled."""
        if self._tokens is not None:
            self._tokens.sampled(tokens)

    def rows(self, r: str, held: Tables, null: int) -> Tables:
        """Return a request's rows of the block tables as far as they are used. `held` is the
        engine's own table.
        """
        batch = self._runner.input_batch
        index = batch.req_id_to_index.get(r)
        if index is None:
            return held
        used = [
            (table, table.num_blocks_per_row[index]) for table in batch.block_table.block_tables
        ]
        rows = without_cleared(
            [table.block_table.np[index, :count].tolist() for table, count in used], held, null
        )
        rows = self._slots.shown(r, rows)
        return self._states.shown(r, rows) if self._states is not None else rows


def _runner(source: Source, config: Any, kv_cache_config: Any) -> Any:
    """Return vLLM's model runner with what it keeps on the host. It makes its batch itself
    (`may_reinitialize_input_batch`): how many rows there are, how long they are, which groups have
    slots.
    """
    import torch

    _alone_on_the_host(source)
    sizes = [group.kv_cache_spec.block_size for group in kv_cache_config.kv_cache_groups]
    scheduling = config.scheduler_config
    drafts = config.speculative_config
    of = source.part(RUNNER, "GPUModelRunner")
    runner = of.__new__(of)
    vars(runner).update(
        **{f"{source.package}_config": config},
        cache_config=config.cache_config,
        parallel_config=config.parallel_config,
        model_config=SimpleNamespace(get_vocab_size=lambda: VOCABULARY),
        max_model_len=config.model_config.max_model_len,
        max_encoder_len=0,
        max_num_reqs=scheduling.max_num_seqs,
        max_num_tokens=scheduling.max_num_batched_tokens,
        num_spec_tokens=drafts.num_speculative_tokens if drafts else 0,
        cp_kv_cache_interleave_size=config.parallel_config.cp_kv_cache_interleave_size,
        _init_block_sizes=[],
        _init_kernel_block_sizes=[],
        _init_max_num_blocks=[],
        _init_slot_mapping_modes=[],
        jit_warmup_registry=SimpleNamespace(activate=nullcontext),
        input_batch=SimpleNamespace(logitsprocs=None, logitsprocs_need_output_token_ids=False),
        requests={},
        num_prompt_logprobs={},
        late_interaction_runner=SimpleNamespace(
            on_requests_finished=_nothing, register_request=_nothing
        ),
        kv_cache_config=kv_cache_config,
        encoder_cache={},
        speculative_config=drafts,
        is_pooling_model=False,
        uses_mrope=False,
        uses_xdrope_dim=0,
        use_async_scheduling=scheduling.async_scheduling,
        use_async_spec_decode=False,
        device=torch.device("cpu"),
        _zero_block_ids=_nothing,
        _may_reorder_batch=_nothing,
    )
    # Until 0.32 a kernel's blocks may be smaller than the cache's; no kernel runs here.
    sized = {"kv_cache_config": kv_cache_config, "kernel_block_sizes": sizes}
    fill(source, runner.may_reinitialize_input_batch, sized)
    return runner


def _states(
    source: Source, config: Any, kv_cache_config: Any, options: Options, pages: int
) -> StateCopies | None:
    """Return what copies running states in so many pages; None where there are none that may be
    hit, or drafts, whose states a kernel moves.
    """
    state = source.part("v1.kv_cache_interface", "MambaSpec")
    groups = [
        index
        for index, group in enumerate(kv_cache_config.kv_cache_groups)
        if isinstance(group.kv_cache_spec, state)
    ]
    aligned = options.mamba_cache_mode == "align" and options.enable_caching
    return (
        StateCopies(source, config, kv_cache_config, groups, pages)
        if groups and aligned and not most_drafts(options)
        else None
    )


def _alone_on_the_host(source: Source) -> None:
    """Let the runner find itself the only rank, and let no buffer of its batch be pinned for a
    device.

    Raises UsageError if this vLLM asks for that in another way.
    """
    runner = importlib.import_module(f"vllm.{RUNNER}")
    if not hasattr(runner, "get_pp_group"):
        raise UsageError(
            f"vLLM {source.version}: its model runner has no get_pp_group, which this adapter does"
            " not know"
        )
    runner.get_pp_group = _group_of_one  # type: ignore[attr-defined]
    unpinned(RUNNER)


def unpinned(*further: str) -> None:
    """Let no buffer of vLLM's worker be pinned for a device; `further` are modules beside those
    that say so themselves.
    """
    for name in ("utils.torch_utils", "v1.utils", "v1.worker.gpu_input_batch", *further):
        module: Any = importlib.import_module(f"vllm.{name}")
        if hasattr(module, "PIN_MEMORY"):
            module.PIN_MEMORY = False
        if hasattr(module, "is_pin_memory_available"):
            module.is_pin_memory_available = _unavailable


def _group_of_one() -> SimpleNamespace:
    """Return the group of a worker that is alone."""
    return SimpleNamespace(is_first_rank=True, is_last_rank=True, world_size=1, rank_in_group=0)


def _unavailable() -> bool:
    """Say that there is no device for which memory could be pinned (a function until 0.32,
    `PIN_MEMORY` since).
    """
    return False


def _nothing(*_: Any) -> None:
    """Stand in for what needs a device or a model."""
