"""A sweep against the same networks trained one after the other.

The loop is torch's own: a module, ``torch.optim.SGD``, a batch, a step. It starts from the sweep's
weights and draws the sweep's batches, so that the two can be compared number by number.
"""

import itertools

import torch
from torch import nn

from richbook.train import MLP, TrainingSettings, load_data, sweep, train
from richbook.train.ensemble import Ensemble
from richbook.train.single import batches
from tests.bench.table import best_times, show

GRID = {
    "weight_decay": [0.0, 1e-4, 3e-4, 1e-3, 1e-2],
    "target_scale": [0.1, 0.3, 1.0, 2.0, 3.0],
    "learning_rate": [3e-4, 1e-3, 3e-3, 5e-3, 1e-2],
}
NETWORKS, STEPS, BATCH = 125, 200, 64
WIDTHS = (32, 64, 128)
#: How many of the networks the two loops train; their times are scaled to all. Few, and often: the
#: best of many short times is what an idle machine would take.
IN_LOOP = 5
FIRST_STEPS = 20
TARGET, TOLERANCE = 25, 1e-4


def cells(width):
    """The settings of all networks."""
    fixed = {"width": width, "batch_size": BATCH, "steps": STEPS}
    for values in itertools.product(*GRID.values()):
        yield TrainingSettings(**dict(zip(GRID, values, strict=True)), **fixed)


def plain_network(settings):
    """An nn.Sequential with the weights that the package starts from."""
    start = MLP(64, 10, settings)
    parts = []
    for source in (*start.hidden, start.head):
        linear = nn.Linear(source.in_features, source.out_features)
        linear.load_state_dict(source.state_dict())
        parts += [linear, nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def plain_training(settings, steps=STEPS):
    """Train one network; yields the loss before each step, and the network."""
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
    for index in itertools.islice(batches(settings, len(inputs)), steps):
        loss = (network(inputs[index]) - targets[index]).square().sum(1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        yield loss.detach(), network


def loop(some):
    for settings in some:
        for _ in plain_training(settings):
            pass


def measure(width, threads):
    """Seconds for all networks: a loop, `train` in a loop, `sweep`, a sweep of one step (which is
    setting up and measuring), the products alone."""
    torch.set_num_threads(threads)
    square = torch.ones(1024, 1024)
    made = list(cells(width))
    some = made[:: NETWORKS // IN_LOOP]
    options = {"record_at": [], "progress": False}
    once = made[0].replace(steps=1)
    plain, single, swept, measuring, product = best_times(
        [
            lambda: loop(some),
            lambda: [train(settings, **options) for settings in some],
            lambda: sweep(**GRID, seeds=1, settings=made[0], **options),
            lambda: sweep(**GRID, seeds=1, settings=once, **options),
            lambda: square @ square,
        ]
    )
    scale = NETWORKS / IN_LOOP
    products = product * multiplications(width) / 1024**3
    return plain * scale, single * scale, swept, measuring, products


def multiplications(width):
    """In all steps of all networks: forward, the weights' gradients, back through two layers."""
    first, rest = 64 * width, width * width + 10 * width
    return NETWORKS * STEPS * BATCH * (2 * first + 3 * rest)


def largest_differences(width):
    """Of any parameter and of any loss between the ensemble and the loop, over the first steps."""
    made = list(cells(width))
    data = load_data("digits")
    codes = nn.functional.one_hot(data.train_labels).float() - 0.1
    scales = torch.tensor([settings.target_scale for settings in made])[:, None, None]
    ensemble = Ensemble(made, 64, 10, torch.device("cpu"))
    loops = [plain_training(settings, FIRST_STEPS) for settings in made]
    parameters = losses = 0.0
    for index in itertools.islice(batches(made[0], len(codes)), FIRST_STEPS):
        inputs = data.train_inputs[index].expand(NETWORKS, -1, -1)
        ours = ensemble.descend(inputs, codes[index] * scales)
        for member, (loss, network) in enumerate(map(next, loops)):
            losses = max(losses, abs(float(ours[member] - loss)))
            for layer, linear in enumerate(network[::2]):
                weight = ensemble.weights[layer][member] - linear.weight.detach()
                bias = ensemble.biases[layer][member, :, 0] - linear.bias.detach()
                parameters = max(parameters, float(weight.abs().max()), float(bias.abs().max()))
    return parameters, losses


def run(thread_counts):
    loop([TrainingSettings(steps=1)])  # the first optimiser of a process loads half of torch
    rows = []
    for threads in thread_counts:
        for width in WIDTHS:
            plain, single, swept, measuring, products = measure(width, threads)
            seconds = [f"{value:.2f} s" for value in (plain, single, swept, measuring, products)]
            pairs = ((plain, swept - measuring), (single, swept), (plain, products))
            ratios = [f"{long / short:.1f}×" for long, short in pairs]
            rows.append([str(width), str(threads), *seconds, *ratios])
    show(
        f"sweep: {NETWORKS} networks 64 → w → w → 10 on digits, batch {BATCH}, {STEPS} steps",
        ["w", "threads", "loop", "train()", "sweep", "measuring", "products"]
        + ["training", "with measures", "ceiling"],
        rows,
        [
            f"loop: a module and torch.optim.SGD, nothing measured; {IN_LOOP}, scaled.",
            "train(): richbook's own, with the measures after the last step; scaled likewise.",
            f"sweep: all {NETWORKS}, with the measures after the last step.",
            "measuring: a sweep of one step, that is, setting up and measuring.",
            "products: the steps' matrix products at the speed of one of 1024 × 1024.",
            "training: loop / (sweep − measuring), the same steps and nothing else.",
            "with measures: train() / sweep. ceiling: loop / products.",
            f"Target at width {WIDTHS[0]}: training at least {TARGET}×. Best of several, in turns.",
        ],
    )
    rows = [
        [str(width), *(f"{value:.1e}" for value in largest_differences(width))] for width in WIDTHS
    ]
    show(
        f"the same, ensemble against loop: largest difference in the first {FIRST_STEPS} steps",
        ["w", "of a parameter", "of a loss"],
        rows,
        [f"Target: below {TOLERANCE:.0e}."],
    )
