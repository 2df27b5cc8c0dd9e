"""A forward and a backward pass for each batch: inputs of layers, and gradients by sample."""
