"""Engines under test: one file each, all behind the three methods of `cachewitness.core.engine`.

An engine is found by its name in the entry-point group `cachewitness.engines`, so that a fork or a
vendor can ship its own without touching this package.
"""
