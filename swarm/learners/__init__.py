"""The byte boundary to a model."""
