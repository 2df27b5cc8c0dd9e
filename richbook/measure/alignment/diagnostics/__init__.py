"""What stands beside alignment: effective rank, NFA, likeness of layers, sharpness, regulariser."""
