"""Every exercise of every chapter: its solution passes, its stub and plausible mistakes fail."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import richbook
from richbook.course.chapters import read_text
from richbook.course.checking import EXERCISES

TEXTS = sorted((Path(__file__).resolve().parents[2] / "notebooks" / "text").glob("*.md"))


def tagged(kind: str) -> dict[str, tuple[Path, str]]:
    """Exercise id -> chapter and source of the cell that carries the tag ``kind-id``."""
    found = {}
    for text in TEXTS:
        for cell in read_text(text).cells:
            for tag in cell.metadata.get("tags", []):
                if tag.startswith(f"{kind}-"):
                    found[tag.removeprefix(f"{kind}-")] = (text, cell.source)
    return found


STUBS, SOLUTIONS = tagged("exercise"), tagged("solution")


def function_of(text: Path, source: str):
    """The function that a cell defines, among the chapter's imports; what follows is left out."""
    imports = re.findall(
        r"^(?:import|from) .*$", "\n".join(c.source for c in read_text(text).cells), re.MULTILINE
    )
    body = re.match(r"(def (\w+)\(.*?)(?=\n\S|\Z)", source, re.DOTALL)
    namespace: dict = {}
    exec("\n".join([*imports, body.group(1)]), namespace)
    return namespace[body.group(2)]


def test_every_check_has_a_stub_and_a_solution():
    assert sorted(STUBS) == sorted(SOLUTIONS) == sorted(EXERCISES)


def test_every_chapter_has_two_exercises():
    for text in TEXTS:
        assert sum(chapter == text for chapter, _ in STUBS.values()) >= 2, text.stem


@pytest.mark.parametrize("exercise", sorted(SOLUTIONS))
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_solution_passes(exercise, seed):
    verdict = richbook.check(exercise, function_of(*SOLUTIONS[exercise]), seed=seed)
    assert verdict, verdict


@pytest.mark.parametrize("exercise", sorted(STUBS))
def test_stub_fails(exercise):
    verdict = richbook.check(exercise, function_of(*STUBS[exercise]))
    assert not verdict and "not answered yet" in verdict.message


def naive_d_lr(features, outputs):
    """The mistake of chapter 3: centre first, then project."""
    left = torch.linalg.svd(outputs - outputs.mean(0), full_matrices=False)[0]
    phi = features - features.mean(0)
    top = (phi.T @ left).square().sum()
    return 1 - top / ((phi.T @ phi).norm() * left.shape[1] ** 0.5)


def transposed_eigenpairs(features):
    values, directions = torch.linalg.eigh(features.T @ features)  # not divided by n
    return values.flip(0), features @ directions.flip(1) / values.flip(0).sqrt()


def ratio_of_traces(features, labels):
    """The mistake of chapter 6: Tr Σ_W / Tr Σ_B."""
    means = torch.stack([features[labels == c].mean(0) for c in labels.unique()])
    within = (features - means[labels]).square().sum() / len(features)
    return within / (means - means.mean(0)).square().sum()


def balanced_simplex(threshold):
    labels = torch.arange(100) % 10
    return torch.eye(10, dtype=torch.float64)[labels], labels


def curve_in(directions, sample, values, scale=None):
    """Cumulative share of the span of ``values`` along ``directions`` of the sample's features."""
    functions = sample @ directions
    functions = functions / (functions.square().mean(0).sqrt() if scale is None else scale)
    left = torch.linalg.qr(values)[0]
    shares = (left.T @ functions).square().sum(0) / len(sample)
    return shares.cumsum(0) / (left - left.mean(0)).square().sum()


def kernel_directions(features):
    return torch.linalg.eigh(torch.cov(features.T))[1].flip(1)


def centred(values):
    return values - values.mean(0)


def uncentred_utilization(features, outputs):
    directions = torch.linalg.eigh(features.T @ features)[1].flip(1)
    return curve_in(directions, features, outputs)


def nystrom_as_it_is(features, new_features, new_targets):
    """Exercise 5.3 without making the functions orthonormal at the new samples."""
    scale = (centred(features) @ kernel_directions(features)).square().mean(0).sqrt()
    sample = new_features - features.mean(0)
    return curve_in(kernel_directions(features), sample, new_targets, scale)


def output_of(features, weights, normalised=True):
    functions = centred(features) @ kernel_directions(features)
    return functions / (functions.square().mean(0).sqrt() if normalised else 1) @ weights


WRONG = {
    "0.1": lambda labels: labels[:, None].double(),
    "0.2": lambda sweep: {"weight_decay": 0.0, "target_scale": 0.1, "learning_rate": 1e-3},
    "1.1": lambda function, start, direction: function(start + direction),
    "1.2": lambda initial, final: sum(
        (a - b).norm() / b.norm() for a, b in zip(final, initial, strict=True)
    ),
    "2.1": transposed_eigenpairs,
    "2.2": lambda features, new: new @ torch.linalg.eigh(features.T @ features)[1],
    "3.1": lambda outputs: int(torch.linalg.matrix_rank(outputs.double())),
    "3.2": lambda outputs, values: outputs @ (outputs.T @ values) / len(values),
    "4.1": naive_d_lr,
    "4.2": lambda dim, rank: 1 - rank / dim,
    "4.3": lambda features: 2 * features,
    "5.1": uncentred_utilization,
    "5.2": output_of,  # the share is the square of the coefficient
    "5.3": nystrom_as_it_is,
    "6.1": ratio_of_traces,
    "6.2": balanced_simplex,
    "6.3": lambda classes, width: torch.eye(classes, width),
}


def norms(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors]).norm()


MORE_WRONG = [
    ("1.2", lambda a, b: norms([y - x for x, y in zip(a, b, strict=True)]) ** 2 / norms(a) ** 2),
    ("1.2", lambda a, b: (norms(b) / norms(a) - 1).abs()),
    (
        "1.2",
        lambda a, b: (
            sum((y - x).abs().sum() for x, y in zip(a, b, strict=True))
            / sum(x.abs().sum() for x in a)
        ),
    ),
    ("3.2", lambda outputs, values: values),
    ("3.2", lambda outputs, values: values - values.mean()),
    ("5.1", lambda x, f: curve_in(kernel_directions(x), centred(x), f).diff(prepend=f[:1, 0] * 0)),
    ("5.1", lambda x, f: curve_in(kernel_directions(x).flip(1), centred(x), f)),
    ("5.1", lambda x, f: curve_in(kernel_directions(x), centred(x), centred(f))),
    ("5.2", lambda x, shares: output_of(x, shares.sqrt(), normalised=False)),
    ("5.2", lambda x, shares: output_of(x, shares.sqrt()) + 1),
    ("5.3", lambda x, new, y: curve_in(kernel_directions(new), centred(new), y)),
    ("5.3", lambda x, new, y: curve_in(kernel_directions(x), centred(new), y)),
]
RIGHT = [  # the same answers in other styles
    ("2.1", lambda features: numpy_eigenpairs(features.numpy())),
    ("4.2", lambda dim, rank: 1 - torch.sqrt(torch.tensor(rank / dim))),
    ("5.2", lambda features, shares: -7 * output_of(features, shares.sqrt())[:, None]),
    ("1.2", lambda a, b: float(norms([y - x for x, y in zip(a, b, strict=True)]) / norms(a))),
]


def numpy_eigenpairs(features):
    values, directions = np.linalg.eigh(features.T @ features / len(features))
    return values[::-1], (features @ directions / np.sqrt(values))[:, ::-1]


@pytest.mark.parametrize("case", range(len(MORE_WRONG)))
@pytest.mark.parametrize("seed", range(5))
def test_wrong_answer_fails_on_every_instance(case, seed):
    assert not richbook.check(*MORE_WRONG[case], seed=seed)


@pytest.mark.parametrize("case", range(len(RIGHT)))
@pytest.mark.parametrize("seed", range(5))
def test_right_answer_in_another_style_passes(case, seed):
    verdict = richbook.check(*RIGHT[case], seed=seed)
    assert verdict, verdict


def test_changing_a_tensor_inside_a_list_is_reported():
    def answer(initial, final):
        return norms([b.sub_(a) for a, b in zip(initial, final, strict=True)]) / norms(initial)

    assert "changed its argument" in richbook.check("1.2", answer).message


@pytest.mark.parametrize("exercise", sorted(WRONG))
def test_plausible_mistake_fails_with_a_reason(exercise):
    verdict = richbook.check(exercise, WRONG[exercise], seed=0)
    assert not verdict and len(verdict.message) > 20
    assert "raised" not in verdict.message, "the check should see the mistake, not trip over it"


def test_mistakes_cover_all_exercises():
    assert sorted(WRONG) == sorted(EXERCISES)
