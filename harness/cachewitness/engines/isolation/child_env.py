"""The environment of an engine's process: the harness's own, without what looks like a secret.

An engine is somebody else's code, and so is whatever it loads. It needs the settings of its system
(`PATH`, `HOME`, `CUDA_…`, `VLLM_…`), and no key, token or password of whoever runs the harness.
What a user wants it to have all the same is named, not repeated:
`CACHEWITNESS_PASS=HF_TOKEN,MY_KEY`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

PASS = "CACHEWITNESS_PASS"
"""The environment variable that names others, with commas between them: an engine's process gets
them all the same."""
_WORD = re.compile(
    r"(^|_)(API_?KEY|KEY|TOKEN|SECRETS?|PASSW(OR)?D|PASSPHRASE|CREDENTIALS?)(_|$)|(PASSWORD|PASSWD|SECRET)|_AUTH(_SOCK)?$",
    re.IGNORECASE,
)
"""Names that say that the value is a secret, or leads to one: whole words, so that
`TOKENIZERS_PARALLELISM` is none."""
_IN_AN_ADDRESS = re.compile(r"://[^/\s@]*:[^/\s@]+@")
"""An address with a user and a password in it, as proxies and package indexes have."""


def looks_secret(name: str, value: str) -> bool:
    """Whether a variable looks like a secret, by its name or because its value is an address
    with a password.
    """
    return _WORD.search(name) is not None or _IN_AN_ADDRESS.search(value) is not None


def passed(
    environment: Mapping[str, str] | None = None, named: Iterable[str] = ()
) -> dict[str, str]:
    """Return the variables that an engine's process gets; `named` are further ones that it gets
    although they look secret.
    """
    given = os.environ if environment is None else environment
    wanted = {*named, *filter(None, map(str.strip, given.get(PASS, "").split(",")))}
    return {
        name: value
        for name, value in given.items()
        if name in wanted or not looks_secret(name, value)
    }


def withheld(environment: Mapping[str, str] | None = None) -> list[str]:
    """Return the names, and no value, of the variables that an engine's process does not get,
    sorted.
    """
    given = os.environ if environment is None else environment
    return sorted(given.keys() - passed(given).keys())
