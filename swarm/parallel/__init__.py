"""MLX-LM data-parallel fine-tuning: every step is synchronised by `mlx.distributed`."""
