"""A sweep as one ensemble against the same networks trained one after the other.

The loop is torch's own: a module, ``torch.optim.SGD``, a batch, a step. It draws the batches that the
sweep draws and starts from the same weights, so that the two can be compared number by number.
"""

import itertools
import time

import torch
from torch import nn

from richbook.train import MLP, TrainingSettings, load_data, sweep, train
from richbook.train.ensemble import Ensemble
from richbook.train.single import batches
from tests.bench.table import best_times, show, verdict

GRID = {
    "weight_decay": [0.0, 1e-4, 3e-4, 1e-3, 1e-2],
    "target_scale": [0.1, 0.3, 1.0, 2.0, 3.0],
    "learning_rate": [3e-4, 1e-3, 3e-3, 5e-3, 1e-2],
}
STEPS, BATCH = 200, 64
NETWORKS = 125
#: Networks that the loop trains; its time is scaled to all 125. The trainings are all of one length.
MEASURED = 25
FIRST_STEPS = 20
TARGET, TOLERANCE = 25, 1e-4


def settings_of_grid(width):
    fixed = {"width": width, "batch_size": BATCH, "steps": STEPS}
    for values in itertools.product(*GRID.values()):
        yield TrainingSettings(**dict(zip(GRID, values, strict=True)), **fixed)


def plain_network(settings):
    start = MLP(64, 10, settings)
    parts = []
    for source in (*start.hidden, start.head):
        linear = nn.Linear(source.in_features, source.out_features)
        linear.load_state_dict(source.state_dict())
        parts += [linear, nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def plain_training(settings, steps=None):
    """One network; yields the loss before each step, and the network."""
    data = load_data("digits")
    inputs = data.train_inputs
    targets = settings.target_scale * (nn.functional.one_hot(data.train_labels).float() - 0.1)
    network = plain_network(settings)
    optimiser = torch.optim.SGD(
        network.parameters(),
        lr=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )
    for index in itertools.islice(batches(settings, len(inputs)), steps or settings.steps):
        loss = (network(inputs[index]) - targets[index]).square().sum(1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        yield loss.detach(), network


def train_plainly(some):
    for settings in some:
        for _ in plain_training(settings):
            pass


def steps_only(settings):
    """What the ensemble needs for the steps alone, nothing recorded."""
    sweep(**GRID, seeds=1, settings=settings, record_at=[], progress=False)


def largest_difference(width):
    """Of any parameter and any loss, over the first steps and over all 125 networks."""
    cells = list(settings_of_grid(width))
    data = load_data("digits")
    codes = nn.functional.one_hot(data.train_labels).float() - 0.1
    scales = torch.tensor([settings.target_scale for settings in cells])[:, None, None]
    ensemble = Ensemble(cells, 64, 10, torch.device("cpu"))
    loops = [plain_training(settings, FIRST_STEPS) for settings in cells]
    parameters = losses = 0.0
    for index in itertools.islice(batches(cells[0], len(codes)), FIRST_STEPS):
        inputs = data.train_inputs[index].expand(NETWORKS, -1, -1)
        ours = ensemble.descend(inputs, codes[index] * scales)
        for member, loop in enumerate(loops):
            loss, network = next(loop)
            losses = max(losses, abs(float(ours[member] - loss)))
            for layer, linear in enumerate(network[::2]):
                weight = (ensemble.weights[layer][member] - linear.weight.detach()).abs().max()
                bias = (ensemble.biases[layer][member, :, 0] - linear.bias.detach()).abs().max()
                parameters = max(parameters, float(weight), float(bias))
    return parameters, losses


def run(threads, repeats=3):
    rows = []
    train_plainly([TrainingSettings(steps=1)])  # the first use of an optimiser loads half of torch
    for count in threads:
        torch.set_num_threads(count)
        for width in (32, 64, 128):
            rows.append(measure(count, width, repeats if width == 32 else 2))
    columns = ["width", "threads", "loop", "train()", "sweep", "loop/sweep", "train()/sweep"]
    show(
        f"{NETWORKS} networks 64→w→w→10, batch {BATCH}, {STEPS} steps, digits: seconds (best of several)",
        columns,
        [row[:-1] for row in rows],
        [
            f"loop: a module, torch.optim.SGD and nothing else, {MEASURED} networks, time scaled by "
            f"{NETWORKS // MEASURED}. train(): the same with richbook.train, which measures at the end.",
            f"sweep: all {NETWORKS}, with the measures at the end. Target at width 32: ≥ {TARGET}×.",
        ],
    )
    return rows


def measure(threads, width, repeats):
    some = list(settings_of_grid(width))[:: NETWORKS // MEASURED]
    common = TrainingSettings(width=width, batch_size=BATCH, steps=STEPS)
    sweeping, looping, training = best_times(
        [
            lambda: steps_only(common),
            lambda: train_plainly(some),
            lambda: [train(s, record_at=[], progress=False) for s in some[:10]],
        ],
        repeats,
    )
    loop, single = looping * NETWORKS / len(some), training * NETWORKS / 10
    times = [f"{value:.2f}" for value in (loop, single, sweeping)]
    ratios = [f"{loop / sweeping:.1f}×", f"{single / sweeping:.1f}×"]
    return [str(width), str(threads), *times, *ratios, loop / sweeping]
