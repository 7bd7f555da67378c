"""mlx-lm."""
