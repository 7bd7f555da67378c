"""Furiosa-LLM's policy: its engine, plan, mutants and test vectors; `policy` registers them."""

from cachewitness.engines.environment import Variable
from cachewitness_reference.furiosa.partition import expected_length_from
from cachewitness_reference.furiosa.spec import VARIABLE

EXPECTED_LENGTH = Variable(
    name=VARIABLE,
    option="expected_average_seq_length",
    unit="tokens",
    unset=(
        "memory is split for the longest sequence that the server accepts, or as default_ratio says"
    ),
    read=expected_length_from,
)
"""The variable that the document exports; a run and a plan read it."""

NOT_APPLICABLE = {
    "no-fabricated-snapshots": "no recurrent state",
    "interval-sparsity": "there is no retention interval",
    "withdraw": (
        "nothing is stored before its step has run, so a withdrawn step leaves nothing behind"
    ),
}
"""The invariants that do not apply, and why."""
