"""Faults in the installed exllamav3."""
