"""Campaigns: a file names engines, policies, suites, fuzz streams and seeds, and many workers
carry them out, unit by unit.
"""
