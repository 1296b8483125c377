"""Fine-tuning a language model of MLX-LM: what data parallel training and the task `lora` have in common."""
