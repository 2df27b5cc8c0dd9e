"""A game: of two networks with the same test accuracy, which one is richer?

The view carries the pairs and their answers, so that it plays alike in JupyterLab and in a page
without a kernel. Python reads what has been answered.
"""

from __future__ import annotations

import anywidget
import numpy as np
import traitlets
import xarray as xr

from richbook.experiments import load_sweep
from richbook.show.explorer import script
from richbook.show.packing import output_rank, pack, thinned
from richbook.show.result_explorer import styles
from richbook.show.richer_pairs import Network, choose_pairs
from richbook.show.selection import HYPERPARAMETERS, WORDS, short_value

#: The answer says how many eigenfunctions hold this share of the outputs.
SHARE = 0.95
#: Curves of a network: over steps, and at the end over eigenfunctions.
CURVES = ("train_accuracy", "test_accuracy", "utilization")


class RicherGame(anywidget.AnyWidget):
    """The game; `richer_game` makes one.

    Attributes:
        sweep: where the networks come from.
        pairs: two networks for each round.
        answers: of each round played, 0 for the first network and 1 for the second.

    Example:
        >>> game = RicherGame(load_sweep(), seed=0, pairs=2)
        >>> game.answers = game.solution
        >>> game.score
        (2, 2)
    """

    _esm = script("richer_game.js")
    _css = styles("richer_game.css")
    packed = traitlets.Bytes().tag(sync=True)
    contents = traitlets.Dict().tag(sync=True)
    rounds = traitlets.List().tag(sync=True)
    answers = traitlets.List(traitlets.Int()).tag(sync=True)
    round = traitlets.Int(0).tag(sync=True)

    def __repr__(self) -> str:
        """Without the traits, which are long, and without an address in memory."""
        return f"RicherGame(score={self.score!r})"

    def __init__(self, sweep: xr.Dataset, seed: int = 0, pairs: int = 8):
        self.sweep = sweep
        self.pairs = choose_pairs(sweep, pairs, seed)
        packed, contents = pack_pairs(sweep, self.pairs)
        rounds = [[describe_network(sweep, network) for network in pair] for pair in self.pairs]
        super().__init__(packed=packed, contents=contents, rounds=rounds)
        self.add_class("rb-explorer").add_class("rb-richer-game")

    @property
    def solution(self) -> list[int]:
        """The right answer of each round: 0 if the first network is the richer one, else 1."""
        return [int(np.argmin([network.d_lr for network in pair])) for pair in self.pairs]

    @property
    def score(self) -> tuple[int, int]:
        """How many answers were right, and how many there are."""
        right = sum(a == s for a, s in zip(self.answers, self.solution, strict=False))
        return right, len(self.answers)


def richer_game(sweep: xr.Dataset | None = None, seed: int = 0, pairs: int = 8) -> RicherGame:
    """Tell rich from lazy networks that test alike: a game of several rounds.

    Each round shows two networks of a sweep whose test accuracies differ by at most 0.005 and whose
    D_LR differs at least by a factor of 2. Their accuracies during training and the cumulative
    utilisation at the end are seen. The reader says which one is richer; then D_LR and the
    hyperparameters of both are told.

    Args:
        sweep: what `sweep` or `load_sweep` returned; without one the recorded sweep on digits.
        seed: fixes which networks.
        pairs: how many rounds.

    Returns:
        A widget. Its `pairs` are the networks, its `score` says how many were told apart.

    Raises:
        RichbookError: `seed` or `pairs` is not a whole number, the sweep lacks a variable, or has
            too few such pairs.

    Example:
        >>> game = richer_game(pairs=3)
        >>> len(game.pairs), game.score
        (3, (0, 0))
    """
    return RicherGame(load_sweep() if sweep is None else sweep, seed, pairs)


def pack_pairs(sweep: xr.Dataset, pairs: list[tuple[Network, Network]]) -> tuple[bytes, dict]:
    """Pack the curves of every network, pair by pair.

    Returns:
        The bytes, and a layout that says how to read them: for each curve its offset, its bits and
        how many numbers a network has. All have 8 bits: errors are below 0.002.
    """
    points = thinned(sweep.sizes["k"])
    runs = [network.of(sweep) for pair in pairs for network in pair]
    data, fields = b"", {}
    for name in CURVES:
        kept = {"step": -1, "k": points} if name == "utilization" else {}
        values = np.stack([np.asarray(run[name].isel(kept).values, dtype=float) for run in runs])
        fields[name] = {"offset": len(data), "bits": 8, "length": values.shape[1], "per": 1}
        data += pack(values, 8)
    return data, {
        "fields": fields,
        "steps": [int(step) for step in sweep["step"].values],
        "k": [int(point) + 1 for point in points],
        "floor": sweep.attrs.get("isotropic_d_lr"),
        "rank": output_rank(sweep),
    }


def describe_network(sweep: xr.Dataset, network: Network) -> dict:
    """What is told of a network: its numbers at the end, and how it was trained.

    Example:
        >>> told = describe_network(load_sweep(), Network((5, 3, 3, 0), 0.06, 0.98))
        >>> told["settings"][:2]
        [['weight decay', '0.01'], ['target scale', '1']]
    """
    run = network.of(sweep)
    enough = run["utilization"].isel(step=-1).values >= SHARE
    return {
        "d_lr": network.d_lr,
        "test_accuracy": network.test_accuracy,
        "needed": int(np.argmax(enough)) + 1 if enough.any() else len(enough),
        "share": SHARE,
        "settings": [[WORDS[name], short_value(float(run[name]))] for name in HYPERPARAMETERS],
    }
