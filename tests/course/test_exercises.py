"""Every exercise of every chapter: its solution passes, its stub and plausible mistakes fail."""

import copy
import re
from functools import partial
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


def curve_that_ends_at_1(features, outputs):
    """Exercise 5.1 divided by its own end, which hides what the features do not carry."""
    curve = curve_in(kernel_directions(features), centred(features), outputs)
    return curve / curve[-1]


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


def spectra_in_order(weight, first, second):
    """Exercise 10.2 with the sorted eigenvalues of H and G in place of their diagonals."""
    rank = int(torch.linalg.matrix_rank(weight))
    z = torch.linalg.svdvals(weight)[:rank].square().log().numpy()
    sizes = (torch.linalg.eigvalsh(m).flip(0)[:rank].log().numpy() for m in (first, second))
    return tuple(float(np.polyfit(z, values, 1)[0]) for values in sizes)


def powers_with_null_space(weight, h_a, g_b, swapped=False):
    left, sizes, right = torch.linalg.svd(weight, full_matrices=False)
    if swapped:
        right, left = left.T, right.T
    logs = sizes.square().clamp_min(1e-30).log().numpy()
    found = ((right @ h_a @ right.T), (left.T @ g_b @ left))
    return tuple(float(np.polyfit(logs, m.diagonal().log().numpy(), 1)[0]) for m in found)


def powers_without_null_space(weight, h_a, g_b):
    """Right, from the eigenvectors of WᵀW and W Wᵀ."""
    found = []
    for matrix, gram in ((h_a, weight.T @ weight), (g_b, weight @ weight.T)):
        sizes, vectors = np.linalg.eigh(gram.numpy())
        used = sizes > 1e-5 * sizes[-1]
        entries = np.diag(vectors.T @ matrix.numpy() @ vectors)[used]
        found.append(float(np.polyfit(np.log(sizes[used]), np.log(entries), 1)[0]))
    return tuple(found)


def total_least_squares(g, h, centred=True):
    rows = torch.stack([g.log(), h.log()], 1)
    rows = rows - rows.mean(0) if centred else rows
    axis = torch.linalg.svd(rows, full_matrices=False)[2][0]
    return axis[1] / axis[0]


def regression(g, h):
    rows = torch.stack([g.log(), h.log()])
    covariance = torch.cov(rows)
    return covariance[0, 1] / covariance[0, 0]


def reduced_major_axis(g, h):
    """Symmetric, but not the slope of points with equal noise."""
    return regression(g, h).sign() * h.log().std() / g.log().std()


def relations_without_the_step(x, y):
    """Exercise 10.1 as if H_b had the power of H_a, and G_a that of G_b."""
    held = {"RGA": x == y, "RWA": x == 1, "GWA": y == 1}
    names = {name for name, holds in held.items() if holds}
    return names, names


def relations_held(x, y, tolerance=1e-9):
    """Right, for powers that differ by more than the tolerance where they differ."""
    sides = ({"H": x + 1, "G": y, "Z": 1}, {"H": x, "G": y + 1, "Z": 1})
    pairs = {"RGA": "HG", "RWA": "HZ", "GWA": "GZ"}
    return tuple(
        {name for name, (a, b) in pairs.items() if abs(side[a] - side[b]) <= tolerance}
        for side in sides
    )


def relations_by_differences(x, y):
    forward = {"RGA": x - y == -1, "RWA": x == 0, "GWA": y - 1 == 0}
    backward = {"RGA": x - 1 == y, "RWA": x == 1, "GWA": y == 0}
    return tuple({name for name, holds in side.items() if holds} for side in (forward, backward))


def null_without_norms(first, second):
    cosine = (first * second).sum() / (first.norm() * second.norm())
    return cosine, first.trace() * second.trace() / len(first)


def null_right(first, second):
    cosine, null = null_without_norms(first, second)
    return cosine, null / (first.norm() * second.norm())


def elementwise_norm(first, second):
    return ((first / first.norm()) * (second / second.norm())).norm()


def faulty_moments(
    network, batches, one_batch=False, product=False, mean=False, pile=False, turned=False
):
    """Exercise 9.2, right but for the faults that are switched on."""
    rows_h, rows_g = [], []
    for inputs, labels in batches[:1] if one_batch else batches:
        h = network[0](inputs)
        reduction = "mean" if mean else "sum"
        loss = torch.nn.functional.cross_entropy(network[1:](h), labels, reduction=reduction)
        (g,) = torch.autograd.grad(loss, [h], retain_graph=True)
        if pile:
            loss.backward()
        rows_h.append(h.detach())
        rows_g.append(-g)
    h, g = torch.cat(rows_h), torch.cat(rows_g)
    H, G = ((v @ v.T if turned else v.T @ v) / len(v) for v in (h, g))
    cosine = (H * G).sum() / (H.norm() * G.norm())
    return H, G, elementwise_norm(H, G) if product else cosine


def faulty_training(network, batches, rate, decay, measure, step=True, clear=True, shrink=True):
    """Exercise 9.3, right but for the faults that are switched on."""
    decay = decay if shrink else 0.0
    optimiser = torch.optim.SGD(network.parameters(), rate, weight_decay=decay)
    seen = [measure(network)]
    for inputs, labels in batches:
        if clear:
            optimiser.zero_grad()
        torch.nn.functional.cross_entropy(network(inputs), labels).backward()
        if step:
            optimiser.step()
        seen.append(measure(network))
    return seen


def penalty_for_square_weights(h, weight, side, turned=False):
    Z, H = weight @ weight.T if not turned else weight.T @ weight, h.T @ h
    return 1 - (H * Z).sum() / (H.norm() * Z.norm())


def penalty_right(h, weight, side):
    """Nothing wrong with it; in numbers, without a gradient, it is."""
    return penalty_for_square_weights(h, weight, side, turned=side == "input")


def centred_penalty(h, weight, side):
    Z, H = weight @ weight.T if side == "output" else weight.T @ weight, torch.cov(h.T)
    return 1 - (H * Z).sum() / (H.norm() * Z.norm())


def flat_distance(eigenvalues):
    return 1 - eigenvalues.sum() / (eigenvalues.norm() * len(eigenvalues) ** 0.5)


def plain_agop(jacobian):
    return torch.einsum("ncp,ncq->pq", jacobian, jacobian) / len(jacobian)


def sample_by_sample(jacobian):
    """Invariant too: the projection on what the outputs' gradients of each sample span."""
    basis = torch.linalg.qr(jacobian.mT)[0]
    return (basis @ basis.mT).mean(0)


def whitened_on_the_wrong_side(jacobian):
    inner = torch.einsum("ncp,ndp->cd", jacobian, jacobian) / len(jacobian)
    return plain_agop(torch.einsum("dc,ncp->ndp", inner, jacobian))


def equal_directions(alignment, richness):
    identity = torch.eye(10, dtype=torch.float64)
    return identity.repeat(20, 1), identity


def few_directions(alignment, richness):
    """Directions that are missing, not weak: the outputs do not use them either."""
    features = torch.linalg.qr(torch.randn(200, 3, dtype=torch.float64))[0]
    return features, torch.eye(9, 3, dtype=torch.float64)


def one_strong(directions, samples=200):
    """Functions q and √s for one strong direction and weak ones, from which (C1) is made."""
    root = torch.full((directions,), 0.1, dtype=torch.float64)
    root[0] = 1.0
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(samples, directions, generator=draw, dtype=torch.float64)
    return torch.linalg.qr(values)[0] * samples**0.5 * root, torch.diag(root)


def nine_directions(alignment, richness):
    """Enough up to a D_LR of 1 − 1/3, and no further."""
    return one_strong(9)


def whitened(jacobian):
    """The invariant AGOP by way of a Cholesky factor, and seven times too large."""
    inner = torch.einsum("ncp,ndp->cd", jacobian, jacobian) / len(jacobian)
    root = torch.linalg.inv(torch.linalg.cholesky(inner))
    return 7 * plain_agop(torch.einsum("dc,ncp->ndp", root, jacobian))


def shares_of_answers(network, images, digits, codes, apart=True):
    """With images left in on which code and digit agree, unless ``apart``."""
    kept = digits != codes if apart else torch.ones(len(digits), dtype=torch.bool)
    answers = network(images[kept]).argmax(1)
    code, digit = answers == codes[kept], answers == digits[kept]
    return torch.stack([code, digit, ~(code | digit)]).double().mean(1)


def bare_codes(train_classes, test_classes, test_codes, classes):
    """One-hot codes: rich only where the classes are equally frequent."""
    train = torch.eye(classes, dtype=torch.float64)[train_classes]
    test = torch.eye(classes, dtype=torch.float64)[test_codes]
    return train, train, test, test


def reads_the_class(train_classes, test_classes, test_codes, classes):
    """Rich, but the test outputs name the digit."""
    train = torch.eye(classes, dtype=torch.float64)[train_classes]
    test = torch.eye(classes, dtype=torch.float64)[test_classes]
    scale = train.mean(0).rsqrt()
    return train * scale, train, test * scale, test


def codes_of_equal_size(train_classes, test_classes, test_codes, classes):
    """Right: every class is divided by the root of its share."""
    scale = (train_classes.bincount(minlength=classes) / len(train_classes)).rsqrt().double()
    eye = torch.eye(classes, dtype=torch.float64)
    train, test = eye[train_classes], eye[test_codes]
    return train * scale, train, test * scale, test


def used_and_mean(kernel, projection):
    """The share of the trace in place of the share of the norm."""
    inside = projection @ kernel @ projection
    rank = projection.trace()
    return inside.trace() / kernel.trace(), inside.trace() / (inside.norm() * rank.sqrt())


def used_and_even(kernel, projection, rank=None):
    """Right, unless another rank is given, or a kernel that is cut off on one side only."""
    inside = projection @ kernel @ projection
    length = (projection.trace() if rank is None else rank) ** 0.5
    return inside.norm() / kernel.norm(), inside.trace() / (inside.norm() * length)


def at_loss_in(losses, values, level, logarithm=True, last=False):
    """Straight in the loss unless ``logarithm``; the last crossing if ``last``."""
    reached = torch.where((losses[1:] <= level) & (losses[:-1] > level))[0] + 1
    if len(reached) == 0:
        return float("nan")
    after = int(reached[-1 if last else 0])
    scale = torch.log if logarithm else torch.as_tensor
    high, low, wanted = (
        scale(torch.as_tensor(x, dtype=torch.float64))
        for x in (losses[after - 1], losses[after], level)
    )
    return values[after - 1] + (high - wanted) / (high - low) * (values[after] - values[after - 1])


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
    "7.1": lambda clean, share, classes: clean * (1 - share) + share / classes,
    "7.2": partial(shares_of_answers, apart=False),
    "7.3": bare_codes,
    "8.1": used_and_mean,
    "8.2": lambda rank, used, extra: 1 - (used / rank) ** 0.5,
    "8.3": partial(at_loss_in, logarithm=False),
    "9.1": null_without_norms,
    "9.2": partial(faulty_moments, one_batch=True),
    "9.3": partial(faulty_training, step=False),
    "9.4": penalty_for_square_weights,
    "9.5": lambda weight: (weight.T @ weight, weight @ weight.T),
    "10.1": relations_without_the_step,
    "10.2": spectra_in_order,
    "10.3": regression,
    "11.1": lambda weight: flat_distance(torch.linalg.svdvals(weight)),  # of W, not of WᵀW
    "11.2": plain_agop,
    "11.3": equal_directions,
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
    ("5.1", lambda x, f: curve_that_ends_at_1(x, f)),
    ("5.2", lambda x, shares: output_of(x, shares.sqrt(), normalised=False)),
    ("5.2", lambda x, shares: output_of(x, shares.sqrt()) + 1),
    ("5.3", lambda x, new, y: curve_in(kernel_directions(new), centred(new), y)),
    ("5.3", lambda x, new, y: curve_in(kernel_directions(x), centred(new), y)),
    ("7.1", lambda clean, share, classes: clean * (1 - share)),
    ("7.1", lambda clean, share, classes: clean * (1 - share) + (1 - clean) * share / classes),
    ("7.1", lambda clean, share, classes: clean * (1 - share) + share / (classes - 1)),
    ("7.2", lambda *given: shares_of_answers(*given).flip(0)),
    ("7.2", lambda f, images, digits, codes: shares_of_answers(f, images, codes, digits)),
    ("7.2", lambda f, x, y, c: shares_of_answers(f, x, y, c) * (y != c).double().mean()),
    ("7.3", reads_the_class),
    ("8.1", lambda kernel, projection: used_and_mean(kernel, projection)[::-1]),
    ("8.1", lambda kernel, projection: used_and_even(kernel, projection, len(kernel))),
    ("8.1", lambda kernel, projection: used_and_even(kernel @ projection, projection)),
    ("8.2", lambda rank, used, extra: 1 - used / (used + extra)),
    ("8.2", lambda rank, used, extra: 1 - used / ((rank + extra) * rank) ** 0.5),
    ("8.3", partial(at_loss_in, last=True)),
    ("8.3", lambda losses, values, level: (values[losses <= level].tolist() or [np.nan])[0]),
    ("8.3", lambda *given: np.nan_to_num(at_loss_in(*given))),
    ("9.1", lambda a, b: (elementwise_norm(a, b), null_without_norms(a, b)[1])),
    ("9.1", lambda a, b: (null_without_norms(a, b)[0], 0.0)),
    ("9.1", lambda a, b: tuple(max(float(v), 0.0) for v in null_right(a, b))),  # cut off at 0
    ("9.1", lambda a, b: (null_without_norms(a, b)[0], len(a) ** -0.5)),
    ("9.2", partial(faulty_moments, product=True)),
    ("9.2", partial(faulty_moments, mean=True)),
    ("9.2", partial(faulty_moments, pile=True)),
    ("9.2", partial(faulty_moments, turned=True)),
    ("9.3", partial(faulty_training, clear=False)),
    ("9.3", partial(faulty_training, shrink=False)),
    ("9.4", partial(penalty_for_square_weights, turned=True)),
    ("9.4", centred_penalty),
    ("9.4", lambda h, weight, side: penalty_right(h, weight.detach(), side)),
    ("9.4", lambda h, weight, side: float(penalty_right(h, weight, side))),
    ("9.5", lambda weight: (torch.eye(weight.shape[1]), torch.eye(weight.shape[0]))),
    ("9.5", lambda weight: (torch.zeros(weight.shape[1], weight.shape[1]), weight @ weight.T)),
    ("10.1", lambda x, y: ({"RGA"} if x + 1 == y else set(), {"RGA"} if x == y + 1 else set())),
    ("10.1", lambda x, y: relations_without_the_step(x + 1, y)),
    ("10.1", lambda x, y: relations_held(round(x), round(y))),
    ("10.1", lambda x, y: relations_held(x, y, tolerance=0.1)),
    ("10.1", lambda x, y: relations_held(x, y)[::-1]),
    ("10.2", powers_with_null_space),
    ("10.2", lambda w, h, g: tuple(2 * v for v in spectra_in_order(w, h, g))),
    ("10.2", lambda w, h, g: tuple(2 * v for v in powers_without_null_space(w, h, g))),
    ("10.2", lambda w, h, g: powers_without_null_space(w, h, g)[::-1]),
    ("10.2", lambda w, h, g: tuple(v + 1 for v in powers_without_null_space(w, h, g))),
    ("10.3", reduced_major_axis),
    ("10.3", lambda g, h: 1 / regression(h, g)),
    ("10.3", lambda g, h: total_least_squares(g, h, centred=False)),
    ("10.3", lambda g, h: total_least_squares(g, h).abs()),
    ("10.3", lambda g, h: (regression(g, h) + 1 / regression(h, g)) / 2),
    ("11.1", lambda weight: flat_distance(torch.linalg.svdvals(weight) ** 2)),  # counts zeros
    ("11.1", lambda weight: flat_distance(torch.linalg.eigvalsh(weight.T @ weight))),
    ("11.2", sample_by_sample),
    ("11.2", whitened_on_the_wrong_side),
    ("11.2", lambda jacobian: torch.eye(jacobian.shape[2])),
    ("11.2", lambda jacobian: 1e-9 * plain_agop(jacobian)),  # changes, by a tiny amount
    ("11.2", lambda jacobian: plain_agop(jacobian) / plain_agop(jacobian).trace()),
    ("11.3", few_directions),
    ("11.3", nine_directions),
    ("11.3", lambda alignment, richness: (torch.ones(50, 1), torch.ones(1, 1))),
]
RIGHT = [  # the same answers in other styles
    ("10.1", lambda x, y: [list(names) for names in relations_held(x, y, tolerance=0)]),
    ("10.1", lambda x, y: relations_by_differences(x, y)),
    ("10.2", lambda w, h, g: np.array(powers_without_null_space(w, h, g))),
    ("10.2", lambda *given: powers_without_null_space(*(v.float() for v in given))),
    ("10.3", lambda g, h: total_least_squares(g.float(), h.float())),
    ("2.1", lambda features: numpy_eigenpairs(features.numpy())),
    ("4.2", lambda dim, rank: 1 - torch.sqrt(torch.tensor(rank / dim))),
    ("5.2", lambda features, shares: -7 * output_of(features, shares.sqrt())[:, None]),
    ("1.2", lambda a, b: float(norms([y - x for x, y in zip(a, b, strict=True)]) / norms(a))),
    ("7.1", lambda a, q, classes: np.float32(a * (1 - q) + (1 - a) * q / (classes - 1))),
    ("7.2", lambda *given: shares_of_answers(*given).tolist()),
    ("7.3", lambda *given: [values.numpy() + 1 for values in codes_of_equal_size(*given)]),
    ("8.1", lambda kernel, projection: [float(x) for x in used_and_even(kernel, projection)]),
    ("8.2", lambda rank, used, extra: 1 - used / torch.tensor((used + extra) * rank).sqrt()),
    ("8.3", lambda *given: np.float32(at_loss_in(*given))),
    ("9.2", lambda network, batches: faulty_moments(copy.deepcopy(network), batches, pile=True)),
    ("11.2", whitened),
    ("11.2", lambda jacobian: whitened(jacobian.float())),
    ("11.3", lambda alignment, richness: [x.float().numpy() for x in one_strong(40)]),
]


def numpy_eigenpairs(features):
    values, directions = np.linalg.eigh(features.T @ features / len(features))
    return values[::-1], (features @ directions / np.sqrt(values))[:, ::-1]


SEVEN_FAULTS = {  # of the listing in chapter 9: where it is repaired, the fault, what names it
    "one batch": ("9.2", partial(faulty_moments, one_batch=True), "one batch only"),
    "no correlation": ("9.2", partial(faulty_moments, product=True), "elementwise product"),
    "1/B": ("9.2", partial(faulty_moments, mean=True), "comes with 1/B"),
    "gradients pile up": ("9.2", partial(faulty_moments, pile=True), "pile up"),
    "no step": ("9.3", partial(faulty_training, step=False), "no optimiser step"),
    "transposes": ("9.2", partial(faulty_moments, turned=True), "transpose"),
    "square W": ("9.4", penalty_for_square_weights, "square W"),
}


@pytest.mark.parametrize("fault", SEVEN_FAULTS)
@pytest.mark.parametrize("seed", range(3))
def test_each_of_the_seven_faults_is_named(fault, seed):
    exercise, answer, words = SEVEN_FAULTS[fault]
    assert words in richbook.check(exercise, answer, seed=seed).message


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
