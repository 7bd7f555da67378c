"""The rules that are added to vLLM's, and where each comes from."""

from __future__ import annotations

from cachewitness_reference.vllm.spec import CORE, Rule

_SCHEDULER = f"{CORE}/sched/scheduler.py (0.33.0)"

RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule(
            "free-list",
            "The free queue may be first in first out, or last in first out, instead.",
            "our choice; not in vLLM",
        ),
        Rule(
            "pages-per-snapshot",
            "A snapshot of k blocks is held, keyed and evicted as one.",
            "PR 45845, its test setting",
        ),
        Rule(
            "plain-tier",
            "Keyed pages are stored beside the device, and fetched where it has nothing.",
            "tier.py; not in vLLM",
        ),
        Rule(
            "slow-tier",
            "Copies to and from that tier take steps, or fail; nothing is keyed before.",
            "slow_tier.py; not in vLLM",
        ),
        Rule(
            "async-load",
            "Who waits for a load holds its blocks and does not run; what a failed load lacks is"
            " computed.",
            f"{_SCHEDULER}, WAITING_FOR_REMOTE_KVS, _handle_invalid_blocks",
        ),
    )
}
