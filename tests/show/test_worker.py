import threading
import time

import pytest

from richbook.show.worker import LatestRun

SOON = 10  # seconds: how long to wait for a thread before a test is called failed


@pytest.fixture
def failures():
    return []


@pytest.fixture
def worker(failures):
    made = LatestRun(failed=failures.append)
    yield made
    made.cancel()
    assert made.wait(SOON)


def endless(started, ended):
    """A job that runs until it is outdated."""

    def job(is_current):
        started.set()
        while is_current():
            time.sleep(0.001)
        ended.set()

    return job


def test_a_newer_job_outdates_the_older(worker):
    started, ended, done = threading.Event(), threading.Event(), threading.Event()
    worker.submit(endless(started, ended))
    assert started.wait(SOON)
    worker.submit(lambda is_current: done.set())
    assert ended.wait(SOON) and done.wait(SOON)


def test_two_jobs_never_run_at_once(worker):
    running, most = [0], [0]

    def job(is_current):
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.01)
        running[0] -= 1

    for _ in range(10):
        worker.submit(job)
        time.sleep(0.003)
    assert worker.wait(SOON) and most[0] == 1


def test_only_the_last_of_a_burst_runs(worker):
    done = []
    for number in range(5):
        worker.submit(lambda is_current, number=number: done.append(number), delay=0.2)
    assert not done and worker.wait(SOON) and done == [4]


def test_cancel_stops_what_runs_and_what_waits(worker):
    started, ended = threading.Event(), threading.Event()
    worker.submit(endless(started, ended))
    assert started.wait(SOON) and worker.cancel() and ended.wait(SOON) and worker.wait(SOON)
    done = []
    worker.submit(lambda is_current: done.append(1), delay=60)
    worker.cancel()
    assert worker.wait(SOON) and not done
    assert not worker.cancel()


def test_an_error_is_reported_and_the_next_job_runs(worker, failures):
    def broken(is_current):
        raise KeyError("lost")

    worker.submit(broken)
    assert worker.wait(SOON) and isinstance(failures[0], KeyError)
    done = []
    worker.submit(lambda is_current: done.append(1))
    assert worker.wait(SOON) and done == [1]


def test_an_idle_worker_holds_no_thread_and_a_busy_one_only_a_daemon(worker):
    before = set(threading.enumerate())
    started, ended = threading.Event(), threading.Event()
    worker.submit(endless(started, ended))
    assert started.wait(SOON)
    (thread,) = set(threading.enumerate()) - before
    assert thread.daemon
    worker.cancel()
    assert worker.wait(SOON)
    thread.join(SOON)
    assert not thread.is_alive()
