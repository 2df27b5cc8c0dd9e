"""A thread that does the newest of the jobs it is given, and lets the older ones go."""

import threading
import time
from collections.abc import Callable

#: A job gets a function that says whether it is still the newest, and should ask it often.
Job = Callable[[Callable[[], bool]], None]


class LatestRun:
    """Runs one job at a time in a background thread; a newer job outdates the older.

    A slider that is dragged asks for a job at every position. Each request waits a moment in case
    another follows, so that only the last one starts. The thread ends when it has nothing to do,
    so an object that is idle holds no thread.

    Args:
        failed: called in the thread with any exception that a job raises.

    Example:
        >>> worker, done = LatestRun(failed=print), []
        >>> worker.submit(lambda is_current: done.append(is_current()))
        >>> worker.wait(timeout=5), done
        (True, [True])
    """

    def __init__(self, failed: Callable[[Exception], None]):
        self._failed = failed
        self._changed = threading.Condition()
        self._generation = 0
        self._waiting: Job | None = None
        self._due = 0.0
        self._thread: threading.Thread | None = None

    def submit(self, job: Job, delay: float = 0.0) -> None:
        """Run `job` in `delay` seconds unless another comes first; outdate what runs now."""
        with self._changed:
            self._generation += 1
            self._waiting, self._due = job, time.monotonic() + delay
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def cancel(self) -> bool:
        """Outdate the job that runs or waits; return whether there was one."""
        with self._changed:
            self._generation += 1
            self._waiting = None
            self._changed.notify_all()
            return self._thread is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing runs or waits; return whether that came about in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout)

    def _next(self) -> tuple[Job, int] | None:
        """Return the newest job once it is due, or None, and give up the thread, if there is none.

        Both happen under the lock: a job that is submitted later finds either this thread still
        looking or no thread at all.
        """
        with self._changed:
            while self._waiting is not None:
                left = self._due - time.monotonic()
                if left <= 0:
                    job, self._waiting = self._waiting, None
                    return job, self._generation
                self._changed.wait(left)
            self._thread = None
            self._changed.notify_all()
            return None

    def _work(self) -> None:
        while (found := self._next()) is not None:
            job, generation = found
            try:
                job(lambda generation=generation: generation == self._generation)
            except Exception as error:  # whatever it is, the user must see it, not the thread
                self._failed(error)
