"""The sample engine."""
