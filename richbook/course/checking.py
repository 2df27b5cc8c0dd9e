"""``richbook.check``: tell a reader, in words, whether an answer to an exercise is right.

A check draws random instances and tests properties that every right answer has; there is no number
to copy. It runs in a thread of its own with a time limit, hands out copies of its data, and turns
whatever an answer does (raise, change its arguments, never return) into a sentence.
"""

from __future__ import annotations

import copy
import ctypes
import secrets
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from richbook.measure import RichbookError

#: Seconds that a whole check may take.
TIME_LIMIT = 20.0


class Wrong(Exception):
    """What a check raises when a property does not hold; the text is shown to the reader."""


class _Stopped(BaseException):
    """Raised inside an answer whose time is up. No Exception, so that it is not swallowed."""


@dataclass(frozen=True)
class Exercise:
    """One exercise: its id ("4.1"), the call that is expected, and the test of its properties."""

    id: str
    signature: str
    test: Callable[[Callable, torch.Generator], None]


@dataclass(frozen=True)
class Verdict:
    """The outcome of a check: ``passed``, and a ``message`` in words. Truthy if passed.

    Example:
        >>> verdict = Verdict("4.2", True, "right, on random instances")
        >>> bool(verdict), verdict
        (True, ✓ 4.2: right, on random instances)
    """

    exercise: str
    passed: bool
    message: str

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return f"{'✓' if self.passed else '✗'} {self.exercise}: {self.message}"


EXERCISES: dict[str, Exercise] = {}


def exercise(id: str, signature: str) -> Callable[[Callable], Callable]:
    """Register a test, called with the answer and a generator, as the check of an exercise."""

    def register(test: Callable) -> Callable:
        if id in EXERCISES:
            raise RichbookError(f"id: exercise {id} is registered twice")
        EXERCISES[id] = Exercise(id, signature, test)
        return test

    return register


def check(
    exercise_id: str, answer: Callable, seed: int | None = None, time_limit: float = TIME_LIMIT
) -> Verdict:
    """Check an answer to an exercise on random instances.

    Args:
        exercise_id: the number of the exercise, such as "4.1".
        answer: the function that the exercise asks for.
        seed: fixes the random instances; the default draws new ones each time.
        time_limit: seconds before the check gives up.

    Returns:
        A ``Verdict``: truthy if right, and printed as a sentence either way. A wrong, slow or
        raising answer is a verdict and not an exception.

    Raises:
        RichbookError: no such exercise; the message lists them.

    Example:
        >>> check("0.1", lambda labels: labels, seed=0)
        ✗ 0.1: expected features of shape (n, p), one row a sample; yours have shape (40,)
    """
    if not isinstance(exercise_id, str) or exercise_id not in EXERCISES:
        raise RichbookError(
            f"exercise_id: expected one of {', '.join(sorted(EXERCISES))}, got {exercise_id!r}"
        )
    task = EXERCISES[exercise_id]
    if not callable(answer):
        return Verdict(
            task.id, False, f"expected a function {task.signature}, got {type(answer).__name__}"
        )
    seed = secrets.randbelow(2**31) if seed is None else seed
    message = _run(
        lambda: task.test(_guarded(answer), torch.Generator().manual_seed(seed)), time_limit
    )
    if message is None:
        return Verdict(task.id, True, "right, on random instances")
    return Verdict(task.id, False, message)


def _guarded(answer: Callable) -> Callable:
    """The answer, called with copies; it is Wrong to change them, or to return nothing."""

    def call(*arguments):
        handed_out = copy.deepcopy(arguments)
        result = answer(*handed_out)
        if result is None or result is NotImplemented or result is Ellipsis:
            raise Wrong("not answered yet: your function returned nothing")
        for position, (before, after) in enumerate(
            zip(arguments, handed_out, strict=True), start=1
        ):
            if not _same(before, after):
                raise Wrong(f"your function changed its argument number {position}; work on a copy")
        return result

    return call


def _same(before: object, after: object) -> bool:
    """Whether a tensor, or a list of some, is what it was; other things are not looked at."""
    if isinstance(before, list | tuple):
        return len(before) == len(after) and all(map(_same, before, after))
    return not isinstance(before, Tensor) or torch.equal(before, after)


def _run(test: Callable[[], None], time_limit: float) -> str | None:
    """Run a test in a thread; None if it passed, else what to tell the reader."""
    outcome: list[str | None] = []
    generator_state = torch.random.get_rng_state()
    worker = threading.Thread(target=lambda: outcome.append(_outcome(test)), daemon=True)
    worker.start()
    worker.join(time_limit)
    torch.random.set_rng_state(generator_state)
    if outcome:
        return outcome[0]
    # Ask the thread to stop at its next Python instruction; it is a daemon, should it not hear.
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(worker.ident), ctypes.py_object(_Stopped)
    )
    return (
        f"your function took more than {time_limit:g} seconds on small instances; "
        "is there a loop that never ends?"
    )


def _outcome(test: Callable[[], None]) -> str | None:
    try:
        test()
    except Wrong as wrong:
        return str(wrong)
    except NotImplementedError:
        return "not answered yet: replace the line that raises NotImplementedError"
    except BaseException as error:  # an answer may raise anything, SystemExit included
        line = traceback.extract_tb(error.__traceback__)[-1]
        text = "".join(traceback.format_exception_only(error)).strip()
        return f"your function raised {text} (in {line.name}, line {line.lineno})"
    return None


def require(holds: bool | Tensor, message: str) -> None:
    """Raise ``Wrong`` with the message unless the property holds."""
    if not bool(holds):
        raise Wrong(message)


def as_tensor(value: object, what: str, shape: tuple[int, ...] | None = None) -> Tensor:
    """The answer's value in float64, checked to be numbers, finite, and of the shape expected."""
    if isinstance(value, np.ndarray):
        value = value.copy()  # torch takes no array with a negative stride, such as values[::-1]
    try:
        tensor = torch.as_tensor(
            value, dtype=torch.float64
        ).detach()  # a Python float keeps its digits
    except (TypeError, ValueError, RuntimeError):
        raise Wrong(f"expected {what} as a tensor, got {type(value).__name__}") from None
    if shape is not None and tuple(tensor.shape) != shape:
        raise Wrong(f"expected {what} of shape {shape}, got {tuple(tensor.shape)}")
    require(tensor.isfinite().all(), f"{what}: got nan or infinity")
    return tensor


def close(value: Tensor, expected: Tensor, tolerance: float = 1e-6) -> bool:
    """Whether two tensors agree to within ``tolerance`` of the size of what is expected."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    size = expected.abs().max().clamp_min(1.0)
    return bool((value - expected).abs().max() <= tolerance * size)
