"""Faults in the installed lmdeploy: a piece of the source of its scheduler, its trie or its
checkpoints is changed while it runs.
"""

from __future__ import annotations

from functools import partial

from cachewitness.engines.source_edits import Edit, edited
from cachewitness.systems.lmdeploy.source import PATCHES

NAME = "lmdeploy"

TRIE = "paging.block_trie.trie"
CHECKPOINTS = "paging.block_trie.checkpoint_lifecycle"
LIFE = "paging.seq_states.states"
INDEX = "paging.block_trie.checkpoint"
ADMISSION = "paging.prefill_scheduler"
WINDOWS = "paging.block_manager.window_block_manager"

fault = partial(edited, engine=NAME, patches=PATCHES, level="scheduler")

FAULTS = (
    fault(
        Edit(
            TRIE,
            "BlockTrie",
            "_get_or_create_root",
            "if adapter_name not in self._roots:",
            "adapter_name = None\nif adapter_name not in self._roots:",
        ),
        name="lmdeploy-adapters-share-a-root",
        what="Requests of all adapters are looked up under one root of the trie.",
        anomaly="cross-identity-hit",
        checker="identity",
        group="I",
    ),
    fault(
        Edit(
            TRIE,
            "BlockTrie",
            "_match_block_prefix",
            "self.allocator.add_ref_count(matched_block_ids, 1)",
            "pass",
        ),
        name="lmdeploy-matched-blocks-not-counted",
        what="A request does not take the blocks that a look-up found for it.",
        anomaly="reference-count",
        checker="ownership",
        group="H",
    ),
    fault(
        Edit(
            TRIE,
            "BlockTrie",
            "_extend_trie_path",
            "logical_blocks[block_idx] = child.block_id ref_blocks.append(child.block_id)",
            "logical_blocks[block_idx] = child.block_id",
        ),
        name="lmdeploy-substituted-block-not-counted",
        what=(
            "A request whose block the trie has already is given that of the trie, and does not"
            " take it."
        ),
        anomaly="reference-count",
        checker="ownership",
        group="H",
    ),
    fault(
        Edit(
            CHECKPOINTS,
            "StateCheckpointLifecycle",
            "reserve_prefill_save_batch",
            "state_pairs.append((int(seq.logical_state), int(state_idx)))",
            "state_pairs.append((int(state_idx), int(seq.logical_state)))",
        ),
        name="lmdeploy-state-saved-backwards",
        what="The state of a checkpoint is not filled from the request's, but the other way round.",
        anomaly="fabricated-snapshot",
        checker="no-fabricated-snapshots",
        group="A",
    ),
    fault(
        Edit(
            CHECKPOINTS,
            "StateCheckpointLifecycle",
            "reserve_save",
            "step = seq.num_valid_ids",
            "step = seq.num_valid_ids - 1",
        ),
        name="lmdeploy-state-keyed-a-token-early",
        what="A state is kept for the prefix that lacks the prompt's last token.",
        anomaly="fabricated-snapshot",
        checker="no-fabricated-snapshots",
        group="A",
    ),
    fault(
        Edit(
            CHECKPOINTS,
            "StateCheckpointLifecycle",
            "reserve_prefill_save_batch",
            "if checkpoint.frozen_block_id < 0:",
            "if checkpoint.frozen_block_id >= -1:",
        ),
        name="lmdeploy-frozen-block-not-filled",
        what="The block in which a checkpoint ends is kept, and nothing is copied into it.",
        anomaly="partial-commit",
        checker="commit-order",
        group="A",
    ),
    fault(
        Edit(
            CHECKPOINTS,
            "StateCheckpointLifecycle",
            "prepare_restore_batch",
            "if checkpoint.frozen_block_id < 0:",
            "if checkpoint.frozen_block_id >= -1:",
        ),
        name="lmdeploy-frozen-block-not-restored",
        what="Who resumes inside a block is not given the tokens in front of that in the block.",
        anomaly="stale-hit",
        checker="safety-law",
        group="C",
    ),
    fault(
        Edit(
            CHECKPOINTS,
            "StateCheckpointLifecycle",
            "prepare_restore_batch",
            "state_pairs.append((int(restore.slot), int(seq.logical_state)))",
            "state_pairs.append((int(seq.logical_state), int(seq.logical_state)))",
        ),
        name="lmdeploy-state-not-restored",
        what="Who resumes behind a checkpoint goes on from what its own slot happens to have.",
        anomaly="stale-hit",
        checker="safety-law",
        group="C",
    ),
    fault(
        Edit(
            LIFE,
            "SequenceLifecycle",
            "release_paging_resources",
            "self._block_manager.free(seq)",
            "seq.logical_blocks.reset()",
        ),
        name="lmdeploy-blocks-of-the-ended-lost",
        what="The blocks of a request that ends or loses its place are not given back.",
        anomaly="leak",
        checker="ownership",
        group="H",
    ),
    fault(
        Edit(
            LIFE,
            "SequenceLifecycle",
            "release_paging_resources",
            "self._state_manager.free(seq)",
            "seq.logical_state = -1",
        ),
        name="lmdeploy-states-of-the-ended-lost",
        what="The state of a request that ends or loses its place is not given back.",
        anomaly="leak",
        checker="ownership",
        group="H",
    ),
    fault(
        Edit(LIFE, "SequenceLifecycle", "release_paging_resources", "seq.set_step(0)", "pass"),
        name="lmdeploy-progress-kept-without-blocks",
        what="A request that lost its blocks goes on where it was.",
        anomaly="stale-hit",
        checker="safety-law",
        group="C",
    ),
    fault(
        Edit(
            WINDOWS,
            "",
            "_num_blocks_to_drop",
            "win_start_block_id = (history_len - window_size) // block_size",
            "win_start_block_id = (history_len - window_size) // block_size + 1",
        ),
        name="lmdeploy-window-dropped-too-early",
        what="A block is given back into which the window still reaches.",
        anomaly="premature-release",
        checker="window-liveness",
        group="G",
    ),
    fault(
        Edit(
            INDEX,
            "StateCheckpointIndex",
            "verify_candidate",
            "if not np.array_equal(seq.history_cache[:step], match_data.token_ids):",
            "if False:",
        ),
        name="lmdeploy-checkpoint-by-its-tail",
        what="A checkpoint is found by the last tokens of its prefix, whatever is in front.",
        anomaly="stale-hit",
        checker="safety-law",
        group="C",
    ),
    fault(
        Edit(
            ADMISSION,
            "_TentativePrefixMatch",
            "_reset_to_unmatched",
            "if seq.num_blocks > 0 or seq.logical_state >= 0:",
            "if seq.logical_state >= 0:",
        ),
        name="lmdeploy-match-taken-back-by-half",
        what="A match that is taken back leaves its blocks with the request.",
        anomaly="aliased-write",
        checker="ownership",
        group="H",
    ),
    fault(
        Edit(
            CHECKPOINTS,
            "StateCheckpointLifecycle",
            "_find_checkpoint_node",
            "node = seq.prefix_cache.trie_cursor",
            "node = None",
        ),
        name="lmdeploy-states-never-kept",
        what="No checkpoint is saved, as the place for it is never found.",
        anomaly="lost-replay-boundary",
        checker="replay-boundary-retained",
        group="N",
    ),
)
