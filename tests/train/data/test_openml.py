"""What comes from OpenML, through scikit-learn: its checks, its cache, and what is said of trouble.

Some tests replace scikit-learn's fetcher; the others let it run, against a server of our own.
"""

import importlib
import socket
import urllib.error
import urllib.request
from http.client import IncompleteRead
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn.datasets

from richbook.measure import RichbookError
from richbook.train import load_data
from tests.train.openml import FILE, BreaksOff, OpenML

loading = importlib.import_module("richbook.train.data.loading")
fetching = importlib.import_module("richbook.train.data.openml")
pictures = importlib.import_module("richbook.train.data.pictures")

NAMES = {
    "mnist": "mnist_784",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR_10",
    "cifar100": "CIFAR-100",
}
TRAIN, TEST = (
    (3, 2),
    (1, 2),
)  # of each of two classes, in a set so small that it can be written here


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Every set has eight pictures of 2 × 2; no folder is named; nothing is cached; no pauses."""
    for name, known in pictures.KNOWN.items():
        shape = (3, 2, 2) if name.startswith("cifar") else (2, 2)
        tiny = pictures.Known(shape, TRAIN, TEST, known.openml, known.files)
        monkeypatch.setitem(pictures.KNOWN, name, tiny)
    monkeypatch.delenv("RICHBOOK_DATA", raising=False)
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(fetching, "PAUSE", 0.001)
    loading._from_openml.cache_clear()
    yield
    loading._from_openml.cache_clear()


def drawn(name):
    """Pixels (8, d) and labels (8,): training rows first."""
    pixels = 12 if name.startswith("cifar") else 4
    images = np.random.default_rng(0).integers(0, 256, (8, pixels))
    return images, np.array([0, 1, 0, 1, 0, 1, 0, 1])


def bunch(name):
    """What scikit-learn makes of that: floats, and classes as text."""
    images, labels = drawn(name)
    return SimpleNamespace(data=images.astype(float), target=labels.astype(str).astype(object))


@pytest.fixture
def fetcher(monkeypatch):
    """Stand in for the fetcher: it gives ``answers`` in turn, the last one for ever."""
    stand_in = SimpleNamespace(answers=[], asked=[])

    def fetch(name, **options):
        stand_in.asked.append((name, options))
        rest = stand_in.answers
        answer = rest.pop(0) if len(rest) > 1 else rest[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    return stand_in


@pytest.mark.parametrize("name", NAMES)
def test_pictures_from_openml(fetcher, name):
    fetcher.answers = [bunch(name)]
    data = load_data(name)
    [(asked, options)] = fetcher.asked
    assert asked == NAMES[name] and options["version"] == 1 and options["as_frame"] is False
    images, labels = drawn(name)
    channels = 3 if name.startswith("cifar") else 1
    split = images.reshape(8, channels, -1)
    mean = split[:5].mean(axis=(0, 2), keepdims=True)
    spread = split[:5].std(axis=(0, 2), ddof=1, keepdims=True)
    expected = ((split - mean) / spread).reshape(8, -1)
    assert np.allclose(data.train_inputs, expected[:5], atol=1e-5)
    assert np.allclose(data.test_inputs, expected[5:], atol=1e-5)
    assert data.train_labels.tolist() == labels[:5].tolist()
    assert data.test_labels.tolist() == labels[5:].tolist()
    assert data.image_shape == pictures.KNOWN[name].image_shape and data.classes == 2
    assert load_data(name) is data and len(fetcher.asked) == 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "failure",
    [
        urllib.error.URLError("no route"),
        urllib.error.HTTPError("https://x", 503, "busy", {}, None),
        TimeoutError("timed out"), ConnectionResetError("reset"), IncompleteRead(b"", 9),
        OSError("no space left"),
    ],
)  # fmt: skip
def test_no_network_says_both_ways(fetcher, name, failure):
    fetcher.answers = [failure]
    with pytest.raises(RichbookError) as caught:
        load_data(name)
    message = str(caught.value)
    assert message.startswith(f"{name}: could not be fetched from OpenML ({type(failure).__name__}")
    assert f"set RICHBOOK_DATA to a folder that has {name}/ with " in message
    assert pictures.KNOWN[name].files in message and "try again with a network" in message
    assert "delete" not in message


@pytest.mark.parametrize(
    ("failure", "times"),
    [
        (ConnectionResetError("reset"), 3), (TimeoutError("timed out"), 3),
        (IncompleteRead(b"", 9), 3), (urllib.error.URLError("no route"), 1), (ValueError("md5"), 1),
    ],
)  # fmt: skip
def test_what_breaks_off_is_tried_again(fetcher, failure, times):
    """scikit-learn has tried the others again by itself."""
    fetcher.answers = [failure]
    with pytest.raises(RichbookError):
        load_data("cifar10")
    assert len(fetcher.asked) == times


def test_the_second_try_may_succeed(fetcher):
    fetcher.answers = [ConnectionResetError("reset"), TimeoutError(), bunch("cifar10")]
    assert load_data("cifar10").classes == 2 and len(fetcher.asked) == 3


def test_failure_to_fetch_is_not_remembered(fetcher):
    fetcher.answers = [urllib.error.URLError("no network"), bunch("mnist")]
    with pytest.raises(RichbookError):
        load_data("mnist")
    assert load_data("mnist").classes == 2


def test_an_empty_variable_counts_as_none(fetcher, monkeypatch):
    monkeypatch.setenv("RICHBOOK_DATA", "")
    fetcher.answers = [bunch("mnist")]
    assert load_data("mnist").classes == 2


def spoilt(change):
    """An answer with something wrong in it."""
    answer = bunch("cifar10")
    change(answer)
    return answer


WRONG = {
    "expected 8 images of 12 pixels from OpenML, got shape (7, 12)": lambda answer: setattr(
        answer, "data", answer.data[:7]
    ),
    "expected 8 images of 12 pixels from OpenML, got shape (8, 4)": lambda answer: setattr(
        answer, "data", answer.data[:, :4]
    ),
    "got shape ()": lambda answer: setattr(answer, "data", None),
    "expected numbers in every pixel, got nan": lambda answer: answer.data.__setitem__(
        (3, 4), np.nan
    ),
    "expected numbers as classes": lambda answer: answer.target.__setitem__(2, "frog"),
    "expected 8 classes from OpenML, got shape ()": lambda answer: setattr(answer, "target", 1),
    "expected labels from 0 to 1, got 2 in row 1": lambda answer: answer.target.__setitem__(1, "2"),
    "expected labels from 0 to 1, got -1 in row 0": lambda answer: answer.target.__setitem__(
        5, "-1"
    ),
    "expected 3 of 5 pictures in class 0": lambda answer: answer.target.__setitem__(0, "1"),
}


@pytest.mark.parametrize("said", WRONG)
def test_openml_gives_something_else(fetcher, said):
    fetcher.answers = [spoilt(WRONG[said])]
    with pytest.raises(RichbookError) as caught:
        load_data("cifar10")
    assert said in str(caught.value) and str(caught.value).startswith("cifar10")


def test_a_time_limit_while_fetching_and_none_after(monkeypatch):
    limits = []

    def fetch(*_, **__):
        limits.append(socket.getdefaulttimeout())
        raise urllib.error.URLError("no route")

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    for before, meanwhile in ((None, fetching.PATIENCE), (7.0, 7.0)):
        socket.setdefaulttimeout(before)
        try:
            with pytest.raises(RichbookError):
                load_data("mnist")
            assert socket.getdefaulttimeout() == before and limits.pop() == meanwhile
        finally:
            socket.setdefaulttimeout(None)


@pytest.fixture
def server():
    """scikit-learn's own fetcher asks this one, which has the eight pictures of CIFAR-10."""
    made = OpenML(*drawn("cifar10"), classes=2)
    urllib.request.install_opener(urllib.request.build_opener(made))
    yield made
    urllib.request.install_opener(None)  # urllib makes its usual one when next asked


def assert_whole(data):
    images, labels = drawn("cifar10")
    red = data.train_inputs[:, :4]
    assert float(np.corrcoef(red.ravel(), images[:5, :4].ravel())[0, 1]) == pytest.approx(1)
    assert data.test_labels.tolist() == labels[5:].tolist()


def test_scikit_learn_fetches_once(server):
    assert_whole(load_data("cifar10"))
    assert "/api/v1/json/data/list/data_name/cifar_10/limit/2/data_version/1" in server.asked
    requests = len(server.asked)
    loading._from_openml.cache_clear()
    assert_whole(load_data("cifar10"))
    assert len(server.asked) == requests  # the second time all of it came from the cache


def cached(tmp_path):
    """Where scikit-learn keeps the file."""
    [path] = (tmp_path / "cache").rglob("*pictures.arff.gz")
    return path


@pytest.mark.filterwarnings("ignore:Invalid cache")
@pytest.mark.parametrize("kept", [0, 40, -1])
def test_a_broken_cache_mends_itself(server, tmp_path, kept):
    load_data("cifar10")
    loading._from_openml.cache_clear()
    path = cached(tmp_path)
    path.write_bytes(path.read_bytes()[:kept])
    assert_whole(load_data("cifar10"))
    assert server.asked.count(FILE) == 2


@pytest.mark.filterwarnings("ignore:Invalid cache", "ignore:A network error")
def test_a_broken_cache_without_network(server, tmp_path):
    load_data("cifar10")
    loading._from_openml.cache_clear()
    cached(tmp_path).write_bytes(b"not an archive")
    server.troubles = {"/": [urllib.error.URLError("no route") for _ in range(99)]}
    with pytest.raises(RichbookError, match="no route.*try again with a network"):
        load_data("cifar10")
    server.troubles = {}
    assert_whole(load_data("cifar10"))


@pytest.mark.filterwarnings("ignore:Invalid cache")
def test_a_file_that_always_arrives_cut(server, tmp_path):
    server.content = server.content[:-4]
    with pytest.raises(RichbookError) as caught:
        load_data("cifar10")
    message = str(caught.value)
    assert "md5 checksum" in message and str(cached(tmp_path)) in message  # which file
    assert f"Either delete {tmp_path / 'cache' / 'openml'} and try again" in message
    assert "cifar-10-binary.tar.gz" in message and server.asked.count(FILE) == 2


@pytest.mark.filterwarnings("ignore:Invalid cache")
def test_a_file_that_arrives_cut_once(server):
    server.troubles = {FILE: [lambda content: content[:100]]}
    assert_whole(load_data("cifar10"))


@pytest.mark.filterwarnings("ignore:A network error")
def test_a_network_that_fails_three_times(server):
    start = "/api/v1/json/data/list"
    server.troubles = {start: [urllib.error.URLError("no route") for _ in range(3)]}
    assert_whole(load_data("cifar10"))
    assert sum(path.startswith(start) for path in server.asked) == 4


@pytest.mark.filterwarnings("ignore:Invalid cache")
@pytest.mark.parametrize("times", [1, 3, 5])
def test_a_connection_that_breaks_off(server, times):
    """scikit-learn tries a second time, and we call it up to three times."""
    server.troubles = {FILE: [lambda _: BreaksOff()] * times}
    assert_whole(load_data("cifar10"))
    assert server.asked.count(FILE) == times + 1


@pytest.mark.filterwarnings("ignore:Invalid cache")
def test_a_connection_that_always_breaks_off(server):
    server.troubles = {FILE: [lambda _: BreaksOff()] * 99}
    with pytest.raises(RichbookError, match="ConnectionResetError.*try again with a network"):
        load_data("cifar10")
    assert server.asked.count(FILE) == 6
