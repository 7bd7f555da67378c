"""A unified diff is read line by line: what is new, what is gone and where, under which name."""

from __future__ import annotations

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.sessions.change.diff import parse

BEFORE = "one\ntwo\nthree\nfour\nfive\n"
AFTER = "zero\none\ntwo\n3\nfive\n"
DIFF = """diff --git a/x.py b/x.py
index 1..2 100644
--- a/x.py
+++ b/x.py
@@ -0,0 +1 @@
+zero
@@ -3 +4 @@ def f():
-three
+3
@@ -4 +4,0 @@ def f():
-four
"""


def test_new_and_gone_lines_have_their_numbers() -> None:
    """A line that another one replaces is not gone; one that nothing replaces stood behind the new
    line in front of it.
    """
    (file,) = parse(DIFF)
    assert [line for hunk in file.hunks for line in hunk.added] == [1, 4]
    assert [one for hunk in file.hunks for one in hunk.gone] == [(4, 4)]
    assert file.before(AFTER) == BEFORE


def test_lines_around_a_change_are_no_change() -> None:
    """The same with context, of another tool than git, and with lines that look like a head."""
    text = (
        "--- x.py\t2026\n+++ x.py\t2026\n@@ -1,4 +1,3 @@\n one\n--- gone\n-two\n three\n+++ new\n"
    )
    (file,) = parse(text.replace("-1,4 +1,3", "-1,4 +1,3"))
    assert (file.old, file.new) == ("x.py", "x.py")
    (hunk,) = file.hunks
    assert (hunk.added, hunk.gone) == ([3], [(2, 1), (3, 1)])
    assert hunk.new == ["one", "three", "++ new"] and hunk.old[1] == "-- gone"


def test_names_of_files() -> None:
    """New, deleted, renamed and binary files, and names in quotes."""
    text = """diff --git a/new.py b/new.py
new file mode 100644
--- /dev/null
+++ b/new.py
@@ -0,0 +1 @@
+x
diff --git a/gone.py b/gone.py
deleted file mode 100644
--- a/gone.py
+++ /dev/null
@@ -1 +0,0 @@
-x
diff --git a/from.py b/to.py
similarity index 100%
rename from from.py
rename to to.py
diff --git a/a b.bin b/a b.bin
Binary files a/a b.bin and b/a b.bin differ
diff --git "a/\\303\\251.py" "b/\\303\\251.py"
--- "a/\\303\\251.py"
+++ "b/\\303\\251.py"
@@ -1 +1 @@
-x
+y
"""
    files = parse(text)
    assert [(one.old, one.new) for one in files] == [
        ("", "new.py"),
        ("gone.py", ""),
        ("from.py", "to.py"),
        ("a b.bin", "a b.bin"),
        ("é.py", "é.py"),
    ]
    assert [one.moved for one in files] == [False, False, True, False, False]
    assert [one.binary for one in files] == [False, False, False, True, False]


def test_what_is_no_diff_is_refused() -> None:
    with pytest.raises(UsageError, match="no unified diff"):
        parse("hello\n")
    with pytest.raises(UsageError, match="line 4 is no line of a hunk"):
        parse("--- x\n+++ x\n@@ -1,2 +1,2 @@\n*\n")
    with pytest.raises(UsageError, match="no head of a hunk"):
        parse("--- x\n+++ x\n@@ what @@\n")


def test_a_diff_of_another_tree_is_refused() -> None:
    """A diff that was not applied would put every function in the wrong place."""
    (file,) = parse(DIFF)
    with pytest.raises(UsageError, match=r"x\.py has not the lines"):
        file.before(BEFORE)
