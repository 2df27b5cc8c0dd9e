"""H, G and Z on both sides of a layer, streamed over a loader."""
