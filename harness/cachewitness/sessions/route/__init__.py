"""Routers in front of a fleet of engines: what they foresee, held against the keys there are."""
