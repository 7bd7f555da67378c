"""Faults of what stands in front of Dynamo: its adapters with a line changed each."""

from __future__ import annotations

from typing import Any

from cachewitness.sessions.route.faulty import MISSES, PROMISES, Fault, changed
from cachewitness.systems.dynamo import indexer, radix_tree

FAULTS: dict[str, Fault] = {
    "ForgetsRemovals": Fault(
        "removed blocks stay in the tree",
        (
            ('if event["type"] == "AllBlocksCleared":', 'if event["type"] != "BlockStored":'),
            ("            self._tree.clear_all_blocks(worker)\n", ""),
        ),
        PROMISES,
    ),
    "KeepsWhatIsCleared": Fault(
        "AllBlocksCleared changes nothing",
        (("            self._tree.clear_all_blocks(worker)\n", ""),),
        PROMISES,
    ),
    "KeepsBlocksOverARestart": Fault(
        "a worker that numbers from 0 again keeps what it had before",
        (("            self._tree.remove_worker(worker)\n", ""),),
        PROMISES,
    ),
    "DropsARestartedWorker": Fault(
        "messages of a worker that numbers from 0 again are taken for old ones",
        (("        if number == 0:\n", "        if number == 0 and worker not in self._next:\n"),),
        PROMISES,
    ),
    "NeverAsksForMessages": Fault(
        "what was published before it came, or was lost, is never asked for",
        (
            (
                "            self._replay(worker, first) if number > first else ()\n",
                "            ()\n",
            ),
            (
                "if at == self._next[worker]:\n                self._next[worker] += 1\n",
                "if at >= self._next[worker]:\n                self._next[worker] = at + 1\n",
            ),
        ),
        MISSES,
    ),
    "CountsOtherMedia": Fault(
        "what is gone from the CPU is gone from the device",
        (('event["medium"] not in (None, "GPU") or ', ""),),
        MISSES,
    ),
    "TakesAllGroups": Fault(
        "events of windows and states are taken for those of full attention",
        ((' or event["group_idx"] not in (None, self._group)', ""),),
        MISSES,
    ),
    "IgnoresSalts": Fault(
        "equal prompts with other salts share blocks",
        (("cache_namespace=salt or None, ", ""),),
        PROMISES,
    ),
    "SaltsEveryBlock": Fault(
        "the salt, which is published with a first block alone, is part of every block's hash",
        (
            (
                "*self._hash(whole[size:], size, **named)",
                "*self._hash(whole[size:], size, cache_namespace=salt or None, **named)",
            ),
        ),
        MISSES,
    ),
    "IgnoresAdapters": Fault(
        "equal prompts with other adapters share blocks",
        (('"lora_name": adapter or None', '"lora_name": None'),),
        PROMISES,
    ),
    "CountsTheLastToken": Fault(
        "a prompt that is there whole is promised whole",
        (("self._hashes(tokens[:-1], salt, adapter)", "self._hashes(tokens, salt, adapter)"),),
        PROMISES,
    ),
    "ForgetsParents": Fault(
        "blocks are taken for the beginning of a prompt",
        (('"parent_hash": event["parent_block_hash"],', '"parent_hash": None,'),),
        MISSES,
    ),
    "CountsBlocks": Fault(
        "blocks are answered in place of tokens",
        (("worker: blocks * self._size for", "worker: blocks for"),),
        MISSES,
    ),
}
"""The faults by name, and what each is found for."""

PROCESS_FAULTS: dict[str, Fault] = {
    "NeverRegistersAgain": Fault(
        "a worker that numbers from 0 again goes on at its old address",
        (("if number == 0 or worker not in self._workers:", "if worker not in self._workers:"),),
        PROMISES,
    ),
    "NamesNoReplay": Fault(
        "no address is told at which messages can be asked for",
        (("replay_endpoint=publisher.replay_endpoint,", "replay_endpoint=None,"),),
        MISSES,
    ),
    "ReplaysFromTheNext": Fault(
        "the first of the messages that are asked for is left out",
        (('int.from_bytes(first, "big")', '1 + int.from_bytes(first, "big")'),),
        MISSES,
    ),
    "LeavesRemovalsOut": Fault(
        "no message has removals",
        (
            (
                "for event in events]",
                'for event in events if event["type"] != "BlockRemoved"]',
            ),
        ),
        PROMISES,
    ),
    "LeavesClearingOut": Fault(
        "no message says that all is cleared",
        (
            (
                "for event in events]",
                'for event in events if event["type"] != "AllBlocksCleared"]',
            ),
        ),
        PROMISES,
    ),
    "LeavesMediaOut": Fault(
        "no event names its medium",
        (("dict(_tagged(event))", '{**_tagged(event), "medium": None}'),),
        MISSES,
    ),
    "LeavesKindsOut": Fault(
        "no event names its group and kind",
        (
            (
                "dict(_tagged(event))",
                '{**_tagged(event), "group_idx": None, "kv_cache_spec_kind": None}',
            ),
        ),
        MISSES,
    ),
    "LeavesParentsOut": Fault(
        "blocks are taken for the beginning of a prompt",
        (("dict(_tagged(event))", '{**_tagged(event), "parent_block_hash": None}'),),
        MISSES,
    ),
    "LeavesAdaptersOut": Fault(
        "no event names its adapter",
        (("dict(_tagged(event))", '{**_tagged(event), "lora_name": None}'),),
        MISSES,
    ),
    "TagsNoSalt": Fault(
        "a salt is told as the client gave it, which the process takes for none",
        (("(SALT + salt for salt in salts)", "salts"),),
        MISSES,
    ),
    "AsksWithoutSalt": Fault(
        "prompts with a salt are asked for as if they had none",
        (("cache_salt=salt or None, ", ""),),
        MISSES,
    ),
    "AsksWithoutAdapter": Fault(
        "prompts with an adapter are asked for as if they had none",
        ((", lora_name=adapter or None", ""),),
        MISSES,
    ),
    "CountsTheLastToken": Fault(
        "a prompt that is there whole is promised whole",
        (("token_ids=tokens[:-1]", "token_ids=tokens"),),
        PROMISES,
    ),
}
"""The same in front of Dynamo's process."""


def build(name: str, *, process: bool = False) -> Any:
    """Return the class of the router with a fault, in front of the tree or of the process."""
    if process:
        return changed(indexer, PROCESS_FAULTS[name].edits, name).IndexerRouter
    return changed(radix_tree, FAULTS[name].edits, name).RadixTreeRouter
