"""Pickles of arrays and lists are read; what would run code, or is broken, is an error."""

import os
import pickle
import pickletools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from richbook.measure import RichbookError
from richbook.train.data.pickles import read_pickle
from tests.train import cifar

ARRAY = np.arange(12, dtype=np.uint8).reshape(3, 4)


def plain():
    """Entries as in a file of CIFAR, but small."""
    return {"data": ARRAY, "labels": [3, 1, 2], "batch_label": "training batch 1 of 5"}


def test_the_hand_made_pickle_is_one_that_numpy_reads():
    """Python's own unpickler, with NumPy's constructors, finds in it what was put in."""
    content = cifar.python_2(plain())
    held = pickle.loads(content, encoding="bytes")
    assert np.array_equal(held[b"data"], ARRAY) and held[b"data"].dtype == np.uint8
    assert held[b"labels"] == [3, 1, 2] and held[b"batch_label"] == b"training batch 1 of 5"
    assert pickletools.genops(content)


@pytest.mark.parametrize("protocol", ["python 2", 2, 3, 4, 5])
def test_what_is_written_is_read_back(protocol):
    content = cifar.python_2(plain()) if protocol == "python 2" else pickle.dumps(plain(), protocol)
    held = read_pickle(content, "a file")
    assert list(held) == ["data", "labels", "batch_label"] and held["labels"] == [3, 1, 2]
    assert np.array_equal(held["data"], ARRAY) and held["data"].dtype == np.uint8
    assert held["batch_label"] in ("training batch 1 of 5", b"training batch 1 of 5")


@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    by_columns=st.booleans(),
    protocol=st.sampled_from([2, 3, 4, 5]),
    seed=st.integers(0, 9),
)
def test_arrays_of_any_shape_and_order(shape, by_columns, protocol, seed):
    array = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    array = np.asfortranarray(array) if by_columns else array
    held = read_pickle(pickle.dumps({"data": array}, protocol), "a file")
    assert np.array_equal(held["data"], array)


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=40)
@given(values=st.dictionaries(st.text(), plain_values), protocol=st.sampled_from([3, 4, 5]))
def test_plain_values_come_back(values, protocol):
    assert read_pickle(pickle.dumps(values, protocol), "a file") == values


class Runs:
    """Pickled, it is a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("place", ["value", "key", "list", "whole"])
def test_no_code_runs(tmp_path, protocol, place):
    made = tmp_path / "made"
    call = Runs(os.mkdir, str(made))
    whole = {"value": {"data": call}, "key": {call: 1}, "list": {"labels": [call]}, "whole": call}
    content = pickle.dumps(whole[place], protocol)
    with pytest.raises(RichbookError, match="^a file: expected a pickle of arrays .*mkdir"):
        read_pickle(content, "a file")
    assert not made.exists()
    pickle.loads(content) if place != "key" else None  # the call is real: plain Python makes it
    assert made.exists() or place == "key"


@pytest.mark.parametrize(
    "function", [eval, exec, getattr, open, __import__, bytearray, np.load, np.zeros, type]
)
def test_other_names_are_refused(function):
    with pytest.raises(RichbookError, match="which data does not need"):
        read_pickle(pickle.dumps({"data": Runs(function, "1")}), "a file")


ATTACKS = {
    "sets an attribute of a name": b"\x80\x02cnumpy\ndtype\n}(X\x08\x00\x00\x00__call__K\x01ub.",
    "replaces an attribute by slots": (
        b"\x80\x02cnumpy\ndtype\nN}(X\x08\x00\x00\x00__call__K\x01u\x86b."
    ),
    "makes an instance of a name": b"\x80\x02cnumpy\nndarray\n)\x81.",
    "calls an array type": b"\x80\x02cnumpy\nndarray\n)R.",
    "asks for a terabyte": (
        b"\x80\x02cnumpy.core.numeric\n_frombuffer\n(\x8a\x06\x00\x00\x00\x00\x00\x01NNNtR."
    ),
    "numbers an object beyond all memory": b"\x80\x02}r\xff\xff\xff\xff.",
    "the same in text": b"\x80\x02}p4294967295\n.",
    "another encoding": (
        b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R."
    ),
    "a name within a name": b"\x80\x04\x8c\x05numpy\x8c\x0cdtype.__call\x93.",
    "a persistent reference": b"\x80\x02K\x01Q.",
    "a registered extension": b"\x80\x02\x82\x01.",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_on_the_reader(attack):
    before = read_pickle(pickle.dumps(plain(), 4), "a file")
    with pytest.raises(RichbookError, match="^a file: expected"):
        read_pickle(ATTACKS[attack], "a file")
    after = read_pickle(pickle.dumps(plain(), 4), "a file")
    assert np.array_equal(before["data"], after["data"])


@pytest.mark.parametrize(
    "array", [np.zeros((2, 2)), np.zeros(3, np.int8), np.array([None, 1]), np.array(["a"])]
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_other_arrays(array, protocol):
    with pytest.raises(
        RichbookError, match="^a file: expected an array of unsigned bytes in 'data'"
    ):
        read_pickle(pickle.dumps({"data": array}, protocol), "a file")


def test_an_array_with_too_few_bytes():
    content = cifar.python_2(plain())
    cut = content.replace(
        b"J\x03\x00\x00\x00J\x04\x00\x00\x00\x86", b"J\x03\x00\x00\x00J\x05\x00\x00\x00\x86"
    )
    assert cut != content
    with pytest.raises(RichbookError, match=r"in 'data', .*\(12 bytes for the shape \(3, 5\)\)"):
        read_pickle(cut, "a file")


@pytest.mark.parametrize("value", [[1, 2], "text", 3, None, ARRAY])
def test_not_a_dictionary(value):
    with pytest.raises(RichbookError, match="^a file: expected a dictionary, got"):
        read_pickle(pickle.dumps(value), "a file")


@pytest.mark.parametrize("protocol", ["python 2", 4, 5])
def test_cut_anywhere(protocol):
    content = cifar.python_2(plain()) if protocol == "python 2" else pickle.dumps(plain(), protocol)
    for length in range(len(content)):
        with pytest.raises(RichbookError, match="^a file: expected"):
            read_pickle(content[:length], "a file")


@settings(max_examples=200)
@given(st.data())
def test_damage_is_an_error_or_a_dictionary(data):
    """Nothing but our own error comes out, whichever bytes are changed."""
    content = bytearray(cifar.python_2(plain()))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert isinstance(read_pickle(bytes(content), "a file"), dict)
    except RichbookError as error:
        assert str(error).startswith("a file: expected")
