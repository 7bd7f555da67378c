"""Scores of cold and cached runs, compared question by question."""
