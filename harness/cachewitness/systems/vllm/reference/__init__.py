"""vLLM's policy: its engine, plan, mutants and test vectors."""

from cachewitness.engines.environment import Variable
from cachewitness_reference.vllm.options import RETENTION_VARIABLE, retention_interval_from

RETENTION_INTERVAL = Variable(
    name=RETENTION_VARIABLE,
    option="retention_interval",
    unit="tokens",
    unset="each release does what it does by itself",
    read=retention_interval_from,
    remark=(
        "vLLM itself reads it from 0.23 to 0.29 and takes --prefix-cache-retention-interval from"
        " 0.29 on"
    ),
)
"""The variable by which the interval was set when it was introduced; a run and a plan read it for
every release."""
