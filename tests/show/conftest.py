import matplotlib
import numpy as np
import pytest
import xarray as xr

from richbook.train.recording import SCALARS

matplotlib.use("Agg")

STEPS = [0, 1, 10, 100, 1000]
DECAYS, SCALES, RATES, SEEDS, WIDTH = [0.0, 1e-3, 1e-2], [0.1, 1.0], [1e-3, 1e-2], 3, 12


def make_sweep(decays, scales, rates, seeds, steps, width):
    """Curves of a plausible shape with noise, in the form that `sweep` returns."""
    rng = np.random.default_rng(0)
    dims = ("weight_decay", "target_scale", "learning_rate", "seed", "step")
    shape = (len(decays), len(scales), len(rates), seeds, len(steps))
    data = {name: (dims, rng.uniform(0.05, 0.6, shape).astype("float32")) for name in SCALARS}
    data["d_lr"][1][..., 0] = np.nan  # a head that starts at zero has no D_LR yet
    curves = np.cumsum(rng.uniform(0, 1, (*shape, width)), -1)
    data["utilization"] = ((*dims, "k"), curves / curves[..., -1:])
    data["diverged_at"] = (dims[:4], np.full(shape[:4], -1, "int32"))
    coords = {
        "weight_decay": decays,
        "target_scale": scales,
        "learning_rate": rates,
        "seed": range(seeds),
        "step": steps,
        "k": range(1, width + 1),
    }
    return xr.Dataset(data, coords, attrs={"isotropic_d_lr": 0.5})


def lose(sweep, cell, seeds, step):
    """Let the seeds of a cell diverge at a step: nan from then on."""
    for seed in seeds:
        at = (*cell, seed)
        sweep["diverged_at"].values[at] = step
        late = sweep["step"].values >= step
        for name, variable in sweep.data_vars.items():
            if name != "diverged_at":
                variable.values[at][late] = np.nan


@pytest.fixture
def sweep():
    """3 x 2 x 2 cells, 3 seeds: cell (0, 1, 1) diverged wholly, (1, 1, 1) in one seed."""
    data = make_sweep(DECAYS, SCALES, RATES, SEEDS, STEPS, WIDTH)
    lose(data, (0, 1, 1), (0, 1, 2), 10)
    lose(data, (1, 1, 1), (1,), 100)
    return data


@pytest.fixture
def full_sweep():
    """A sweep as large as the one that ships with the book."""
    return make_sweep(
        [0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2],
        [0.03, 0.1, 0.3, 1, 3, 10],
        [3e-4, 1e-3, 3e-3, 1e-2, 3e-2],
        3,
        [0, *range(1, 14)],
        64,
    )


@pytest.fixture(autouse=True)
def plain_matplotlib():
    """Each test starts with Matplotlib's own settings and leaves no figure open."""
    with matplotlib.rc_context():
        yield
    import matplotlib.pyplot as plt

    plt.close("all")
