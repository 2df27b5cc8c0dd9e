"""Reading data sets from IDX files, and what is said about files that are not in order."""

import gzip
import os
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from richbook.measure import RichbookError
from richbook.train import load_data
from richbook.train.data import read_idx
from tests.train import idx

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where mnist will lie; RICHBOOK_DATA names the folder above."""
    monkeypatch.setenv("RICHBOOK_DATA", str(tmp_path))
    return tmp_path / "mnist"


@pytest.mark.parametrize("zipped", [False, True])
def test_good_folder(folder, zipped):
    idx.write(folder, idx.files(), zipped)
    data = load_data("mnist")
    images, labels = idx.pictures(12, 0)
    tests, test_labels = idx.pictures(6, 1)
    mean, spread = images.mean(), images.std(ddof=1)
    assert data.name == "mnist" and data.classes == 10 and data.image_shape == (4, 5)
    assert data.train_inputs.dtype == data.test_inputs.dtype == torch.float32
    assert data.train_labels.dtype == data.test_labels.dtype == torch.int64
    assert np.allclose(data.train_inputs, (images.reshape(12, 20) - mean) / spread, atol=1e-6)
    assert np.allclose(data.test_inputs, (tests.reshape(6, 20) - mean) / spread, atol=1e-6)
    assert data.train_labels.tolist() == labels.tolist()
    assert data.test_labels.tolist() == test_labels.tolist()


def test_plain_and_zipped_files_may_lie_side_by_side(folder):
    files = idx.files()
    idx.write(folder, {IMAGES: files.pop(IMAGES)}, zipped=True)
    idx.write(folder, files)
    assert load_data("mnist").train_inputs.shape == (12, 20)


def test_home_is_expanded(tmp_path, monkeypatch):
    idx.write(tmp_path / "sets" / "fashion-mnist", idx.files())
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RICHBOOK_DATA", "~/sets")
    assert load_data("fashion-mnist").name == "fashion-mnist"


def fails(folder, contents, *said, zipped=False):
    """Loading must fail, and the message must hold each of ``said``."""
    idx.write(folder, contents, zipped)
    with pytest.raises(RichbookError) as caught:
        load_data("mnist")
    for part in said:
        assert part in str(caught.value)


@pytest.mark.parametrize("name", idx.files())
def test_truncated(folder, name):
    files = idx.files()
    files[name] = files[name][:-1]
    fails(folder, files, str(folder / name), "expected", "bytes of data")


@pytest.mark.parametrize("name", idx.files())
def test_too_long(folder, name):
    files = idx.files()
    files[name] += b"\0"
    fails(folder, files, str(folder / name), "expected", "bytes of data")


@pytest.mark.parametrize("length", [0, 3, 4, 7])
def test_truncated_header(folder, length):
    files = idx.files()
    files[LABELS] = files[LABELS][:length]
    said = f"expected a header of 8 bytes, got {length}" if length > 3 else "expected an IDX file"
    fails(folder, files, str(folder / LABELS), said)


@pytest.mark.parametrize("name", idx.files())
def test_truncated_archive(folder, name):
    files = idx.files()
    content = files.pop(name)
    idx.write(folder, files)
    (folder / f"{name}.gz").write_bytes(gzip.compress(content)[:-9])
    with pytest.raises(RichbookError) as caught:
        load_data("mnist")
    assert f"{folder / name}.gz" in str(caught.value) and "is it complete?" in str(caught.value)


def test_not_an_archive(folder):
    files = idx.files()
    (folder.mkdir(parents=True), (folder / f"{IMAGES}.gz").write_bytes(files.pop(IMAGES)))
    fails(folder, files, f"{folder / IMAGES}.gz", "cannot be read")


@pytest.mark.parametrize(
    "start", [b"\x89PNG", b"\x01\0\x08\x03", b"<htm", bytes([0, 0, idx.FLOAT, 3])]
)
@pytest.mark.parametrize("zipped", [False, True])
def test_wrong_magic(folder, start, zipped):
    files = idx.files()
    files[IMAGES] = start + files[IMAGES][4:]
    said = ("expected an IDX file of unsigned bytes", repr(start))
    fails(folder, files, str(folder / IMAGES), *said, zipped=zipped)


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        (IMAGES, (12, 20), "expected 3 dimension(s), the file says 2"),
        (TEST_IMAGES, (6, 4, 5, 1), "expected 3 dimension(s), the file says 4"),
        (LABELS, (12, 1), "expected 1 dimension(s), the file says 2"),
    ],
)
def test_wrong_dimensions(folder, name, shape, said):
    files = idx.files()
    files[name] = idx.encode(np.zeros(shape))
    fails(folder, files, str(folder / name), said)


def test_images_where_labels_belong(folder):
    files = idx.files()
    files[IMAGES], files[LABELS] = files[LABELS], files[IMAGES]
    fails(folder, files, str(folder / IMAGES), "expected 3 dimension(s), the file says 1")


def test_more_images_than_labels(folder):
    files = idx.files()
    files[LABELS] = idx.encode(np.arange(11) % 3)
    fails(folder, files, str(folder), f"train has 12 images in {IMAGES} but 11 labels in {LABELS}")


def test_train_images_and_test_images_swapped(folder):
    files = idx.files()
    files[IMAGES], files[TEST_IMAGES] = files[TEST_IMAGES], files[IMAGES]
    fails(folder, files, str(folder), f"train has 6 images in {IMAGES} but 12 labels in {LABELS}")


def test_both_pairs_swapped(folder):
    files = idx.files()
    for one, other in ((IMAGES, TEST_IMAGES), (LABELS, TEST_LABELS)):
        files[one], files[other] = files[other], files[one]
    said = ("got 6 and 12", "are the training and the test files swapped?")
    fails(folder, files, str(folder / IMAGES), str(folder / TEST_IMAGES), *said)


@pytest.mark.parametrize(("name", "row"), [(LABELS, 7), (TEST_LABELS, 0)])
def test_a_label_that_there_is_not(folder, name, row):
    files = idx.files()
    content = bytearray(files[name])
    content[8 + row] = 10
    files[name] = bytes(content)
    fails(folder, files, str(folder / name), f"expected labels from 0 to 9, got 10 in row {row}")


def test_pictures_without_any_contrast(folder):
    files = idx.files()
    files[IMAGES] = idx.encode(np.full((12, 4, 5), 9))
    fails(folder, files, str(folder / IMAGES), "expected pixels that differ, got 9 everywhere")


@pytest.mark.parametrize(
    "sizes", [(0, 2**32 - 1, 2**32 - 1), (2**32 - 1, 0, 2**32 - 1), (2**31, 2**32 - 1, 0)]
)
def test_empty_but_vast(folder, sizes):
    """No bytes are missing, but NumPy has no such array."""
    files = idx.files()
    files[IMAGES] = files[IMAGES][:4] + struct.pack(">3I", *sizes)
    fails(folder, files, str(folder / IMAGES), f"sizes of at least 1, the file says {sizes}")


def test_vast(folder):
    files = idx.files()
    files[IMAGES] = files[IMAGES][:4] + struct.pack(">3I", *[2**32 - 1] * 3) + bytes(9)
    fails(folder, files, f"expected {(2**32 - 1) ** 3} bytes of data", "got 9")


@pytest.mark.parametrize("zipped", [False, True])
def test_empty_file(folder, zipped):
    files = idx.files()
    name = f"{LABELS}.gz" if zipped else LABELS
    del files[LABELS]
    idx.write(folder, files)
    (folder / name).write_bytes(b"")
    fails(folder, {}, str(folder / name), "expected an IDX file of unsigned bytes, got", "b''")


def test_a_file_that_may_not_be_read(folder, monkeypatch):
    idx.write(folder, idx.files())

    def forbidden(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(type(folder), "read_bytes", forbidden)
    fails(folder, {}, str(folder / IMAGES), "cannot be read", "Permission denied")


def test_a_folder_that_may_not_be_looked_into(folder, monkeypatch):
    idx.write(folder, idx.files())

    def forbidden(path, *_, **__):
        if str(path).startswith(str(folder)):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path)

    stat = os.stat
    monkeypatch.setattr(os, "stat", forbidden)
    with pytest.raises(RichbookError, match="cannot be read .*Permission denied"):
        load_data("mnist")


def test_a_flipped_bit_in_an_archive(folder):
    """Only the checksum at its end can tell."""
    idx.write(folder, idx.files(), zipped=True)
    stored = bytearray(gzip.compress(idx.files()[IMAGES], compresslevel=0))
    stored[len(stored) // 2] ^= 1
    (folder / f"{IMAGES}.gz").write_bytes(stored)
    fails(folder, {}, f"{folder / IMAGES}.gz", "cannot be read (CRC check failed")


@given(
    count=st.integers(1, 4), height=st.integers(1, 5), width=st.integers(1, 5),
    zipped=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_what_is_written_is_read_back(tmp_path_factory, count, height, width, zipped, seed):
    array = np.random.default_rng(seed).integers(0, 256, (count, height, width))
    folder = idx.write(tmp_path_factory.mktemp("idx"), {"a": idx.encode(array)}, zipped)
    path = folder / ("a.gz" if zipped else "a")
    assert np.array_equal(read_idx(path, 3), array)


@given(st.data())
def test_damage_is_an_error_or_an_array(tmp_path_factory, data):
    """Nothing but our own error comes out, whichever bytes are changed and wherever it ends."""
    content = bytearray(idx.encode(np.arange(12).reshape(3, 2, 2)))
    content[data.draw(st.integers(0, 15))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("idx") / "file"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        assert read_idx(path, 3).shape == (3, 2, 2)
    except RichbookError as error:
        assert str(error).startswith(f"{path}: expected")


def test_pictures_of_two_sizes(folder):
    files = idx.files()
    files[TEST_IMAGES] = idx.encode(idx.pictures(6, 1, side=3)[0])
    fails(folder, files, str(folder / TEST_IMAGES), "shape (4, 5) as in", "got (3, 4)")


def test_no_pictures(folder):
    files = idx.files()
    files[IMAGES], files[LABELS] = idx.encode(np.zeros((0, 4, 5))), idx.encode(np.zeros(0))
    fails(folder, files, str(folder / IMAGES), "sizes of at least 1, the file says (0, 4, 5)")


@pytest.mark.parametrize("name", idx.files())
def test_missing_file(folder, name):
    files = idx.files()
    del files[name]
    fails(folder, files, str(folder), f"expected the file {name} or {name}.gz, found neither")


def test_missing_folder(folder):
    with pytest.raises(RichbookError) as caught:
        load_data("mnist")
    said = f"RICHBOOK_DATA: expected a folder {folder} with {IMAGES} and its three companions"
    assert said in str(caught.value) and "OpenML" in str(caught.value)


def test_a_folder_that_was_repaired_loads(folder):
    fails(folder, {}, "found neither")
    idx.write(folder, idx.files())
    assert load_data("mnist").classes == 10
