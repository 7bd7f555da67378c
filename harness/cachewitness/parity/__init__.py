"""Cold against cached at three depths: tensors, answers, scores."""
