"""Faults in the installed lmdeploy."""
