"""`richbook.check` turns whatever an answer does into a sentence, and never lets it do harm."""

import threading
import time

import pytest
import torch

import richbook
from richbook.course.checking import EXERCISES, Exercise, require
from richbook.measure import RichbookError


@pytest.fixture
def doubling(monkeypatch):
    """An exercise whose right answer doubles a tensor."""

    def test(answer, generator):
        given = torch.randn(5, generator=generator)
        right = torch.equal(torch.as_tensor(answer(given)), 2 * given)
        require(right, "twice the argument, please")

    monkeypatch.setitem(EXERCISES, "test", Exercise("test", "double(x)", test))
    return "test"


def test_right_answer_passes(doubling):
    verdict = richbook.check(doubling, lambda x: 2 * x)
    assert verdict and verdict.passed and repr(verdict).startswith("✓ test")


def test_wrong_answer_says_what_is_expected(doubling):
    verdict = richbook.check(doubling, lambda x: x)
    assert not verdict and repr(verdict) == "✗ test: twice the argument, please"


@pytest.mark.parametrize("nothing", [None, ..., NotImplemented])
def test_returning_nothing_is_not_answered(doubling, nothing):
    assert "not answered yet" in richbook.check(doubling, lambda x: nothing).message


def test_stub_is_not_answered(doubling):
    def stub(x):
        raise NotImplementedError

    assert "not answered yet" in richbook.check(doubling, stub).message


@pytest.mark.parametrize("error", [ZeroDivisionError("oh"), SystemExit(3), KeyboardInterrupt()])
def test_raising_answer_is_reported_with_its_line(doubling, error):
    def answer(x):
        raise error

    message = richbook.check(doubling, answer).message
    assert type(error).__name__ in message and "in answer, line" in message


def test_changing_the_argument_is_reported(doubling):
    assert "changed its argument number 1" in richbook.check(doubling, lambda x: x.mul_(2)).message


def test_endless_answer_is_stopped(doubling):
    def answer(x):
        while True:
            pass

    before = threading.active_count()
    started = time.monotonic()
    verdict = richbook.check(doubling, answer, time_limit=0.3)
    assert not verdict and "more than 0.3 seconds" in verdict.message
    assert time.monotonic() - started < 5
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() == before, "the answer's thread goes on"


def test_answer_that_is_no_function(doubling):
    assert "expected a function double(x), got int" in richbook.check(doubling, 3).message


def test_unknown_exercise_lists_those_there_are():
    with pytest.raises(RichbookError, match=r"exercise_id: expected one of 0\.1.*got '9\.9'"):
        richbook.check("9.9", lambda: None)


def test_instances_differ_from_call_to_call_unless_seeded(doubling):
    seen = []
    for seed in (None, None, 1, 1):
        richbook.check(doubling, lambda x: seen.append(x) or 2 * x, seed=seed)
    assert not torch.equal(seen[0], seen[1]) and torch.equal(seen[2], seen[3])


def test_global_random_state_is_untouched(doubling):
    before = torch.random.get_rng_state()
    richbook.check(doubling, lambda x: 2 * x + 0 * torch.randn(5))
    assert torch.equal(torch.random.get_rng_state(), before)
