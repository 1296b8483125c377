"""Pure arithmetic on NumPy arrays, and the bytes that carry them."""
