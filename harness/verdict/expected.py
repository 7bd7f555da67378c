"""Expected failures: a file in the user's own repository.

Each line has a pattern and, after `#`, a reason. A line without a reason is refused, because a later reader must be able to
judge whether it still holds. A pattern is matched against the id of a failing trace, `suite:trace@configuration`; `*` and `?`
stand for anything. Blank lines, and lines that begin with `#`, are ignored.

    random:*@full-mamba[retention_interval=0]   # https://example.org/issue/1: snapshots at 0 are one unit early
"""

from __future__ import annotations

from pathlib import Path

from harness._util.errors import UsageError


def load(path: Path) -> dict[str, str]:
    """Return the patterns of a file with their reasons.

    Raises UsageError naming the file and the line if one is not `PATTERN  # REASON`, or a pattern is listed twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--expected: {path} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UsageError(f"--expected: {path} is not a text in UTF-8") from None
    patterns: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        pattern, _, reason = (part.strip() for part in line.partition("#"))
        if not pattern:
            continue
        if problem := _problem(pattern, reason, patterns):
            raise UsageError(f"{path}:{number}: {problem}")
        patterns[pattern] = reason
    return patterns


def _problem(pattern: str, reason: str, known: dict[str, str]) -> str:
    if len(pattern.split()) > 1:
        return f"{pattern!r} is more than one pattern; write one a line, and `# reason` after it"
    if not reason:
        return f"{pattern!r} has no reason; write `# reason` after it"
    if pattern in known:
        return f"{pattern!r} is listed twice"
    if ":" not in pattern and "*" not in pattern:
        return f"{pattern!r} is no id of a trace; ids read suite:trace@configuration"
    return ""
