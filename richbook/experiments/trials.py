"""Run the trials of a recipe: one after the other, or several processes side by side."""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from dataclasses import dataclass

import torch

from richbook.experiments.recipe import Config, Recipe
from richbook.experiments.workplace import Workplace

#: Seconds between checkpoints, beside those at every recorded step.
CHECKPOINT_SECONDS = 20.0
#: Steps between two reports to the progress bar.
STEPS_A_REPORT = 10


@dataclass(frozen=True)
class Job:
    """One trial of one recipe: the value with this index along the axis, and a seed."""

    recipe: Recipe
    config: Config
    index: int
    seed: int
    device: str
    workplace: Workplace
    threads: int

    def run(self, report: Callable[[int], None]) -> None:
        """Train, record, and keep checkpoints; what was done before is not done again.

        ``report`` is told the number of steps done since the last call.
        """
        kept = self.workplace.load(self.index, self.seed)
        if kept is not None and kept["done"]:
            report(self.config.steps)
            return
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            self._train(kept, report)
        finally:
            torch.set_num_threads(before)

    def _train(self, kept: dict | None, report: Callable[[int], None]) -> None:
        value, device = self.config.values[self.index], torch.device(self.device)
        trial = self.recipe.build(self.config, value, self.seed, device)
        records, earlier = [], 0.0
        if kept is not None:
            trial.load_state(kept["state"])
            records, earlier = kept["records"], kept["seconds"]
            report(trial.step)
        start = saved = time.monotonic()

        def keep(done: bool) -> None:
            content = {"done": done, "records": records}
            content["seconds"] = earlier + time.monotonic() - start
            content["diverged_at"] = trial.step if trial.diverged else -1
            if not done:
                content["state"] = trial.state()
            self.workplace.save(self.index, self.seed, content)

        wanted = self.config.record_at()
        for step_wanted in wanted[len(records) :]:
            for step in trial.advance(step_wanted):
                if step % STEPS_A_REPORT == 0:
                    report(STEPS_A_REPORT)
                if time.monotonic() - saved > CHECKPOINT_SECONDS:
                    keep(done=False)
                    saved = time.monotonic()
            if trial.diverged:
                break
            records.append(trial.record())
            keep(done=False)
            saved = time.monotonic()
        keep(done=True)


def run_all(jobs: list[Job], workers: int, report: Callable[[int], None]) -> None:
    """Run all jobs; with several workers, each in a process of its own."""
    if workers <= 1 or len(jobs) <= 1:
        for job in jobs:
            job.run(report)
        return
    context = multiprocessing.get_context("spawn")
    steps = context.Queue()
    with ProcessPoolExecutor(
        min(workers, len(jobs)), mp_context=context, initializer=_begin, initargs=(steps,)
    ) as pool:
        pending = {pool.submit(_run_in_worker, job) for job in jobs}
        try:
            while pending:
                done, pending = wait(pending, timeout=0.2, return_when=FIRST_EXCEPTION)
                _drain(steps, report)
                for each in done:
                    each.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(getattr(pool, "_processes", {}).values()):
                process.terminate()
            raise
    _drain(steps, report)


def _drain(steps: Iterable, report: Callable[[int], None]) -> None:
    while True:
        try:
            report(steps.get_nowait())
        except queue.Empty:
            return


_steps = None


def _begin(steps) -> None:
    """In a new worker: remember where steps are reported, and end with the parent."""
    global _steps
    _steps = steps
    parent = multiprocessing.parent_process()

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _run_in_worker(job: Job) -> None:
    job.run(_steps.put)
