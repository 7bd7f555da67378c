"""What a change touches, and what of it a run enters."""
