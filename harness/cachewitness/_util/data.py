"""Finds the data that is installed with the harness: `fixtures`, and the samples of `docs`.

In a checkout they are folders outside any import package (other projects use the names), so a wheel
carries what the commands need of them inside this package, in `cachewitness/_data`; only a wheel
has that folder. Callers get the same tree either way. Two further distributions lie beside a wheel:
the checkpoints, which outweigh all else and serve scores alone, and the seeded faults with the
questions of test vectors, which show what the harness finds.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from cachewitness._util.errors import EngineMissing, UsageError

CHECKPOINTS = "cachewitness_checkpoints"
"""The package that the distribution cachewitness-checkpoints installs."""
FAULTS = "cachewitness_faults"
"""The package that the distribution cachewitness-faults installs."""
_PACKAGE = Path(__file__).resolve().parents[1]
_CHECKOUT = _PACKAGE.parents[1]


def fixtures() -> Path:
    """Return the folder of fixtures: vectors, traces, layouts. Raises UsageError if there is
    none.
    """
    return _found("fixtures", "fixtures")


def checkpoints() -> Path:
    """Return the folder of the checkpoints that come with it. Raises EngineMissing if they are
    not installed.
    """
    if (checkout := fixtures() / "checkpoints").is_dir():
        return checkout
    spec = importlib.util.find_spec(CHECKPOINTS)
    if spec is None or spec.origin is None:
        install = f"pip install {CHECKPOINTS.replace('_', '-')}"
        raise EngineMissing(
            f"the checkpoints are not installed; {install} (from a clone: ./ci/checkpoints), or"
            " name your own (--checkpoint)",
            install,
        )
    return Path(spec.origin).parent


def faults_missing(what: str) -> EngineMissing | None:
    """Return the error that says where the seeded faults and the questions of vectors are, and
    that `what` needs them; None if they are installed.
    """
    if importlib.util.find_spec(FAULTS) is not None:
        return None
    install = f"pip install {FAULTS.replace('_', '-')}"
    return EngineMissing(
        f"{what}: the seeded faults and the questions of test vectors are a distribution of their"
        f" own, which is not installed; {install} (from a clone: ./ci/faults)",
        install,
    )


def fault_traces() -> Path:
    """Return the folder of the smallest traces that kill faults; it need not be there."""
    if (checkout := fixtures() / "traces" / "mutants").is_dir():
        return checkout
    spec = importlib.util.find_spec(FAULTS)
    if spec is None or spec.origin is None:
        return checkout
    return Path(spec.origin).parent / "_traces"


def samples() -> Path:
    """Return the folder of samples that `cachewitness new` copies. Raises UsageError if there is
    none.
    """
    return _found("samples", "docs/samples")


def requirements() -> Path:
    """Return the folder of the lists of packages that systems need, `SYSTEM_requirements.txt`.
    Raises UsageError if there is none.
    """
    return _found("requirements", "ci")


def _found(name: str, in_checkout: str) -> Path:
    packaged = _PACKAGE / "_data" / name
    checkout = _CHECKOUT / in_checkout
    for folder in (packaged, checkout):
        if folder.is_dir():
            return folder
    raise UsageError(
        f"{packaged}: missing, and so is {checkout}; the installation is incomplete, install"
        " cachewitness again"
    )
