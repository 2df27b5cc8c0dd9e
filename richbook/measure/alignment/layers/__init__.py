"""Layers as matrices: what linear layers and convolutions multiply by; their samples as rows."""
