"""Reading data sets from IDX files, and what is said about files that are not in order."""

import gzip

import numpy as np
import pytest
import torch

from richbook.measure import RichbookError
from richbook.train import load_data
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
    assert data.name == "mnist" and data.classes == 3 and data.image_shape == (4, 5)
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


@pytest.mark.parametrize("length", [0, 3, 7])
def test_truncated_header(folder, length):
    files = idx.files()
    files[LABELS] = files[LABELS][:length]
    fails(folder, files, str(folder / LABELS), "expected an IDX file of unsigned bytes")


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
    fails(folder, files, str(folder), "train has 12 images but 11 labels")


def test_train_images_and_test_images_swapped(folder):
    files = idx.files()
    files[IMAGES], files[TEST_IMAGES] = files[TEST_IMAGES], files[IMAGES]
    fails(folder, files, str(folder), "train has 6 images but 12 labels")


def test_pictures_of_two_sizes(folder):
    files = idx.files()
    files[TEST_IMAGES] = idx.encode(idx.pictures(6, 1, side=3)[0])
    fails(folder, files, str(folder), "train images are (4, 5), t10k images (3, 4)")


def test_no_pictures(folder):
    files = idx.files()
    files[IMAGES], files[LABELS] = idx.encode(np.zeros((0, 4, 5))), idx.encode(np.zeros(0))
    fails(folder, files, str(folder), "expected pictures in train, got (0, 4, 5)")


@pytest.mark.parametrize("name", idx.files())
def test_missing_file(folder, name):
    files = idx.files()
    del files[name]
    fails(folder, files, str(folder), f"expected the file {name} or {name}.gz, found neither")


def test_missing_folder(folder):
    with pytest.raises(RichbookError) as caught:
        load_data("mnist")
    assert f"RICHBOOK_DATA: expected a folder {folder} with the IDX files of mnist" in str(
        caught.value
    )


def test_a_folder_that_was_repaired_loads(folder):
    fails(folder, {}, "found neither")
    idx.write(folder, idx.files())
    assert load_data("mnist").classes == 3
