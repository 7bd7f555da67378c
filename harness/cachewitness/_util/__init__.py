"""Shared by all rooms: errors, files, JSON lines, entry points, the place of the data, generated
pages.
"""
