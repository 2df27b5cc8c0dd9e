"""Write small IDX files: two zero bytes, a type code, the number of dimensions, sizes, numbers."""

import gzip
import struct

import numpy as np

UNSIGNED_BYTE, FLOAT = 0x08, 0x0D


def encode(array, code=UNSIGNED_BYTE):
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, code, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def pictures(count, seed, side=4):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, size=(count, side, side + 1)), np.arange(count) % 3


def files():
    """What a good folder holds: file name -> content."""
    train_images, train_labels = pictures(12, 0)
    test_images, test_labels = pictures(6, 1)
    return {
        "train-images-idx3-ubyte": encode(train_images),
        "train-labels-idx1-ubyte": encode(train_labels),
        "t10k-images-idx3-ubyte": encode(test_images),
        "t10k-labels-idx1-ubyte": encode(test_labels),
    }


def write(folder, contents, zipped=False):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        path = folder / (name + ".gz" if zipped else name)
        path.write_bytes(gzip.compress(content) if zipped else content)
    return folder
