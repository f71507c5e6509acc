"""A model loaded on a CUDA card."""
