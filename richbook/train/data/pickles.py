"""Pickles that hold nothing but plain values and byte arrays, read without running their code.

A pickle is a program: what it names is imported and called. Here the few names with which NumPy
arrays are written lead to stand-ins of our own, and every other name is an error.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools

import numpy as np

from richbook.measure import RichbookError

#: Opcodes that number an object.
PUTS = ("PUT", "BINPUT", "LONG_BINPUT")


def read_pickle(content: bytes, source: str) -> dict:
    """The dictionary that a pickle holds, keys as text.

    Its values may be numbers, text, bytes, lists, tuples, dictionaries and NumPy arrays of unsigned
    bytes. Strings written by Python 2 come back as bytes.

    Raises:
        RichbookError: not a pickle, cut short, not a dictionary, or anything else in it.

    Example:
        >>> read_pickle(pickle.dumps({"labels": [3, 1]}), "a file")
        {'labels': [3, 1]}
    """
    try:
        _check_memo(content)
        value = _Reader(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a broken pickle raises whatever it stumbles over
        raise RichbookError(
            f"{source}: expected a pickle of arrays and lists, got something else "
            f"({type(error).__name__}: {error}); is it complete?"
        ) from error
    if not isinstance(value, dict):
        raise RichbookError(f"{source}: expected a dictionary, got {type(value).__name__}")
    return {_text(key): _array(each, source, _text(key)) for key, each in value.items()}


def _check_memo(content: bytes) -> None:
    """A pickle numbers what it wants to refer to again, and the reader keeps a list that long: nine
    bytes can ask for gigabytes. No honest number exceeds the length of the pickle."""
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name in PUTS and argument > len(content):
            raise pickle.UnpicklingError(f"it numbers an object {argument}")


class _Reader(pickle.Unpickler):
    """An unpickler that knows only what NumPy arrays and bytes are written with."""

    def find_class(self, module: str, name: str) -> object:
        place = module.replace("numpy._core", "numpy.core")  # its name since NumPy 2
        stand_in = STAND_INS.get((place, name))
        if stand_in is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which data does not need")
        return stand_in()


class _Name:
    """A name that a pickle may use; without a dictionary, so that the pickle cannot change it."""

    __slots__ = ()


class _NewArray(_Name):
    """For ``numpy.core.multiarray._reconstruct``: an array, empty until its state follows."""

    __slots__ = ()

    def __call__(self, kind: object, shape: object, code: object) -> _Array:
        return _Array()


class _NewType(_Name):
    """For ``numpy.dtype``."""

    __slots__ = ()

    def __call__(self, code: object, *flags: object) -> _Type:
        return _Type(code)


class _FromBuffer(_Name):
    """For ``numpy.core.numeric._frombuffer``, with which protocol 5 writes arrays."""

    __slots__ = ()

    def __call__(self, content: object, kind: object, shape: object, order: object) -> _Array:
        if not isinstance(content, bytes | bytearray):  # of a number, bytes() would make that many
            raise pickle.UnpicklingError(f"it makes an array of {type(content).__name__}")
        array = _Array()
        array.__setstate__((1, shape, kind, order == "F", bytes(content)))
        return array


class _Encode(_Name):
    """For ``_codecs.encode``, with which Python 3 writes bytes in protocol 2."""

    __slots__ = ()

    def __call__(self, text: str, encoding: str) -> bytes:
        if encoding != "latin1":
            raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}")
        return text.encode("latin-1")


class _Type:
    """An element type, by its code such as "u1"."""

    def __init__(self, code: object) -> None:
        self.code = code.decode("latin-1") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        """Byte order and the like, which single bytes do not have."""


class _Array:
    """An array as a pickle describes it."""

    content = None

    def __setstate__(self, state: tuple) -> None:
        _, self.shape, self.kind, self.by_columns, self.content = state

    def to_numpy(self) -> np.ndarray:
        """The array, if it is one of unsigned bytes with as many as its shape says."""
        kind = getattr(self.kind, "code", None)
        if kind not in ("u1", "uint8") or not isinstance(self.content, bytes):
            raise ValueError(f"an array of {kind!r}, not of unsigned bytes")
        if len(self.content) != math.prod(self.shape):
            raise ValueError(f"{len(self.content)} bytes for the shape {self.shape}")
        order = "F" if self.by_columns else "C"
        return np.frombuffer(self.content, np.uint8).reshape(self.shape, order=order)


STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _NewArray,
    ("numpy.core.numeric", "_frombuffer"): _FromBuffer,
    ("numpy", "ndarray"): _Name,
    ("numpy", "dtype"): _NewType,
    ("_codecs", "encode"): _Encode,
}


def _text(key: object) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else str(key)


def _array(value: object, source: str, key: str) -> object:
    if not isinstance(value, _Array):
        return value
    try:
        return value.to_numpy()
    except Exception as error:  # its shape may be any object at all
        raise RichbookError(
            f"{source}: expected an array of unsigned bytes in {key!r}, got one that cannot be "
            f"({error})"
        ) from error
