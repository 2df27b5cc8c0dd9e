"""Sliders that train: move one, and a network with that setting is trained while you watch."""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import ipywidgets as widgets
import numpy as np

from richbook.measure.errors import RichbookError
from richbook.show.live_picture import LivePicture
from richbook.show.live_run import (
    LiveRun,
    dense_steps,
    final_words,
    isotropic_floor,
    progress_words,
)
from richbook.show.selection import HYPERPARAMETERS, WORDS, short_value
from richbook.show.worker import LatestRun
from richbook.train import TrainingSettings
from richbook.train import training as train_lazily

#: The values of the sliders: those of the recorded sweep, and beyond them.
CHOICES = {
    "weight_decay": (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
    "target_scale": (0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    "learning_rate": (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
}
#: Seconds to wait for a slider to come to rest before a run starts.
DEBOUNCE = 0.2
#: A picture follows the one before after this many seconds, and after three times as long as that
#: one took to draw: however slow the machine, training has most of it.
REDRAW_EVERY = 0.12

INVITATION = "Press Run or move a slider. This needs a running kernel."


class LiveTraining(widgets.VBox):
    """Three sliders, Run, Stop, progress, and a picture; `train_live` makes one.

    Args:
        settings: where the sliders stand at first, and everything that has no slider.
        training: what trains: called with settings and `record_at`, it yields one record for each
            recorded step. The default is `richbook.training`.
        debounce: seconds to wait for a slider to come to rest.

    Attributes:
        runs: the runs that came to their end, the newest last.
        sliders: by hyperparameter.

    Example:
        >>> live = LiveTraining(TrainingSettings(steps=20))
        >>> live.sliders["target_scale"].value = 3.0  # as a hand would; a run begins
        >>> live.wait(timeout=60), live.runs[0].settings.target_scale
        (True, 3.0)
    """

    def __init__(
        self,
        settings: TrainingSettings | None = None,
        training: Callable[..., Iterator[dict]] = train_lazily,
        debounce: float = DEBOUNCE,
    ):
        # First of all, since `close` needs them even if what follows fails.
        self._lock = threading.RLock()
        self._worker = LatestRun(failed=self._show_error)
        self._closed = False
        self._settings = settings or TrainingSettings()
        self._training, self._debounce = training, debounce
        self._floor = isotropic_floor(self._settings)
        self._picture = LivePicture(self._settings.steps, self._settings.width, self._floor)
        self.runs: list[LiveRun] = []
        self.sliders = {
            name: _slider(name, getattr(self._settings, name)) for name in HYPERPARAMETERS
        }
        self._run_button = widgets.Button(description="Run", icon="play", button_style="primary")
        self._stop_button = widgets.Button(description="Stop", icon="stop", disabled=True)
        self._progress = widgets.IntProgress(max=self._settings.steps, layout={"flex": "1 1 8em"})
        self._status = widgets.Label(INVITATION)
        self._image = widgets.Image(
            value=self._picture.draw([], "no run yet"),
            format="png",
            width=768,
            layout={"max_width": "100%", "height": "auto"},
        )
        controls = widgets.HBox(
            [self._run_button, self._stop_button, self._progress],
            layout={"flex_flow": "row wrap", "max_width": "36rem"},
        )
        super().__init__([*self.sliders.values(), controls, self._status, self._image])
        for widget, name in (
            (self, "rb-live"),
            (self._run_button, "rb-live-run"),
            (self._stop_button, "rb-live-stop"),
            (self._image, "rb-live-image"),
            (self._status, "rb-live-status"),
        ):
            widget.add_class(name)
        for slider in self.sliders.values():
            slider.observe(lambda change: self._closed or self.start(self._debounce), names="value")
        self._run_button.on_click(lambda button: self.start())
        self._stop_button.on_click(lambda button: self.stop())

    @property
    def settings(self) -> TrainingSettings:
        """The settings that the sliders stand at."""
        at = {name: float(slider.value) for name, slider in self.sliders.items()}
        return dataclasses.replace(self._settings, **at)

    @property
    def status(self) -> str:
        """What the line under the buttons says."""
        return self._status.value

    def start(self, delay: float = 0.0) -> None:
        """Train a network with the settings of the sliders, in place of any that trains now.

        Raises:
            RichbookError: after `close`.
        """
        with self._lock:
            if self._closed:
                raise RichbookError("this widget is closed; make a new one with train_live()")
            settings = self.settings
            self._worker.submit(lambda is_current: self._train(settings, is_current), delay)
            self._stop_button.disabled = False

    def stop(self) -> None:
        """Stop the run; what it had recorded stays in the picture but not in `runs`."""
        with self._lock:
            if self._worker.cancel():
                self._status.value = f"stopped at step {self._progress.value}"
            self._stop_button.disabled = True

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run is over; return whether it was in time."""
        return self._worker.wait(timeout)

    def close(self) -> None:
        """Stop training and remove the widget; `start` then raises and the sliders do nothing."""
        with self._lock:
            self._closed = True
            self._worker.cancel()
        super().close()

    def _train(self, settings: TrainingSettings, is_current: Callable[[], bool]) -> None:
        """Train one network, showing it as it goes; give up as soon as it is outdated."""
        title = ", ".join(
            f"{WORDS[name]} {short_value(getattr(settings, name))}" for name in HYPERPARAMETERS
        )
        self._picture.set_ghosts([run.records for run in self.runs])
        records, diverged_at, next_draw = [], -1, 0.0
        for record in self._training(settings, record_at=dense_steps(settings.steps)):
            if not is_current():
                return
            if not np.isfinite(record["train_loss"]):
                said = int(record.get("diverged_at", -1))
                diverged_at = said if said >= 0 else record["step"]
                break
            records.append(record)
            image = None
            if (now := time.monotonic()) >= next_draw:
                image = self._picture.draw(records, title)
                next_draw = time.monotonic() + max(REDRAW_EVERY, 3 * (time.monotonic() - now))
            self._show(is_current, progress_words(record, settings), record["step"], image)
        if not records and diverged_at < 0:
            raise RichbookError("training yielded no record")
        run = LiveRun(settings, records, diverged_at, self._floor)
        self._finish(is_current, run, self._picture.draw(records, title))

    def _show(self, is_current, words: str, step: int, image: bytes | None) -> None:
        """Show the state of a run unless it is outdated; the lock keeps Stop from being undone."""
        with self._lock:
            if not is_current():
                return
            self._status.value, self._progress.value = words, step
            if image is not None:
                self._image.value = image

    def _finish(self, is_current, run: LiveRun, image: bytes) -> None:
        with self._lock:
            if not is_current():
                return
            if run.records:
                self.runs.append(run)
            self._show(is_current, final_words(run), self._progress.value, image)
            self._stop_button.disabled = True
            self._run_button.description = "Run again"

    def _show_error(self, error: Exception) -> None:
        with self._lock:
            self._status.value = f"error: {type(error).__name__}: {error}"
            self._stop_button.disabled = True


def train_live(settings: TrainingSettings | Mapping | None = None) -> LiveTraining:
    """Show three sliders that train: each setting trains a network in the background.

    A run has 3 000 steps on digits and takes one to three seconds on one core. A slider that moves
    during a run replaces the run; earlier runs stay in the picture as grey lines, and in `runs` as
    data for the next cell.

    Args:
        settings: where the sliders stand at first and everything that has no slider; a dict of
            some of its values will do, such as `Explorer.settings`.

    Returns:
        A widget. Without a running kernel it is a picture.

    Raises:
        RichbookError: if the settings are of another type, or not allowed.

    Example:
        >>> live = train_live(TrainingSettings(steps=20))
        >>> live.start()
        >>> live.wait(timeout=60), len(live.runs)
        (True, 1)
    """
    if isinstance(settings, Mapping):
        known = {field.name for field in dataclasses.fields(TrainingSettings)}
        if unknown := set(settings) - known:
            raise RichbookError(
                f"settings has no {sorted(unknown)[0]!r}; it may have: {', '.join(sorted(known))}"
            )
        settings = TrainingSettings(**settings)
    if settings is not None and not isinstance(settings, TrainingSettings):
        raise RichbookError(f"settings must be TrainingSettings or a dict, not {settings!r}")
    return LiveTraining(settings)


def _slider(name: str, value: float) -> widgets.SelectionSlider:
    """Return a slider over the usual values and, if it is another, the one to start at."""
    values = sorted({*CHOICES[name], float(value)})
    return widgets.SelectionSlider(
        options=[(short_value(v), v) for v in values],
        value=float(value),
        description=WORDS[name],
        style={"description_width": "7.5em"},
        layout={"width": "auto", "max_width": "36rem"},
    )
