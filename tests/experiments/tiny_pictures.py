"""Tiny data sets in the files in which the real ones are published."""

import numpy as np

from tests.train import idx

PIXELS = 3 * 32 * 32


def fashion(folder, train=160, test=40):
    """Grey pictures of 28 × 28: a folder to give to RICHBOOK_DATA."""
    contents = {}
    for part, count, seed in (("train", train, 0), ("t10k", test, 1)):
        draw = np.random.default_rng(seed)
        images = draw.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        contents[f"{part}-images-idx3-ubyte"] = idx.encode(images)
        contents[f"{part}-labels-idx1-ubyte"] = idx.encode(np.arange(count) % 10)
    idx.write(folder / "fashion-mnist", contents)
    return folder


def cifar(folder, name, each=40):
    """Colour pictures of 32 × 32 in the binary version; CIFAR-10 has five training files."""
    fine = {"cifar10": 10, "cifar100": 100}[name]
    files = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    files = files if name == "cifar10" else ["train.bin", "test.bin"]
    (folder / name).mkdir(parents=True)
    for seed, file in enumerate(files):
        count = 5 * each if file == "train.bin" else each
        pixels = np.random.default_rng(seed).integers(0, 256, (count, PIXELS), dtype=np.uint8)
        labels = (np.arange(count) % fine).astype(np.uint8)[:, None]
        coarse = [labels // 5] if name == "cifar100" else []
        (folder / name / file).write_bytes(np.hstack([*coarse, labels, pixels]).tobytes())
    return folder
