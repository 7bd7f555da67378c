"""Faults in what vLLM's own scheduler does with requests of special kinds: drafts, grammars,
adapters, states within a chunk.

Each is the source of vLLM 0.33.0 with one piece changed, as in `scheduler_faults`.
"""

from __future__ import annotations

from functools import partial

from cachewitness.engines.mutant import Mutant
from cachewitness.engines.source_edits import Edit, edited
from cachewitness_faults.vllm.modules import ENCODER, SCHEDULER, SINGLE

OWNER = "Scheduler"

fault = partial(edited, level="scheduler")

REQUESTED: tuple[Mutant, ...] = (
    fault(
        Edit(
            ENCODER,
            "EncoderCacheManager",
            "check_and_update_cache",
            "self.cached[mm_hash].add(request.request_id)",
            "pass",
        ),
        name="vllm-shared-image-let-go",
        what=(
            "Who finds an image encoded is not counted among those who need it: it may be evicted"
            " before its tokens are computed, or is taken out of the evictable ones twice."
        ),
        anomaly="engine-crashed",
        checker="engine",
        group="D",
    ),
    fault(
        Edit(
            ENCODER,
            "EncoderCacheManager",
            "free_encoder_input",
            "self.num_freeable_slots += num_encoder_embeds",
            "pass",
        ),
        name="vllm-images-kept-for-ever",
        what=(
            "Images that nobody needs any more are not counted as evictable, so that an encoder's"
            " cache that is full of them takes no other."
        ),
        anomaly="no-progress",
        checker="progress",
        group="D",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "_free_encoder_inputs",
            "<= request.num_computed_tokens - request.num_output_placeholders",
            "<= request.num_computed_tokens - request.num_output_placeholders"
            " - self.num_prefill_lookahead",
        ),
        Edit(
            SCHEDULER,
            OWNER,
            "_try_schedule_encoder_inputs",
            "if num_computed_tokens < start_pos:",
            "if num_computed_tokens + shift_computed_tokens < start_pos:",
        ),
        Edit(
            SCHEDULER,
            OWNER,
            "_try_schedule_encoder_inputs",
            "num_new_tokens, start_pos - num_computed_tokens )",
            "num_new_tokens, start_pos - num_computed_tokens - shift_computed_tokens )",
        ),
        name="vllm-image-kept-for-the-token-behind-it",
        what=(
            "With a drafter that reads a token ahead, an image is kept until the token behind it is"
            " computed, and the chunk ends a token in front of the next image, which has no room."
        ),
        mirrors="vllm-project/vllm-ascend#17195",
        anomaly="no-progress",
        checker="progress",
        group="D",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "get_num_unfinished_requests",
            "return num_waiting + num_running",
            "return num_running",
        ),
        name="vllm-loop-overlooks-who-waits",
        what=(
            "The scheduler says that it has no requests while some wait and none runs, so that the"
            " engine's loop asks it for no step."
        ),
        anomaly="no-progress",
        checker="progress",
        group="D",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "update_from_output",
            "request.num_output_placeholders -= num_rejected",
            "pass",
        ),
        name="vllm-rejected-drafts-keep-their-placeholders",
        what="Drafts that were rejected while a step was in flight are still awaited.",
        anomaly="engine-crashed",
        checker="engine",
        group="D",
    ),
    fault(
        Edit(SCHEDULER, OWNER, "_preempt_request", "request.num_output_placeholders = 0", "pass"),
        name="vllm-placeholders-of-a-preempted-request",
        what="A preempted request still awaits the tokens of its steps in flight.",
        anomaly="engine-crashed",
        checker="engine",
        group="D",
    ),
    fault(
        Edit(
            SINGLE,
            "MambaManager",
            "_relocate_speculative_block",
            "req_blocks[block_idx] = self._null_block",
            "pass",
        ),
        name="vllm-scratch-of-drafts-in-two-columns",
        what=(
            "A block for states after drafts that is moved to the end of the table stays in its old"
            " column too."
        ),
        anomaly="double-free",
        checker="ownership",
        group="H",
    ),
    fault(
        Edit(
            SINGLE,
            "MambaManager",
            "get_num_blocks_to_allocate",
            "checkpoint_idx = cdiv(num_tokens, self.block_size) - 2",
            "checkpoint_idx = cdiv(num_tokens, self.block_size) - 1",
        ),
        name="vllm-checkpoint-keyed-at-the-last-block",
        what=(
            "The key of a state that is saved within a chunk names the block of the state at the"
            " chunk's end."
        ),
        anomaly="fabricated-snapshot",
        checker="no-fabricated-snapshots",
        group="A",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "schedule",
            "self.waiting.prepend_requests(step_skipped_waiting)",
            "pass",
        ),
        name="vllm-waiting-for-a-grammar-is-forgotten",
        what=(
            "A request that is passed over, since its grammar is not compiled or too many adapters"
            " run, never gets another turn."
        ),
        anomaly="no-progress",
        checker="progress",
        group="O",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "finish_requests",
            "self.num_waiting_for_streaming_input -= 1",
            "self.num_waiting_for_streaming_input += self.max_num_active_reqs",
        ),
        name="vllm-stands-still-behind-a-session",
        what=(
            "Behind the end of a session that waited for its client no place counts as free, and"
            " nobody is admitted any more."
        ),
        anomaly="no-progress",
        checker="progress",
        group="O",
    ),
)
