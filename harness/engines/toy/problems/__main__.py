"""Writes the frozen problems into the fixtures of this checkout."""

from harness._util.data import fixtures
from harness.engines.toy.problems.fixture import write

if __name__ == "__main__":
    folder = fixtures() / "gsm8k_format"
    folder.mkdir(exist_ok=True)
    write(folder)
