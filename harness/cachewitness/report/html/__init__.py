"""A run as one HTML page that needs no network: its verdict, and each failure step by step.

`frames` plays a history through the ledger and takes down, step by step, what each block table
claims and what the ledger knows; `charts` draws how full the pools were; `page` puts them, and the
report of a run, into a page.
"""
