"""Write small files in the forms in which CIFAR is published, with tools of Python's own.

A pickle of Python 2 is put together by hand, opcode by opcode: the published files are of that kind
and nothing in this interpreter writes them.
"""

import io
import pickle
import struct
import tarfile

import numpy as np

CLASSES = {"cifar10": (10,), "cifar100": (20, 100)}
ARCHIVES = {
    ("cifar10", "binary"): ("cifar-10-binary.tar.gz", "cifar-10-batches-bin"),
    ("cifar10", "python"): ("cifar-10-python.tar.gz", "cifar-10-batches-py"),
    ("cifar100", "binary"): ("cifar-100-binary.tar.gz", "cifar-100-binary"),
    ("cifar100", "python"): ("cifar-100-python.tar.gz", "cifar-100-python"),
}
FILES = {
    ("cifar10", "binary"): [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"],
    ("cifar10", "python"): [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"],
    ("cifar100", "binary"): ["train.bin", "test.bin"],
    ("cifar100", "python"): ["train", "test"],
}
SAYINGS = {
    "cifar10": [f"training batch {i} of 5" for i in range(1, 6)] + ["testing batch 1 of 1"],
    "cifar100": ["training batch 1 of 1", "testing batch 1 of 1"],
}


def part(name, count, seed):
    """Pictures (count, 3, 32, 32) and their labels (count,) of each kind."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, size=(count, 3, 32, 32), dtype=np.uint8)
    return images, [rng.integers(0, classes, size=count) for classes in CLASSES[name]]


def parts(name, each=4, tests=3):
    """What the files of a set hold, in their order; the last one is the test file."""
    files = len(FILES[name, "binary"])
    return [part(name, tests if i == files - 1 else each, seed=i) for i in range(files)]


def encode_binary(images, labels):
    """Rows of the labels, then red, green and blue, line by line."""
    rows = zip(images, *labels, strict=True)
    return b"".join(bytes(map(int, each)) + image.tobytes() for image, *each in rows)


def entries(name, images, labels, saying):
    """The dictionary of a file of the Python version."""
    keys = ("coarse_labels", "fine_labels") if name == "cifar100" else ("labels",)
    return {
        "batch_label": saying,
        "data": images.reshape(len(images), -1),
        "filenames": [f"picture_{i}.png" for i in range(len(images))],
        **{key: [int(label) for label in each] for key, each in zip(keys, labels, strict=True)},
    }


def encode_python(name, images, labels, saying, protocol="python 2"):
    """A pickle of these entries: as Python 2 wrote it, or of a protocol of this Python."""
    values = entries(name, images, labels, saying)
    return python_2(values) if protocol == "python 2" else pickle.dumps(values, protocol)


def python_2(value):
    """A pickle of protocol 2 as Python 2 writes it: text is bytes in it."""
    return b"\x80\x02" + _opcodes(value) + b"."


def _opcodes(value):
    if isinstance(value, str):
        text = value.encode("latin-1")
        return b"T" + struct.pack("<i", len(text)) + text
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"](" + b"".join(map(_opcodes, value)) + b"e"
    if isinstance(value, dict):
        pairs = b"".join(_opcodes(key) + _opcodes(each) for key, each in value.items())
        return b"}(" + pairs + b"u"
    kind = b"cnumpy\ndtype\n" + _opcodes("u1") + b"K\x00K\x01\x87R"
    kind += b"(K\x03" + _opcodes("|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + _opcodes("b")
    shape = b"".join(map(_opcodes, value.shape)) + b"\x86"
    raw = b"T" + struct.pack("<i", value.size) + value.tobytes()
    return made + b"\x87R(K\x01" + shape + kind + b"\x89" + raw + b"tb"


def contents(name, form, each=4, tests=3, protocol="python 2"):
    """File name -> content, for a whole set."""
    made = parts(name, each, tests)
    if form == "binary":
        encoded = [encode_binary(*one) for one in made]
    else:
        sayings = SAYINGS[name]
        encoded = [
            encode_python(name, *one, saying, protocol)
            for one, saying in zip(made, sayings, strict=True)
        ]
    return dict(zip(FILES[name, form], encoded, strict=True))


def write(folder, files):
    """Put files into a folder, which is made if there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        (folder / file).write_bytes(content)
    return folder


def write_archive(path, inner, files):
    """Put files into a .tar.gz, in a folder of it, beside a file that nobody asked for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for file, content in {"readme.html": b"<p>read me</p>", **files}.items():
            entry = tarfile.TarInfo(f"{inner}/{file}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path
