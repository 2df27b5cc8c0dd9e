"""CIFAR from a folder: every form in which it is published gives the same pictures."""

import gzip
import os

import numpy as np
import pytest
import torch

from richbook.measure import RichbookError
from richbook.train import TrainingSettings, load_data, sweep, train
from tests.train import cifar

SETS = ["cifar10", "cifar100"]
FORMS = list(cifar.FILES)


@pytest.fixture
def sets(tmp_path, monkeypatch):
    """The folder that RICHBOOK_DATA names."""
    monkeypatch.setenv("RICHBOOK_DATA", str(tmp_path))
    return tmp_path


def assert_as_written(name, data):
    """Pictures, fine labels and standardisation, against NumPy on what was written."""
    *training, (tests, test_labels) = cifar.parts(name)
    images = np.concatenate([part[0] for part in training]).astype(np.float64)
    mean = images.mean(axis=(0, 2, 3), keepdims=True)
    spread = images.std(axis=(0, 2, 3), ddof=1, keepdims=True)
    shown = data.train_inputs.view(-1, *data.image_shape)
    assert shown.shape == images.shape and data.image_shape == (3, 32, 32)
    assert np.allclose(shown, (images - mean) / spread, atol=1e-5)
    tested = data.test_inputs.view(-1, *data.image_shape)
    assert np.allclose(tested, (tests - mean) / spread, atol=1e-5)
    fine = np.concatenate([part[1][-1] for part in training])
    assert data.train_labels.tolist() == fine.tolist()
    assert data.test_labels.tolist() == test_labels[-1].tolist()
    assert data.name == name and data.classes == cifar.CLASSES[name][-1]
    assert data.train_inputs.dtype == torch.float32 and data.train_labels.dtype == torch.int64


@pytest.mark.parametrize("place", ["plain", "folder", "archive"])
@pytest.mark.parametrize(("name", "form"), FORMS)
def test_what_is_written_is_read_back(sets, name, form, place):
    files = cifar.contents(name, form)
    archive, inner = cifar.ARCHIVES[name, form]
    if place == "archive":
        cifar.write_archive(sets / name / archive, inner, files)
    else:
        cifar.write(sets / name / (inner if place == "folder" else ""), files)
    data = load_data(name)
    assert_as_written(name, data)
    assert load_data(name) is data  # read once


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("name", SETS)
def test_pickles_of_this_python(sets, name, protocol):
    cifar.write(sets / name, cifar.contents(name, "python", protocol=protocol))
    assert_as_written(name, load_data(name))


def test_channels_are_standardised_one_by_one(sets):
    made = cifar.parts("cifar10")
    for images, _ in made:
        images[:, 0] //= 4  # dark reds
    encoded = [cifar.encode_binary(*part) for part in made]
    files = dict(zip(cifar.FILES["cifar10", "binary"], encoded, strict=True))
    cifar.write(sets / "cifar10", files)
    shown = load_data("cifar10").train_inputs.view(-1, 3, 1024)
    assert torch.allclose(shown.mean(dim=(0, 2)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(shown.std(dim=(0, 2)), torch.ones(3), atol=1e-5)


def test_a_whole_version_goes_before_part_of_another(sets):
    whole, part = cifar.contents("cifar10", "python"), cifar.contents("cifar10", "binary")
    cifar.write(sets / "cifar10" / "cifar-10-batches-py", whole)
    cifar.write(sets / "cifar10", {"data_batch_1.bin": part["data_batch_1.bin"]})
    assert_as_written("cifar10", load_data("cifar10"))


def test_a_relative_folder_is_the_one_it_was(sets, monkeypatch):
    monkeypatch.setenv("RICHBOOK_DATA", "sets")
    for place, each in (("a", 4), ("b", 5)):
        files = cifar.contents("cifar100", "binary", each)
        cifar.write(sets / place / "sets" / "cifar100", files)
    monkeypatch.chdir(sets / "a")
    assert len(load_data("cifar100").train_labels) == 4
    monkeypatch.chdir(sets / "b")
    assert len(load_data("cifar100").train_labels) == 5


@pytest.mark.parametrize("name", SETS)
def test_a_network_trains_on_it(sets, name):
    cifar.write(sets / name, cifar.contents(name, "binary", each=12))
    settings = TrainingSettings(data=name, width=8, depth=1, steps=5, batch_size=10)
    history = train(settings, record_at=[5], progress=False, device="cpu")
    assert history.model.head.out_features == cifar.CLASSES[name][-1]
    assert bool(history.data.train_loss.notnull().all())
    swept = sweep([0.1], [1.0], [1e-2], settings=settings, record_at=[5], progress=False)
    assert float(swept.train_loss[0, 0, 0, 0, -1]) > 0


def fails(name, *said):
    """Loading must fail, and the message must hold each of ``said``."""
    with pytest.raises(RichbookError) as caught:
        load_data(name)
    for part in said:
        assert str(part) in str(caught.value)


@pytest.mark.parametrize("file", cifar.FILES["cifar10", "binary"])
def test_truncated_binary(sets, file):
    files = cifar.contents("cifar10", "binary")
    files[file] = files[file][:-1]
    folder = cifar.write(sets / "cifar10", files)
    rows = 3 if file == "test_batch.bin" else 4
    fails("cifar10", folder / file, "expected rows of 3073 bytes (1 label(s) and 3072 pixels)",
          f"got {rows * 3073 - 1} bytes; is it complete?")  # fmt: skip


@pytest.mark.parametrize(("name", "form"), FORMS)
@pytest.mark.parametrize("kept", [0, 1, 100])
def test_a_file_that_ends_early(sets, name, form, kept):
    files = cifar.contents(name, form)
    file = list(files)[-1]
    files[file] = files[file][:kept]
    folder = cifar.write(sets / name, files)
    fails(name, folder / file, "expected", "is it complete?")


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_a_missing_file(sets, name, form):
    files = cifar.contents(name, form)
    missing = list(files)[-1]
    del files[missing]
    folder = cifar.write(sets / name, files)
    fails(name, folder, f"expected the file {missing} beside {list(files)[0]}")


@pytest.mark.parametrize("name", SETS)
def test_a_folder_with_something_else(sets, name):
    cifar.write(sets / name, {"notes.txt": b"empty"})
    archives = [cifar.ARCHIVES[name, form][0] for form in ("binary", "python")]
    fails(name, sets / name, *archives, "found none of them")


@pytest.mark.parametrize("name", SETS)
def test_no_folder_says_both_ways(sets, name):
    fails(name, f"RICHBOOK_DATA: expected a folder {sets / name}",
          cifar.ARCHIVES[name, "binary"][0], "OpenML")  # fmt: skip


@pytest.mark.parametrize(("name", "other"), [SETS, SETS[::-1]])
@pytest.mark.parametrize("form", ["binary", "python"])
@pytest.mark.parametrize("place", ["plain", "folder", "archive"])
def test_the_other_set_in_the_folder(sets, name, other, form, place):
    files = cifar.contents(other, form)
    archive, inner = cifar.ARCHIVES[other, form]
    if place == "archive":
        cifar.write_archive(sets / name / archive, inner, files)
    else:
        cifar.write(sets / name / (inner if place == "folder" else ""), files)
    fails(name, sets / name, f"belongs to {other}")


@pytest.mark.parametrize(("name", "other"), [SETS, SETS[::-1]])
@pytest.mark.parametrize("form", ["binary", "python"])
def test_files_of_the_other_set_under_these_names(sets, name, other, form):
    strange = list(cifar.contents(other, form).values())
    names = cifar.FILES[name, form]
    files = {file: strange[min(i, len(strange) - 1)] for i, file in enumerate(names)}
    folder = cifar.write(sets / name, files)
    said = f"rows of {other}" if form == "binary" else "expected the key"
    fails(name, folder / names[0], said)


@pytest.mark.parametrize(("name", "form"), FORMS)
@pytest.mark.parametrize("kind", [0, -1])
def test_a_label_that_there_is_not(sets, name, form, kind):
    files, made = cifar.contents(name, form), cifar.parts(name)
    images, labels = made[-1]
    labels[kind][1] = cifar.CLASSES[name][kind]
    file = list(files)[-1]
    saying = cifar.SAYINGS[name][-1]
    encoders = {
        "binary": lambda: cifar.encode_binary(images, labels),
        "python": lambda: cifar.encode_python(name, images, labels, saying),
    }
    files[file] = encoders[form]()
    folder = cifar.write(sets / name, files)
    most = cifar.CLASSES[name][kind] - 1
    fails(name, folder / file, f"labels from 0 to {most}, got {most + 1} in row 1")


def test_train_and_test_swapped(sets):
    files = cifar.contents("cifar100", "binary")
    files["train.bin"], files["test.bin"] = files["test.bin"], files["train.bin"]
    folder = cifar.write(sets / "cifar100", files)
    fails("cifar100", folder / "train.bin", folder / "test.bin", "got 3 and 4", "swapped?")


@pytest.mark.parametrize(
    ("name", "files"), [("cifar10", ("data_batch_2", "test_batch")),
                        ("cifar10", ("data_batch_1", "data_batch_5")),
                        ("cifar100", ("train", "test"))],
)  # fmt: skip
def test_swapped_pickles_say_so_themselves(sets, name, files):
    one, other = files
    held = cifar.contents(name, "python")
    held[one], held[other] = held[other], held[one]
    folder = cifar.write(sets / name, held)
    sayings = dict(zip(cifar.FILES[name, "python"], cifar.SAYINGS[name], strict=True))
    fails(name, folder / one, f"expected '{sayings[one]}'", f"that it is '{sayings[other]}'")


def test_a_saying_that_nobody_knows_is_let_pass(sets):
    made = cifar.parts("cifar100")
    files = dict(zip(["train", "test"], made, strict=True))
    encoded = {
        file: cifar.encode_python("cifar100", *part, "a subset") for file, part in files.items()
    }
    cifar.write(sets / "cifar100", encoded)
    assert_as_written("cifar100", load_data("cifar100"))


def test_a_channel_without_any_contrast(sets):
    made = cifar.parts("cifar100")
    for images, _ in made:
        images[:, 2] = 7
    encoded = [cifar.encode_binary(*part) for part in made]
    folder = cifar.write(
        sets / "cifar100", dict(zip(cifar.FILES["cifar100", "binary"], encoded, strict=True))
    )
    fails("cifar100", folder / "train.bin", "pixels that differ in channel 2, got 7 everywhere")


@pytest.mark.parametrize("kept", [0, 10, 600, -1, -8, -9])
def test_truncated_archive(sets, kept):
    archive, inner = cifar.ARCHIVES["cifar10", "binary"]
    path = cifar.write_archive(
        sets / "cifar10" / archive, inner, cifar.contents("cifar10", "binary")
    )
    content = path.read_bytes()
    path.write_bytes(content[:kept] if kept else b"")
    fails("cifar10", path, "is it complete?")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_damaged_archive(sets, share):
    """One flipped bit in stored pixels: only the checksum at the end can tell."""
    archive, inner = cifar.ARCHIVES["cifar100", "binary"]
    path = cifar.write_archive(
        sets / "cifar100" / archive, inner, cifar.contents("cifar100", "binary")
    )
    stored = bytearray(gzip.compress(gzip.decompress(path.read_bytes()), compresslevel=0))
    stored[int(share * 22_000)] ^= 1
    path.write_bytes(stored)
    fails("cifar100", path)


def test_an_archive_that_lacks_a_file(sets):
    archive, inner = cifar.ARCHIVES["cifar10", "python"]
    files = cifar.contents("cifar10", "python")
    del files["data_batch_4"]
    path = cifar.write_archive(sets / "cifar10" / archive, inner, files)
    fails("cifar10", path, "expected the file data_batch_4 in it")


def test_a_file_that_may_not_be_read(sets, monkeypatch):
    folder = cifar.write(sets / "cifar10", cifar.contents("cifar10", "binary"))

    def forbidden(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(type(folder), "read_bytes", forbidden)
    fails("cifar10", folder / "data_batch_1.bin", "cannot be read", "Permission denied")


def test_a_folder_that_may_not_be_looked_into(sets, monkeypatch):
    folder = cifar.write(sets / "cifar10", cifar.contents("cifar10", "binary"))

    def forbidden(path, *_, **__):
        if str(path).startswith(str(folder) + os.sep):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path)

    stat = os.stat
    monkeypatch.setattr(os, "stat", forbidden)
    with pytest.raises(RichbookError, match="cannot be read .*Permission denied"):
        load_data("cifar10")


@pytest.mark.parametrize(
    ("counts", "wrong"),
    [([5000] * 10, None), ([5000, 4999, 5001] + [5000] * 7, "expected 5000 of 50000 pictures")],
)
def test_published_sizes_have_published_counts(counts, wrong):
    """On labels alone: pictures of one pixel keep fifty thousand of them small."""
    from richbook.train.data.pictures import Pictures, data_of

    labels = np.repeat(np.arange(10), counts)
    train_part = Pictures("train.bin", np.arange(150_000).reshape(50_000, 3), labels)
    test_part = Pictures("test.bin", np.arange(6).reshape(2, 3), labels[:2])
    if wrong is None:
        assert data_of("cifar10", train_part, test_part, (3, 1, 1)).classes == 10
        return
    with pytest.raises(RichbookError, match=f"^train.bin: {wrong} in class 1, as in cifar10, got"):
        data_of("cifar10", train_part, test_part, (3, 1, 1))


def test_a_short_batch_beside_whole_ones():
    from richbook.train.data.cifar import _check_batches
    from richbook.train.data.pictures import Pictures

    whole = Pictures("data_batch_1.bin", np.zeros((10_000, 1)), np.zeros(10_000))
    short = Pictures("data_batch_2.bin", np.zeros((9_999, 1)), np.zeros(9_999))
    _check_batches([short, short]), _check_batches([whole, whole])
    with pytest.raises(RichbookError, match="^data_batch_2.bin: expected 10000 .*, got 9999; "):
        _check_batches([whole, short])
