"""Data sets from OpenML, through scikit-learn, which keeps what it fetched.

scikit-learn compares the checksum (MD5) of the file with the one that OpenML states, when the file
arrives and each time it is read; one that does not match is deleted and fetched once more. It tries
four times to open a connection. What breaks off on the way is tried again here.
"""

from __future__ import annotations

import contextlib
import http.client
import math
import socket
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from richbook.measure import RichbookError
from richbook.train.data.pictures import KNOWN, Pictures

#: How often a connection that breaks off is made again, and seconds between tries.
ATTEMPTS, PAUSE = 3, 1.0
#: Seconds without an answer after which a connection counts as broken.
PATIENCE = 60.0
NETWORK_ERRORS = (OSError, EOFError, http.client.HTTPException)


def fetch(name: str) -> tuple[Pictures, Pictures]:
    """The training part and the test part: images (n, d) in float32 and labels (n,).

    Raises:
        RichbookError: no network, or what arrived is not the data set; the message says what to do.
    """
    known = KNOWN[name]
    try:
        bunch = _fetch(known.openml)
    except Exception as error:  # the fetcher raises whatever the layers below it raise
        said = f"{type(error).__name__}: {error}"
        raise RichbookError(
            f"{name}: could not be fetched from OpenML ({said}). {_remedy(name, error)}"
        ) from error
    trained, pixels = sum(known.train_counts), math.prod(known.image_shape)
    samples = trained + sum(known.test_counts)
    images = np.asarray(bunch.data)
    if images.shape != (samples, pixels):
        raise RichbookError(
            f"{name}: expected {samples} images of {pixels} pixels from OpenML, "
            f"got shape {images.shape}. {_remedy(name)}"
        )
    images, labels = images.astype(np.float32), _labels(name, bunch.target, samples)
    if not np.isfinite(images).all():
        raise RichbookError(f"{name}: expected numbers in every pixel, got nan. {_remedy(name)}")
    source = f"{name} from OpenML"
    return (
        Pictures(f"{source}, rows 0 to {trained - 1}", images[:trained], labels[:trained]),
        Pictures(f"{source}, the other rows", images[trained:], labels[trained:]),
    )


def _fetch(title: str) -> object:
    from sklearn.datasets import fetch_openml

    for attempt in range(1, ATTEMPTS + 1):
        try:
            with _impatient():
                # the slower of its two parsers: the other one fails on classes that are numbers
                return fetch_openml(
                    title, version=1, as_frame=False, parser="liac-arff", delay=PAUSE
                )
        except urllib.error.URLError:  # scikit-learn has tried this four times
            raise
        except NETWORK_ERRORS:
            if attempt == ATTEMPTS:
                raise
            time.sleep(PAUSE)


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
    """scikit-learn sets no time limit: where packets are swallowed it would wait for ever."""
    before = socket.getdefaulttimeout()
    try:
        socket.setdefaulttimeout(PATIENCE if before is None else before)
        yield
    finally:
        socket.setdefaulttimeout(before)


def _remedy(name: str, error: Exception | None = None) -> str:
    """What the reader can do: get the files, or another try, after the cache is emptied if the
    network is not to blame."""
    local = f"set RICHBOOK_DATA to a folder that has {name}/ with {KNOWN[name].files}"
    if isinstance(error, NETWORK_ERRORS):
        return f"Either {local}, or try again with a network"
    return f"Either delete {_cache()} and try again with a network, or {local}"


def _cache() -> str:
    from sklearn.datasets import get_data_home

    return str(Path(get_data_home()) / "openml")


def _labels(name: str, target: object, samples: int) -> np.ndarray:
    try:
        labels = np.asarray(target).astype(np.int64)
    except (TypeError, ValueError) as error:
        raise RichbookError(
            f"{name}: expected numbers as classes from OpenML ({error}). {_remedy(name)}"
        ) from error
    if labels.shape != (samples,):
        raise RichbookError(
            f"{name}: expected {samples} classes from OpenML, got shape {labels.shape}. "
            f"{_remedy(name)}"
        )
    return labels
