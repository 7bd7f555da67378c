"""Faults in vLLM's second model runner (`v1/worker/gpu`): a piece of the source that keeps its
requests, or of a kernel that writes its tables, tokens and states, is changed.

They are found at scheduler level with `runner=second`. What the runner is told is right in each.
"""

from __future__ import annotations

from functools import partial

from cachewitness.engines.mutant import Mutant
from cachewitness.engines.source_edits import Edit, edited

RUNNER = "v1.worker.gpu.model_runner"
TABLES = "v1.worker.gpu.block_table"
BUFFERS = "v1.worker.gpu.buffer_utils"
REQUESTS = "v1.worker.gpu.states"
INPUTS = "v1.worker.gpu.input_batch"
HYBRID = "v1.worker.gpu.model_states.mamba_hybrid"
COPIES = "v1.worker.mamba_utils"

fault = partial(edited, level="scheduler")

SECOND: tuple[Mutant, ...] = (
    # --- block tables and staged writes -----------------------------------------------------------
    fault(
        Edit(
            TABLES,
            "BlockTables",
            "append_block_ids",
            "start = self.num_blocks.np[i, req_index] if not overwrite else 0",
            "start = max(self.num_blocks.np[i, req_index] - 1, 0) if not overwrite else 0",
        ),
        name="vllm-second-row-appended-one-early",
        what="New blocks overwrite the last entry of a row.",
        anomaly="aliased-write",
        checker="ownership",
        group="F",
    ),
    fault(
        Edit(
            TABLES,
            "BlockTables",
            "append_block_ids",
            "start = self.num_blocks.np[i, req_index] if not overwrite else 0",
            "start = self.num_blocks.np[i, req_index]",
        ),
        name="vllm-second-row-of-the-one-before",
        what="The blocks of a new request are put behind those of whoever had its row before.",
        anomaly="aliased-write",
        checker="ownership",
        group="F",
    ),
    fault(
        Edit(
            TABLES,
            "BlockTables",
            "apply_staged_writes",
            "self.num_blocks.copy_to_uva()",
            "pass",
        ),
        name="vllm-second-counts-not-copied",
        what="The device has the numbers of blocks of before, and leaves new blocks out.",
        anomaly="aliased-write",
        checker="ownership",
        group="F",
    ),
    fault(
        Edit(
            RUNNER,
            "GPUModelRunner",
            "execute_model",
            "self.block_tables.apply_staged_writes()",
            "pass",
        ),
        name="vllm-second-writes-never-applied",
        what="What is staged for the block tables is never written.",
        anomaly="aliased-write",
        checker="ownership",
        group="F",
    ),
    fault(
        Edit(
            BUFFERS,
            "FusedStagedWriter",
            "apply",
            "content_base + cu_len for cu_len in t._staged_write_cu_lens",
            "cu_len for cu_len in t._staged_write_cu_lens",
        ),
        name="vllm-second-writes-of-the-first-group",
        what="Rows of further groups are written from the contents of the first.",
        anomaly="aliased-write",
        checker="ownership",
        group="C",
    ),
    fault(
        Edit(
            BUFFERS,
            "",
            "_apply_write_kernel",
            "cu_start = tl.load(write_cu_lens_ptr + pid - 1) if pid > 0 else 0",
            "cu_start = 0",
        ),
        name="vllm-second-writes-from-the-start",
        what="Every staged write begins with the contents of the first.",
        anomaly="aliased-write",
        checker="ownership",
        group="F",
    ),
    fault(
        Edit(
            BUFFERS,
            "StagedWriteTensor",
            "clear_staged_writes",
            "self._staged_write_starts.clear()",
            "pass",
        ),
        name="vllm-second-starts-kept",
        what="Staged writes begin where those of an earlier step began.",
        anomaly="aliased-write",
        checker="ownership",
        group="F",
    ),
    fault(
        Edit(
            TABLES,
            "",
            "_gather_block_tables_kernel",
            "req_idx = tl.load(batch_idx_to_req_idx + batch_idx)",
            "req_idx = batch_idx",
        ),
        name="vllm-second-rows-in-order-of-the-batch",
        what="A step takes the rows in the order of its batch, not those of its requests.",
        anomaly="aliased-write",
        checker="ownership",
        group="F",
    ),
    fault(
        Edit(
            TABLES,
            "",
            "_gather_block_tables_kernel",
            "tl.maximum(first_pos - reach, 0) // block_size",
            "tl.maximum(first_pos - reach + block_size - 1, 0) // block_size",
        ),
        name="vllm-second-window-masked-early",
        what="The block in which a window begins is masked.",
        anomaly="premature-release",
        checker="window-liveness",
        group="G",
    ),
    fault(
        Edit(
            TABLES,
            "",
            "_compute_slot_mappings_kernel",
            "block_table_ptr + req_state_idx * block_table_stride + block_indices",
            "block_table_ptr + batch_idx * block_table_stride + block_indices",
        ),
        name="vllm-second-slots-in-order-of-the-batch",
        what="Tokens are put where the row of another request says.",
        anomaly="aliased-write",
        checker="ownership",
        group="F",
    ),
    fault(
        Edit(
            TABLES,
            "",
            "_compute_slot_mappings_kernel",
            "kv_block_size = tl.load(block_sizes + group_id)",
            "kv_block_size = tl.load(block_sizes)",
        ),
        name="vllm-second-slots-by-the-first-group-s-blocks",
        what="Slots of every group are counted in blocks of the first.",
        anomaly="aliased-write",
        checker="ownership",
        group="M",
    ),
    # --- requests, positions and tokens -----------------------------------------------------------
    fault(
        Edit(
            REQUESTS,
            "RequestState",
            "add_request",
            "self.num_computed_tokens.stage_write_elem(req_idx, num_computed_tokens)",
            "pass",
        ),
        name="vllm-second-count-of-the-one-before",
        what="A new request goes on at the position of whoever had its row before.",
        anomaly="aliased-write",
        checker="ownership",
        group="F",
    ),
    fault(
        Edit(
            REQUESTS,
            "RequestState",
            "remove_request",
            "self.free_indices.append(req_idx)",
            "self.free_indices.extend((req_idx, req_idx))",
        ),
        name="vllm-second-row-given-to-two",
        what="The row of a request that has ended is given to two.",
        anomaly="aliased-write",
        checker="ownership",
        group="F",
    ),
    fault(
        Edit(
            RUNNER,
            "GPUModelRunner",
            "update_requests",
            "req_index = self.req_states.req_id_to_index[req_id]",
            "req_index = list(reqs.req_ids).index(req_id)",
        ),
        name="vllm-second-blocks-to-the-row-of-another",
        what="New blocks of running requests go to rows in the order in which they are told.",
        anomaly="aliased-write",
        checker="ownership",
        group="F",
    ),
    fault(
        Edit(
            INPUTS,
            "",
            "_post_update_kernel",
            "tl.store(num_computed_tokens_ptr + req_state_idx, num_computed + computed_delta)",
            "tl.store(num_computed_tokens_ptr + req_id, num_computed + computed_delta)",
        ),
        name="vllm-second-another-s-count-advanced",
        what="Behind a step the counts of computed tokens are advanced in the order of the batch.",
        anomaly="aliased-write",
        checker="ownership",
        group="F",
    ),
    fault(
        Edit(
            INPUTS,
            "",
            "_prepare_prefill_inputs_kernel",
            "tl.load(request_ptr + num_computed + block, mask=mask)",
            "tl.load(request_ptr + block, mask=mask)",
        ),
        name="vllm-second-chunk-of-the-first-tokens",
        what="Every chunk of a prompt is fed the prompt's first tokens.",
        anomaly="stale-hit",
        checker="safety-law",
        group="F",
    ),
    fault(
        Edit(
            INPUTS,
            "",
            "_combine_sampled_and_draft_tokens_kernel",
            "last_token_id = tl.load(last_sampled_tokens_ptr + req_state_idx)",
            "last_token_id = tl.load(last_sampled_tokens_ptr + batch_idx)",
        ),
        name="vllm-second-another-s-last-token",
        what="A request that decodes is fed the last token of another.",
        anomaly="stale-hit",
        checker="safety-law",
        group="F",
    ),
    fault(
        Edit(
            INPUTS,
            "",
            "_prepare_pos_seq_lens_kernel",
            "tl.store(seq_lens_ptr + req_id, seq_len)",
            "tl.store(seq_lens_ptr + req_id, query_len)",
        ),
        name="vllm-second-length-of-the-chunk",
        what="Attention is told the length of the chunk in place of all tokens.",
        anomaly="stale-hit",
        checker="safety-law",
        group="F",
    ),
    # --- running states ---------------------------------------------------------------------------
    fault(
        Edit(
            HYBRID,
            "MambaHybridModelState",
            "add_request",
            "(new_req_data.num_computed_tokens - 1) // mamba_block_size",
            "new_req_data.num_computed_tokens // mamba_block_size",
        ),
        name="vllm-second-state-of-the-next-column",
        what="A hit that ends with a block goes on from the column behind it.",
        anomaly="stale-hit",
        checker="safety-law",
        group="M",
    ),
    fault(
        Edit(
            COPIES,
            "",
            "preprocess_mamba_align_fused_kernel",
            "tl.store(src_col_ptr + req_indices, state_idx, mask=mask)",
            "tl.store(src_col_ptr + req_indices, -1, mask=mask)",
        ),
        name="vllm-second-state-not-copied",
        what="A running state is not copied to the block that the step fills.",
        anomaly="stale-hit",
        checker="safety-law",
        group="E",
    ),
    fault(
        Edit(
            COPIES,
            "",
            "_copy_mamba_state_block",
            "block_table_base = block_table_typed + bt_row_idx * block_table_stride_req",
            "block_table_base = block_table_typed",
        ),
        name="vllm-second-states-of-the-first-row",
        what="Running states are copied between blocks of the first row.",
        anomaly="stale-hit",
        checker="safety-law",
        group="F",
    ),
    fault(
        Edit(
            COPIES,
            "",
            "get_aligned_state_indices_multi_group_kernel",
            "first_state_slot = tl.maximum((seq_lens - 1) // CACHE_BLOCK_SIZE, 0)",
            "first_state_slot = tl.maximum(seq_lens // CACHE_BLOCK_SIZE, 0)",
        ),
        name="vllm-second-state-written-behind",
        what="A chunk that ends with a block writes its state to the column behind it.",
        anomaly="aliased-write",
        checker="ownership",
        group="M",
    ),
    # --- copies of blocks -------------------------------------------------------------------------
    fault(
        Edit(
            RUNNER,
            "GPUModelRunner",
            "update_requests",
            "if scheduler_output.kv_cache_block_copies:",
            "if False:",
        ),
        name="vllm-second-blocks-not-copied",
        what="The copies in front of a step are not made.",
        anomaly="stale-hit",
        checker="safety-law",
        group="E",
    ),
)
