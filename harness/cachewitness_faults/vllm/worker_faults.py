"""Faults in vLLM's worker: a piece of the source that keeps its batch, or that copies blocks and
states, is changed.

They are found at scheduler level, where vLLM's own model runner follows its scheduler. What it is
told is right in each.
"""

from __future__ import annotations

from functools import partial

from cachewitness.engines.mutant import Mutant
from cachewitness.engines.source_edits import Edit, edited

RUNNER = "v1.worker.gpu_model_runner"
BATCH = "v1.worker.gpu_input_batch"
TABLE = "v1.worker.block_table"
COPIES = "v1.worker.utils"
STATES = "v1.worker.mamba_utils"

fault = partial(edited, level="scheduler")

WORKER: tuple[Mutant, ...] = (
    # --- rows -------------------------------------------------------------------------------------
    fault(
        Edit(
            RUNNER,
            "GPUModelRunner",
            "_update_states",
            "self.input_batch.block_table.append_row(new_block_ids, req_index)",
            "pass",
        ),
        name="vllm-worker-row-not-appended-to",
        what="The row of a running request stays as it was when the request gets blocks.",
        anomaly="aliased-write",
        checker="ownership",
        group="G",
    ),
    fault(
        Edit(
            RUNNER,
            "GPUModelRunner",
            "_update_states",
            "self.input_batch.num_computed_tokens_cpu[req_index] = num_computed_tokens",
            "pass",
        ),
        name="vllm-worker-count-not-advanced",
        what="A running request is computed at the position where it came into the batch.",
        anomaly="aliased-write",
        checker="ownership",
        group="F",
    ),
    fault(
        Edit(
            BATCH,
            "InputBatch",
            "condense",
            "self.block_table.move_row(last_req_index, empty_index)",
            "pass",
        ),
        name="vllm-worker-row-left-behind",
        what="When the batch is condensed a request moves, and its row does not.",
        anomaly="aliased-write",
        checker="ownership",
        group="F",
    ),
    fault(
        Edit(
            "v1.kv_cache_interface",
            "MambaSpec",
            "max_num_blocks_per_req",
            "cdiv(max_len, self.block_size) + self.num_speculative_blocks",
            "cdiv(max_len, self.block_size)",
        ),
        name="vllm-worker-row-without-drafts",
        what="A row of running states has no columns for the states behind drafts.",
        anomaly="engine-crashed",
        checker="engine",
        group="C",
        built=True,
    ),
    fault(
        Edit(
            TABLE,
            "BlockTable",
            "append_row",
            "start = self.num_blocks_per_row[row_idx]",
            "start = max(self.num_blocks_per_row[row_idx] - 1, 0)",
        ),
        name="vllm-worker-row-appended-one-early",
        what="New blocks overwrite the last entry of a row.",
        anomaly="aliased-write",
        checker="ownership",
        group="F",
    ),
    fault(
        Edit(
            TABLE,
            "BlockTable",
            "commit_block_table",
            "self.block_table.copy_to_gpu(num_reqs)",
            "pass",
        ),
        name="vllm-worker-table-not-committed",
        what="The device has the block tables of before.",
        anomaly="aliased-write",
        checker="ownership",
        group="F",
    ),
    fault(
        Edit(
            TABLE,
            "ComputeSlotMappingKernel",
            "kernel",
            "row_offset = req_idx * block_table_stride",
            "row_offset = 0",
        ),
        name="vllm-worker-slots-of-the-first-row",
        what="Tokens of all requests are put where the first row of the batch says.",
        anomaly="aliased-write",
        checker="ownership",
        group="F",
    ),
    fault(
        Edit(
            TABLE,
            "ComputeSlotMappingKernel",
            "kernel",
            "pos // virtual_block_size",
            "(pos + 1) // virtual_block_size",
        ),
        name="vllm-worker-slot-of-the-next-block",
        what="The last token of a block is put in front of the next block.",
        anomaly="aliased-write",
        checker="ownership",
        group="M",
    ),
    # --- copies of blocks -------------------------------------------------------------------------
    fault(
        Edit(
            COPIES,
            "",
            "copy_kv_cache_blocks_inplace",
            "key = (cache.device, cache.data_ptr())",
            "key = (cache.device, 0)",
        ),
        name="vllm-worker-copied-in-one-layer",
        what="A block is copied in the first layer of a device alone.",
        anomaly="stale-hit",
        checker="safety-law",
        group="E",
    ),
    fault(
        Edit(
            COPIES,
            "",
            "copy_kv_cache_blocks_inplace",
            "np.array(kv_cache_block_copies, dtype=np.int64)",
            "np.array(kv_cache_block_copies[:1], dtype=np.int64)",
        ),
        name="vllm-worker-first-copy-alone",
        what="Of the copies in front of a step the first alone is made.",
        anomaly="stale-hit",
        checker="safety-law",
        group="E",
    ),
    # --- running states ---------------------------------------------------------------------------
    fault(
        Edit(
            STATES,
            "",
            "preprocess_mamba",
            "if prev_state_idx != -1 and prev_state_idx != curr_state_idx:",
            "if False:",
        ),
        name="vllm-worker-state-not-copied",
        what="A running state is not copied to the block that the step fills.",
        anomaly="stale-hit",
        checker="safety-law",
        group="E",
    ),
    fault(
        Edit(
            STATES,
            "",
            "preprocess_mamba",
            "(req_state.num_computed_tokens - 1) // block_size",
            "req_state.num_computed_tokens // block_size",
        ),
        name="vllm-worker-state-of-the-next-column",
        what="A hit that ends with a block goes on from the column behind it.",
        anomaly="stale-hit",
        checker="safety-law",
        group="M",
    ),
    fault(
        Edit(
            "model_executor.layers.mamba.mamba_utils",
            "",
            "get_temporal_copy_spec",
            "num_elements=src_state.numel()",
            "num_elements=src_state.numel() // 2",
        ),
        name="vllm-worker-state-copied-in-half",
        what="A running state is copied in part.",
        anomaly="stale-hit",
        checker="safety-law",
        group="E",
    ),
    fault(
        Edit(
            STATES,
            "",
            "collect_mamba_copy_meta",
            "for mamba_group_id in mamba_group_ids:",
            "for mamba_group_id in mamba_group_ids[1:]:",
        ),
        name="vllm-worker-states-of-the-other-groups",
        what="The running states of the first recurrent group are not copied.",
        anomaly="stale-hit",
        checker="safety-law",
        group="E",
    ),
    fault(
        Edit(
            "v1.attention.backends.utils",
            "",
            "mamba_get_block_table_tensor",
            "start_indices = (seq_lens - 1) // kv_cache_spec.block_size",
            "start_indices = seq_lens // kv_cache_spec.block_size",
        ),
        name="vllm-worker-state-written-behind",
        what="A chunk that ends with a block writes its state to the column behind it.",
        anomaly="aliased-write",
        checker="ownership",
        group="M",
    ),
    fault(
        Edit(
            "model_executor.layers.mamba.checkpoint",
            "",
            "compute_mamba_prefill_checkpoints",
            "cols.append(cdiv(seq_len, mamba_block_size) - 2 if valid else -1)",
            "cols.append(cdiv(seq_len, mamba_block_size) - 1 if valid else -1)",
        ),
        name="vllm-worker-checkpoint-in-the-last-column",
        what=(
            "The state that is saved within a chunk goes to the column of the chunk's end, where it"
            " is written over."
        ),
        anomaly="fabricated-snapshot",
        checker="no-fabricated-snapshots",
        group="A",
    ),
)
