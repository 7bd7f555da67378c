"""Finds the commit of a fork since which a trace fails: `git bisect run`, with a replay as its
test.
"""
