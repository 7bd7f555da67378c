"""The comment on a pull request: one, kept up, and never a part of the verdict. `gh` is a stand-in
that keeps comments in a file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from suites.support.forked import ROOT

GH = f"""#!{sys.executable}
import json, os, pathlib, sys
store = pathlib.Path(os.environ["STORE"])
comments = json.loads(store.read_text())
words = sys.argv[1:]
if os.environ.get("FAILS"):
    sys.exit("HTTP 403: Resource not accessible by integration")
assert words[0] == "api" and os.environ["GH_TOKEN"] == "secret"
method = words[words.index("--method") + 1] if "--method" in words else "GET"
if method == "GET":
    assert words[2] == "repos/o/r/issues/7/comments?per_page=100", words
    marker = words[-1].partition('startswith("')[2].partition('")')[0]
    print("\\n".join(str(i) for i, body in enumerate(comments) if body.startswith(marker)))
    sys.exit()
field = words[words.index("--field") + 1]
body = pathlib.Path(field.removeprefix("body=@")).read_text()
if method == "POST":
    assert words[3] == "repos/o/r/issues/7/comments"
    comments.append(body)
else:
    assert words[3].startswith("repos/o/r/issues/comments/")
    comments[int(words[3].rpartition("/")[2])] = body
store.write_text(json.dumps(comments))
"""
STEPS = {
    "workflow": ("ci/examples/github-workflow.yml", ("jobs", "gate", "steps")),
    "action": ("ci/action/action.yml", ("runs", "steps")),
}


class PullRequest:
    """A pull request with the comments of others, and the script that comments on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "comments.json"
        self.store.write_text(json.dumps(["looks good", "> <!-- cachewitness -->\nas it says"]))
        (folder / "gh").write_text(GH)
        (folder / "gh").chmod(0o755)

    def comment(self, text: str, **more: str) -> str:
        """Run the script on a file, and return what it prints; it always ends with 0."""
        (self.folder / "comment.md").write_text(text)
        given = {"STORE": str(self.store), "GH_TOKEN": "secret", "PULL_REQUEST": "7"}
        path = {"PATH": f"{self.folder}:{os.environ['PATH']}", "GITHUB_REPOSITORY": "o/r"}
        done = subprocess.run(
            ["bash", str(ROOT / "ci" / "comment.sh"), "comment.md"],
            cwd=self.folder,
            env={**os.environ, **path, **given, **more},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def comments(self) -> list[str]:
        found: list[str] = json.loads(self.store.read_text())
        return found


def test_the_second_gate_changes_the_comment_of_the_first(tmp_path: Path) -> None:
    pull = PullRequest(tmp_path)
    others = pull.comments
    assert pull.comment("<!-- cachewitness -->\nred\n") == ""
    assert pull.comments == [*others, "<!-- cachewitness -->\nred\n"]
    assert pull.comment("<!-- cachewitness -->\ngreen\n") == ""
    assert pull.comments == [*others, "<!-- cachewitness -->\ngreen\n"]


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("", {}, "the gate left no comment.md"),
        ("no marker\n", {}, "does not begin with a marker"),
        ("<!-- cachewitness -->\n", {"PULL_REQUEST": "7; echo"}, "PULL_REQUEST is no number"),
        ("<!-- cachewitness -->\n", {"FAILS": "1"}, "HTTP 403"),
    ],
)
def test_a_comment_that_cannot_be_written_is_a_warning(
    text: str, more: dict[str, str], message: str, tmp_path: Path
) -> None:
    pull = PullRequest(tmp_path)
    others = pull.comments
    printed = pull.comment(text, **more)
    assert printed.startswith("::warning ") and message in printed and pull.comments == others


@pytest.mark.parametrize("name", STEPS)
def test_the_templates_comment_and_upload_whatever_the_verdict_is(name: str) -> None:
    """Not from forks, whose tokens may not; and what fails in it fails no gate."""
    path, way = STEPS[name]
    whole: Any = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
    steps: Any = whole
    for key in way:
        steps = steps[key]
    (comment,) = [step for step in steps if "comment.sh" in step.get("run", "")]
    (upload,) = [step for step in steps if "upload-sarif" in step.get("uses", "")]
    gate = next(at for at, step in enumerate(steps) if "gate.sh" in step.get("run", ""))
    own = "github.event.pull_request.head.repo.full_name == github.repository"
    for step in (comment, upload):
        assert steps.index(step) > gate
        assert step["if"].startswith("always() && ") and own in step["if"]
    assert {*comment["env"]} == {"GH_TOKEN", "PULL_REQUEST"}
    assert upload["continue-on-error"] is True
    assert upload["with"]["sarif_file"] == "cachewitness-artefacts/report.sarif"
    if name == "workflow":
        asked = {"contents": "read", "pull-requests": "write", "security-events": "write"}
        assert whole["permissions"] == asked
