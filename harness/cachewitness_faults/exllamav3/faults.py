"""Faults in the installed exllamav3: a piece of the source of its page table, its jobs, its
generator or its states is changed while it runs.
"""

from __future__ import annotations

from functools import partial

from cachewitness.engines.source_edits import Edit, edited
from cachewitness.systems.exllamav3.source import PATCHES

NAME = "exllamav3"

TABLE = "generator.pagetable"
JOB = "generator.job"
GENERATOR = "generator.generator"
CACHE = "cache.cache"
STATES = "cache.recurrent"
STATE = "modules.gated_delta_net"
CPU = "generator.cpu_cache"

fault = partial(edited, engine=NAME, patches=PATCHES, level="scheduler")

FAULTS = (
    fault(
        Edit(
            TABLE,
            "Sequence",
            "prepare",
            "r_hash = tensor_hash_checksum(page_ids, r_hash)",
            "r_hash = tensor_hash_checksum(page_ids, None)",
        ),
        Edit(
            JOB,
            "Job",
            "hash_completed_page",
            "new_hash = tensor_hash_checksum(page_ids, last_hash)",
            "new_hash = tensor_hash_checksum(page_ids, None)",
        ),
        name="exllamav3-hash-of-a-page-alone",
        what="A page is known by its own tokens, whatever is in front of them.",
        anomaly="stale-hit",
        checker="safety-law",
        group="I",
    ),
    fault(
        Edit(
            JOB,
            "Job",
            "hash_completed_page",
            "new_hash = tensor_hash_checksum(page_ids, last_hash)",
            "new_hash = tensor_hash_checksum(page_ids, old_hash)",
        ),
        name="exllamav3-answers-hashed-otherwise",
        what="Pages of answers have other hashes than the prompts that begin with them.",
        anomaly="lost-hit",
        checker="reuse-floor",
        group="N",
    ),
    fault(
        Edit(
            JOB,
            "Job",
            "hash_completed_page",
            "page.add_ref(new_serial)",
            "pass",
        ),
        name="exllamav3-shared-page-not-counted",
        what="A job that goes over to another's equal page does not count as referring to it.",
        anomaly="reference-count",
        checker="ownership",
        group="H",
    ),
    fault(
        Edit(
            JOB,
            "Job",
            "hash_completed_page",
            "seq.build_block_index_tensor()",
            "pass",
        ),
        name="exllamav3-table-not-rebuilt",
        what="A job that goes over to another's equal page has the device read the one it left.",
        anomaly="use-after-free",
        checker="safety-law",
        group="H",
    ),
    fault(
        Edit(TABLE, "PageTable", "deallocate_pages", "page.sub_ref()", "pass"),
        name="exllamav3-pages-of-the-ended-lost",
        what="The pages of a job that ends, or goes back into the queue, stay referred to.",
        anomaly="leak",
        checker="ownership",
        group="H",
    ),
    fault(
        Edit(
            TABLE,
            "CachePage",
            "add_ref_clear",
            "self.kv_position = 0",
            "pass",
        ),
        name="exllamav3-taken-page-not-emptied",
        what="A page that is given to a prompt counts as full as it was.",
        anomaly="partial-commit",
        checker="commit-order",
        group="A",
    ),
    fault(
        Edit(
            GENERATOR,
            "Generator",
            "iterate_gen",
            "page.kv_position += 1 page.can_revert = False",
            "page.kv_position += 1",
        ),
        name="exllamav3-written-page-reverted",
        what="A page into which an answer was written becomes again what it was before.",
        anomaly="partial-commit",
        checker="commit-order",
        group="A",
    ),
    fault(
        Edit(
            JOB,
            "Job",
            "prefill",
            "if page.prev_hash != prev_hash or id(page) == id(seq.allocated_pages[p0]):",
            "if id(page) == id(seq.allocated_pages[p0]):",
        ),
        name="exllamav3-beginning-of-any-page",
        what="The beginning of a page is copied whatever is in front of the page.",
        anomaly="stale-hit",
        checker="safety-law",
        group="C",
    ),
    fault(
        Edit(
            JOB,
            "Job",
            "prefill",
            "best_match_page.page_index, page.page_index, best_match,",
            "page.page_index, best_match_page.page_index, best_match,",
        ),
        name="exllamav3-beginning-copied-backwards",
        what="The beginning of a page is not copied from it, but over it.",
        anomaly="stale-hit",
        checker="safety-law",
        group="C",
    ),
    fault(
        Edit(
            JOB,
            "Job",
            "prefill",
            (
                "if 0 <= cp_pos <= seq.kv_position: break page = seq.allocated_pages[local_idx]"
                " if page.kv_position == PAGE_SIZE: prefill_start"
            ),
            (
                "page = seq.allocated_pages[local_idx]\n"
                "if page.kv_position == PAGE_SIZE:\n    prefill_start"
            ),
        ),
        name="exllamav3-state-left-behind",
        what="A prompt skips pages that are computed, and its state does not see their tokens.",
        anomaly="state-position-skew",
        checker="safety-law",
        group="C",
    ),
    fault(
        Edit(
            JOB,
            "Job",
            "prefill",
            "if prefill_start < last_page_b <= prefill_end:",
            "if prefill_start < last_page_b < prefill_end and False:",
        ),
        name="exllamav3-prompt-without-checkpoint",
        what="A prompt is computed over its last page's beginning, and no state is kept there.",
        anomaly="missed-checkpoint",
        checker="checkpoints",
        group="N",
    ),
    fault(
        Edit(
            JOB,
            "Job",
            "maybe_stash_recurrent",
            "cache.put(page.phash, self.recurrent_state)",
            "cache.put(seq.allocated_pages[max(last_page - 1, 0)].phash, self.recurrent_state)",
        ),
        name="exllamav3-state-keyed-a-page-early",
        what="A state is kept for the prefix that lacks the last page.",
        anomaly="fabricated-snapshot",
        checker="no-fabricated-snapshots",
        group="A",
    ),
    fault(
        Edit(
            STATE,
            "GDNState",
            "__init__",
            "self.unstash(stashed)",
            "pass",
        ),
        name="exllamav3-state-not-restored",
        what="Who resumes behind a checkpoint goes on from what its slot happens to have.",
        anomaly="stale-hit",
        checker="safety-law",
        group="C",
    ),
    fault(
        Edit(JOB, "Job", "free_recurrent_state", "self.recurrent_state.free()", "pass"),
        name="exllamav3-slots-of-the-ended-lost",
        what="The slot of a job that ends, or goes back into the queue, is not given back.",
        anomaly="leak",
        checker="ownership",
        group="H",
    ),
    fault(
        Edit(
            CACHE,
            "Cache",
            "new_from_stashed",
            "handle = self.free_list.popleft()",
            "handle = self.free_list[0]",
        ),
        name="exllamav3-slot-given-twice",
        what="Two jobs have their states in one slot.",
        anomaly="aliased-write",
        checker="ownership",
        group="H",
    ),
    fault(
        Edit(
            STATES,
            "RecurrentCache",
            "_insert",
            "while self.update_total_size() + state_size > self.max_size:",
            "while self.update_total_size() + state_size >= self.max_size:",
        ),
        name="exllamav3-checkpoint-evicted-too-early",
        what="A checkpoint is dropped while there is room for one more.",
        anomaly="needless-eviction",
        checker="eviction",
        group="N",
    ),
    fault(
        Edit(
            TABLE,
            "PageTable",
            "build_eviction_order",
            "if p.kv_position == 0 and p.phash not in protected_hashes",
            "if False",
        ),
        name="exllamav3-empty-pages-not-first",
        what="Pages are taken by their age, whether there is anything in them or not.",
        anomaly="needless-eviction",
        checker="eviction",
        group="N",
    ),
    fault(
        Edit(
            CPU,
            "CPUPageCache",
            "store",
            "v.copy_(t[page.page_index], non_blocking = True)",
            "pass",
        ),
        name="exllamav3-stored-in-name",
        what="A page that is evicted has an entry in the CPU page cache, and is not copied there.",
        anomaly="partial-commit",
        checker="commit-order",
        group="K",
    ),
    fault(
        Edit(
            CPU,
            "CPUPageCache",
            "fetch",
            "t[page_index].copy_(v, non_blocking = True)",
            "pass",
        ),
        name="exllamav3-loaded-in-name",
        what="A page counts as loaded from the CPU page cache, and is not.",
        anomaly="stale-hit",
        checker="safety-law",
        group="K",
    ),
    fault(
        Edit(
            TABLE,
            "PageTable",
            "defrag",
            "ext.cache_rotate(cache, all_rotations, buffer)",
            "pass",
        ),
        name="exllamav3-defragmented-in-name",
        what="Pages change their numbers, and what is in them stays where it was.",
        anomaly="partial-commit",
        checker="commit-order",
        group="A",
    ),
)
