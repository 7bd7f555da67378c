"""Faults of routers: the reference router with a line or two changed.

`cachewitness route --router cachewitness_faults.router:ForgetsRemovals` runs one.
"""

from __future__ import annotations

from typing import Any

import cachewitness_reference.router as reference
from cachewitness.sessions.route.faulty import MISSES, PROMISES, Fault, changed

_SALT = "sha256(repr((salt, adapter)).encode())"

FAULTS: dict[str, Fault] = {
    "ForgetsRemovals": Fault(
        "removed blocks stay",
        (("self.pages.subtract(blocks)", "pass"),),
        PROMISES,
    ),
    "DoesNotCount": Fault(
        "a block on two pages is gone with the first (a set, and does not say so)",
        (
            (
                "self.pages.subtract(blocks)",
                "self.pages.update({one: -self.pages[one] for one in blocks})",
            ),
        ),
        MISSES,
    ),
    "FullAttentionAlone": Fault(
        "groups with windows and states are not asked (and it does not say so)",
        (
            (
                "for end in needed(group, length)",
                'for end in needed(group, length) if group["kind"] == "full_attention"',
            ),
        ),
        PROMISES,
    ),
    "OneCountForAllGroups": Fault(
        "a block of one group is taken for one of every group",
        (
            ("            worker.pages[number, ", "            any(worker.pages[other, "),
            ("].digest())] > 0\n", "].digest())] > 0 for other in range(len(self.groups)))\n"),
        ),
        PROMISES,
    ),
    "IgnoresSalts": Fault(
        "equal prompts with other salts share blocks",
        ((_SALT, "sha256(repr(adapter).encode())"),),
        PROMISES,
    ),
    "IgnoresAdapters": Fault(
        "equal prompts with other adapters share blocks",
        ((_SALT, "sha256(repr(salt).encode())"),),
        PROMISES,
    ),
    "TakesTheAdapterForTheSalt": Fault(
        "the first extra key is the salt, also where it is the adapter's name",
        (("salts[bool(adapter) :]", "salts"),),
        MISSES,
    ),
    "KeepsWhatIsCleared": Fault(
        "AllBlocksCleared changes nothing",
        (("            self.clear()\n        elif", "            pass\n        elif"),),
        PROMISES,
    ),
    "KeepsBlocksOverARestart": Fault(
        "a worker that numbers from 0 again keeps what it had before",
        (
            (
                "            self.workers[worker] = Worker()\n",
                "            self.workers.setdefault(worker, Worker()).number = 0\n",
            ),
        ),
        PROMISES,
    ),
    "DropsARestartedWorker": Fault(
        "messages of a worker that numbers from 0 again are taken for old ones",
        (("if number == 0 or worker not in", "if worker not in"),),
        PROMISES,
    ),
    "ForgetsParents": Fault(
        "blocks are taken for the beginning of a prompt, whatever is in front of them",
        (
            (
                "if parent is None else self.digests.get(parent)",
                "if parent else beginning(salt, adapter)",
            ),
        ),
        MISSES,
    ),
    "LooksAtTheLastBlockAlone": Fault(
        "a block is known by its own tokens, whatever is in front of it",
        (("    longer = digest.copy()\n", '    longer = sha256(b"")\n'),),
        PROMISES,
    ),
    "CountsTheLastToken": Fault(
        "a prompt that is there whole is promised whole",
        (
            (
                "range(gcd(*sizes), len(tokens), gcd(*sizes))",
                "range(gcd(*sizes), len(tokens) + 1, gcd(*sizes))",
            ),
            ("(len(tokens) - 1) // lcm", "len(tokens) // lcm"),
        ),
        PROMISES,
    ),
    "StopsABlockEarly": Fault(
        "the last block of what is there is not looked at",
        (("(len(tokens) - 1) // lcm", "(len(tokens) - 1 - lcm(*sizes)) // lcm"),),
        MISSES,
    ),
    "CountsOtherMedia": Fault(
        "a block on the CPU is taken for one on the device",
        (('elif event["medium"] in (None, "GPU"):', "else:"),),
        PROMISES,
    ),
    "NeverAsksForMessages": Fault(
        "what was published before it came, or was lost, is never asked for",
        (
            (
                "missed = self.replay(worker, known.number) if number > known.number else ()",
                "missed, known.number = (), max(known.number, number)",
            ),
        ),
        MISSES,
    ),
    "TakesMessagesTwice": Fault(
        "a message that comes twice is counted twice",
        (
            (
                "if at == known.number:\n                known.number += 1",
                "if at >= 0:\n                known.number = at + 1",
            ),
        ),
        PROMISES,
    ),
    "WindowTooShort": Fault(
        "the first block of a window is not asked for",
        (('length - group["window"] + 1)', 'length - group["window"] + 1 + group["block_size"])'),),
        PROMISES,
    ),
    "AsksForEveryState": Fault(
        "of a recurrent group it wants the states of all blocks in front, too",
        (("first = length - 1\n", "first = 0\n"),),
        MISSES,
    ),
    "StatesAnywhere": Fault(
        "a recurrent state is taken for granted",
        (("first = length - 1\n", "first = length\n"),),
        PROMISES,
    ),
}
"""The faults by name, and what each is found for."""


def build(name: str) -> Any:
    """Return the class of the router with a fault."""
    return changed(reference, FAULTS[name].edits, name).Router


def __getattr__(name: str) -> Any:
    if name in FAULTS:
        return build(name)
    raise AttributeError(name)
