import gc
import io
import math
import sys
import threading
import time

import numpy as np
import pytest
from matplotlib import image as mpl_image

from richbook.measure.errors import RichbookError
from richbook.show import LiveTraining, plot_history, train_live, use_style
from richbook.show.live_picture import LivePicture
from richbook.show.live_run import dense_steps
from richbook.train import TrainingSettings, train

SOON = 20  # seconds: how long to wait for a thread before a test is called failed


def record(step, d_lr=0.3, loss=0.5, width=8, **more):
    scalars = {
        "train_loss": loss,
        "train_accuracy": 0.9,
        "test_accuracy": 0.8,
        "nc1": 1.0,
        "s_init": 0.1,
        "parameter_norm": 3.0,
    }
    return {"step": step, "d_lr": d_lr, "utilization": np.linspace(0, 1, width)} | scalars | more


class FakeTraining:
    """Stands in for `training`: notes what it was asked, and yields when told to."""

    def __init__(self, endless=False):
        self.asked, self.endless = [], endless
        self.started = threading.Event()

    def __call__(self, settings, record_at=None):
        self.asked.append(settings)
        self.started.set()
        step = 0
        while step < settings.steps or (self.endless and len(self.asked) == 1):
            yield record(min(step, settings.steps), width=settings.width)
            step += 1
            if self.endless:
                time.sleep(0.002)


@pytest.fixture
def make():
    made = []

    def build(training, debounce=0.0, **changes):
        settings = TrainingSettings(steps=5, width=8, **changes)
        made.append(LiveTraining(settings, training=training, debounce=debounce))
        return made[-1]

    yield build
    for live in made:
        live.stop()
        assert live.wait(SOON)
        live.close()


def pixels(live):
    return mpl_image.imread(io.BytesIO(live._image.value), format="png")


def test_a_run_shows_its_end_and_is_kept_as_data(make):
    live = make(FakeTraining())
    before = live._image.value
    assert "kernel" in live.status
    live._run_button.click()
    assert live.wait(SOON)
    assert live.status.startswith("finished: D_LR 0.300 · test accuracy 0.80")
    assert live._image.value != before and live._stop_button.disabled
    (run,) = live.runs
    assert run.settings == live.settings and run.diverged_at == -1
    assert run.data["d_lr"].sizes == {"step": 5} and run.data["utilization"].sizes["k"] == 8
    left, _ = plot_history(run.data)
    assert len(left.lines) == 2


def test_class_names_that_pages_and_tests_rely_on(make):
    live = make(FakeTraining())
    for widget, name in (
        (live, "rb-live"),
        (live._stop_button, "rb-live-stop"),
        (live._status, "rb-live-status"),
        (live._run_button, "rb-live-run"),
    ):
        assert name in widget._dom_classes
    assert live._image.width


def test_a_slider_that_moves_on_starts_one_run_with_its_last_value(make):
    training = FakeTraining()
    live = make(training, debounce=0.3)
    for value in (0.03, 0.1, 0.3, 3.0):
        live.sliders["target_scale"].value = value
    assert live.wait(SOON)
    assert [settings.target_scale for settings in training.asked] == [3.0]


def test_a_newer_run_cancels_the_older(make):
    training = FakeTraining(endless=True)
    live = make(training)
    live.start()
    assert training.started.wait(SOON)
    live.sliders["learning_rate"].value = 0.001
    assert live.wait(SOON)
    assert [settings.learning_rate for settings in training.asked] == [0.01, 0.001]
    assert [run.settings.learning_rate for run in live.runs] == [0.001]


def test_stop_stops_and_says_so(make):
    training = FakeTraining(endless=True)
    live = make(training)
    live.start()
    assert training.started.wait(SOON) and not live._stop_button.disabled
    live._stop_button.click()
    assert live.wait(SOON)
    assert live.status.startswith("stopped at step") and live.runs == []
    assert live._stop_button.disabled


def test_an_error_in_training_is_shown(make):
    def broken(settings, record_at=None):
        yield record(0)
        raise MemoryError("no room")

    live = make(broken)
    live.start()
    assert live.wait(SOON)
    assert live.status == "error: MemoryError: no room" and live.runs == []


def test_no_record_at_all_is_an_error_too(make):
    live = make(lambda settings, record_at=None: iter(()))
    live.start()
    assert live.wait(SOON) and "training yielded no record" in live.status


@pytest.mark.parametrize(
    "last", [record(3, math.nan, math.nan, diverged_at=3), record(3, 0.1, math.inf, diverged_at=-1)]
)
def test_a_network_that_diverges_is_reported_in_words(make, last):
    live = make(lambda settings, record_at=None: iter([record(0), record(1), last]))
    live.start()
    assert live.wait(SOON)
    assert live.status.startswith("diverged at step 3")
    assert live.runs[0].diverged_at == 3 and len(live.runs[0].records) == 2


def test_a_constant_network_has_no_d_lr_and_says_why(make):
    live = make(lambda settings, record_at=None: iter([record(5, math.nan, test_accuracy=0.1)]))
    live.start()
    assert live.wait(SOON)
    assert "D_LR undefined" in live.status and "hardly trained" in live.status


def test_earlier_runs_stay_in_the_picture(make):
    live = make(
        lambda settings, record_at=None: iter(
            [record(step, settings.target_scale / 10) for step in (1, 5)]
        )
    )
    live.start()
    assert live.wait(SOON)
    alone = pixels(live)
    live.sliders["target_scale"].value = 3.0
    assert live.wait(SOON)
    live.sliders["target_scale"].value = 1.0
    assert live.wait(SOON)
    assert len(live.runs) == 3 and not np.array_equal(alone, pixels(live))


def test_a_real_run_gives_the_numbers_of_train():
    settings = TrainingSettings(steps=30, target_scale=3.0)
    live = train_live(settings)
    live.start()
    assert live.wait(60), live.status
    assert live.status.startswith("finished"), live.status
    expected = train(settings, record_at=dense_steps(30), progress=False).data
    np.testing.assert_allclose(live.runs[0].data["d_lr"], expected["d_lr"], rtol=1e-4)
    assert live.runs[0].data.attrs["isotropic_d_lr"] == expected.attrs["isotropic_d_lr"]
    live.close()


def test_settings_may_be_a_dict_and_an_unusual_value_gets_its_place():
    live = train_live({"weight_decay": 0.002, "target_scale": 0.3, "learning_rate": 0.01})
    assert live.settings.weight_decay == 0.002 and live.settings.steps == 3000
    values = [value for _, value in live.sliders["weight_decay"].options]
    assert values == sorted(values) and 0.0 in values
    live.close()


@pytest.mark.parametrize(
    "settings, message",
    [({"decay": 1}, "settings has no 'decay'"), (7, "settings must be TrainingSettings")],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(RichbookError, match=message):
        train_live(settings)


@pytest.mark.parametrize("steps", [1, 2, 60, 3000])
def test_records_are_close_enough_to_cancel_between_them(steps):
    at = dense_steps(steps)
    assert at[0] == 0 and at[-1] == steps and max(np.diff(at)) <= 50
    assert len(at) <= 110


def test_a_picture_keeps_its_size_and_layout_whatever_matplotlib_is_set_to():
    use_style()
    picture = LivePicture(steps=100, width=8, floor=0.6)
    places = [axes.get_position().bounds for axes in picture.figure.axes]
    for _ in range(2):
        png = picture.draw([record(0, math.nan), record(3)])
    assert mpl_image.imread(io.BytesIO(png)).shape[:2] == (480, 768)
    assert [axes.get_position().bounds for axes in picture.figure.axes] == places


def test_a_constructor_that_fails_says_so_once(monkeypatch):
    complaints = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    with pytest.raises(AttributeError):
        LiveTraining("no settings")
    gc.collect()
    assert not complaints


def test_a_closed_widget_does_not_train():
    training = FakeTraining()
    live = LiveTraining(TrainingSettings(steps=5, width=8), training=training, debounce=0.0)
    live.close()
    with pytest.raises(RichbookError, match="this widget is closed"):
        live.start()
    live.sliders["target_scale"].value = 3.0
    assert live.wait(SOON) and training.asked == []
