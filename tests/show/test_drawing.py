"""The explorer's drawing, run outside a browser: what its panels hold for unusual sweeps."""

import base64
import json
import re
import shutil
import subprocess

import pytest

from richbook.show import explore
from richbook.show.selection import HYPERPARAMETERS
from tests.show.conftest import make_sweep

#: A page just good enough for `render`: elements that keep what is written into them.
PAGE = """
const make = () => ({ style: { setProperty(k, v) { this[k] = v; } }, classList: { add() {} },
  attributes: {}, setAttribute(k, v) { this.attributes[k] = v; }, addEventListener() {},
  closest: () => null, clientWidth: 640, innerHTML: "" });
globalThis.ResizeObserver = class { observe() {} disconnect() {} };
globalThis.requestAnimationFrame = () => {};
const state = JSON.parse(require("fs").readFileSync(0, "utf8"));
state.packed = new DataView(new Uint8Array(Buffer.from(state.packed, "base64")).buffer);
const svgs = [make(), make(), make(), make()], panels = { ...make(), children: svgs };
const readout = make(), el = { ...make(), children: [readout, panels, make()] };
import("data:text/javascript;base64," + Buffer.from(state.source).toString("base64"))
  .then((module) => {
    module.default.render({ model: { get: (name) => state[name], on() {} }, el });
    console.log(JSON.stringify({ panels: svgs.map((svg) => svg.innerHTML),
      shade: el.style["--rb-shade"], words: readout.textContent }));
  });
"""


def draw(sweep, source=None):
    """Return what the four panels hold: history, map, accuracies, utilization."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node to run the drawing without a browser")
    view = explore(sweep).view
    state = {
        name: getattr(view, name) for name in ("contents", "axes", "readouts", *HYPERPARAMETERS)
    }
    state |= {"packed": base64.b64encode(view.packed).decode(), "source": source or view._esm}
    done = subprocess.run(
        [node, "-e", PAGE],
        input=json.dumps(state),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout)


def tick_labels(svg):
    """Return the numbers under the x axis: those of the y axis are not centred."""
    return re.findall(r'text-anchor="middle" class="" >(\d+)<', svg)


def sweep_at(steps, width=12):
    return make_sweep([0.0, 0.01], [0.1, 1.0], [0.01], 2, steps, width)


@pytest.mark.parametrize(
    "steps, ticks",
    [
        ([20, 50], ["20", "50"]),
        ([60], ["60"]),
        ([50, 120, 200], ["100"]),
        ([0, 1, 10], ["0", "1", "10"]),
    ],
)
def test_any_recorded_steps_have_ticks(steps, ticks):
    panels = draw(sweep_at(steps))["panels"]
    assert tick_labels(panels[0]) == ticks and tick_labels(panels[2])


def test_one_recorded_step_is_a_ring_a_curve_and_nothing_is_nan():
    sweep = sweep_at([60])
    history, _, accuracy, _ = draw(sweep.assign(d_lr=sweep["d_lr"].fillna(0.3)))["panels"]
    assert history.count("-6,0") == 2 and accuracy.count("-6,0") == 2  # two scales; train, test
    assert "NaN" not in history + accuracy


def test_a_floor_of_zero_leaves_the_map_its_colours():
    sweep = sweep_at([1, 10], width=5)
    sweep.attrs["isotropic_d_lr"] = 0.0
    drawn = draw(sweep)
    colours = set(re.findall(r'fill="(rgb\(\d+,\d+,\d+\))" stroke', drawn["panels"][1]))
    assert len(colours) == 4 and "rgb(153,153,153)" not in colours
    assert drawn["shade"] in colours and "lazier" not in drawn["words"]
