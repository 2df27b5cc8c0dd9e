"""A result of a recipe as small as tests need it, with numbers of no meaning."""

import numpy as np
import xarray as xr

VALUES, SEEDS, STEPS, WIDTH = [0.1, 1.0, 10.0], 3, [0, 1, 10, 100], 12
SCALARS = ("d_lr", "train_accuracy", "test_accuracy", "train_loss", "nc1")


def make_result(values=VALUES, seeds=SEEDS, steps=STEPS, width=WIDTH, axis="target_scale"):
    """What `reproduce` returns, over (axis, seed, step[, k]); D_LR is undefined at step 0."""
    rng = np.random.default_rng(0)
    dims, shape = (axis, "seed", "step"), (len(values), seeds, len(steps))
    data = {name: (dims, rng.uniform(0.05, 0.95, shape).astype("float32")) for name in SCALARS}
    data["d_lr"][1][..., 0] = np.nan
    data["isotropic_d_lr"] = (dims, np.full(shape, 0.5, "float32"))
    for name in ("utilization", "quality"):
        grown = np.cumsum(rng.uniform(0, 1, (*shape, width)), -1)
        data[name] = ((*dims, "k"), (grown / grown[..., -1:]).astype("float32"))
    fallen = np.sort(rng.uniform(-8, 0, (*shape, width)), -1)[..., ::-1]
    data["relative_eigenvalue"] = ((*dims, "k"), (10.0**fallen).astype("float32"))
    data["diverged_at"] = (dims[:2], np.full(shape[:2], -1))
    coords = {axis: values, "seed": range(seeds), "step": steps}
    return xr.Dataset(data, coords, attrs={"axis": axis, "recipe": "made-up"})


def lose_seed(result, setting, seed, step):
    """Let a network diverge at a step: nan from then on."""
    result["diverged_at"].values[setting, seed] = step
    late = result["step"].values >= step
    for name, variable in result.data_vars.items():
        if name != "diverged_at":
            variable.values[setting, seed, late] = np.nan
