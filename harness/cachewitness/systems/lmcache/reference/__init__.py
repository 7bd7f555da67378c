"""LMCache's policy, behind vLLM's scheduler: its engine, plan, mutants and test vectors."""

from functools import partial

from cachewitness.engines.environment import Variable
from cachewitness_reference.lmcache.features import VARIABLES, refused_by

FEATURE_VARIABLES = tuple(
    Variable(
        name=name,
        option=option,
        unit="name",
        unset="pages are kept as they are",
        read=partial(refused_by, name),
    )
    for name, option in VARIABLES.items()
)
"""The variables that turn on what changes the content of pages; they set nothing here but are
refused if they do."""
