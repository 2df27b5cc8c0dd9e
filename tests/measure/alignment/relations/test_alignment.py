"""The six alignments, the null and the intervals against plain numpy."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from richbook.measure import DegenerateWarning, RichbookError
from richbook.measure.alignment import (
    LayerMoments,
    alignment,
    alignment_of,
    layer_moments,
)
from richbook.measure.alignment.relations import relations as drawn_relations
from richbook.measure.alignment.relations.relations import (
    random_alignments,
    random_cosine,
    random_rotations,
    similarity,
)
from tests.measure.alignment.one_at_a_time import rows_one_at_a_time, second_moments
from tests.measure.capture.networks import ConvNet, drawn, mlp, seeded

cross_entropy = functional.cross_entropy
PAIRS = {"RGA": ("H", "G"), "RWA": ("H", "Z"), "GWA": ("G", "Z")}
ENDS = {"forward": "b", "backward": "a"}


def batches(*tensors, size=20):
    return list(zip(*(tensor.split(size) for tensor in tensors), strict=True))


def data(count=200, classes=4, seed=0):
    return drawn(count, 3, seed=seed), torch.arange(count) % classes


def plain_cosine(a, b):
    return np.trace(a @ b) / math.sqrt(np.trace(a @ a) * np.trace(b @ b))


def plain_pearson(a, b):
    return np.corrcoef(a.ravel(), b.ravel())[0, 1]


PLAIN = {"cosine": plain_cosine, "pearson": plain_pearson}


def covariance(matrix):
    return np.cov(matrix, rowvar=False, bias=True)


def plain_matrices(rows, weight, normalize):
    """H, G and Z at both ends, from the rows of one layer."""
    if normalize:
        unit = {side: v[np.abs(v).max(1) > 0] for side, v in rows.items()}
        unit = {side: v / np.linalg.norm(v, axis=1)[:, None] for side, v in unit.items()}
        found = {f"{side[0].upper()}{side[1:]}": covariance(v) for side, v in unit.items()}
    else:
        found = {f"{side[0].upper()}{side[1:]}": v.T @ v / len(v) for side, v in rows.items()}
    return found | {"Z_a": weight.T @ weight, "Z_b": weight @ weight.T}


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("make, shape", [(mlp, (3,)), (ConvNet, (1, 6, 6))])
def test_equals_the_definition(make, shape, kind, normalize, device):
    model, inputs = seeded(make, device), drawn(60, *shape)
    targets = torch.arange(60) % 3
    found = alignment(model, batches(inputs, targets), cross_entropy, None, kind, normalize)
    names = [layer.name for layer in found]
    expected = rows_one_at_a_time(model.cpu(), inputs, targets, cross_entropy, names)
    assert found.kind == kind and found.normalize is normalize and names == list(expected)
    for layer in found:
        rows = {side: values.numpy() for side, values in expected[layer.name].items()}
        weight = model.get_submodule(layer.name).weight.detach().double().flatten(1).numpy()
        matrices = plain_matrices(rows, weight, normalize)
        for side, end in ENDS.items():
            for name, pair in PAIRS.items():
                a, b = (matrices[f"{letter}_{end}"] for letter in pair)
                relation = getattr(getattr(layer, side), name)
                assert relation.value == pytest.approx(PLAIN[kind](a, b), abs=2e-4)
                assert float(relation) == relation.value
        assert (layer.outputs, layer.width) == weight.shape


def made(h, g, w, **kwargs):
    """Moments with given H_a and G_b, means of 0."""
    h, g, w = (torch.as_tensor(part, dtype=torch.float64) for part in (h, g, w))
    return LayerMoments("fc", 100, w, h, h.new_zeros(len(h)), g, g.new_zeros(len(g)), **kwargs)


def random_spectrum(rng, d, falling=1.0):
    values = np.arange(1, d + 1.0) ** -falling
    q, _ = np.linalg.qr(rng.standard_normal((d, d)))
    return q * values @ q.T


def test_proportional_matrices_align_exactly():
    """H_a ∝ Z_a and G_b ∝ Z_b give 1 there, and H_b ∝ Z_b², which is less."""
    w = np.random.default_rng(0).standard_normal((5, 5))
    found = alignment_of(made(3 * w.T @ w, 0.1 * w @ w.T, w))["fc"]
    assert found.forward.GWA.value == pytest.approx(1, abs=1e-12)
    assert found.backward.RWA.value == pytest.approx(1, abs=1e-12)
    z = w @ w.T
    assert found.forward.RWA.value == pytest.approx(plain_cosine(z @ z, z), abs=1e-12)
    assert found.forward.RWA.deviation > 1 and found.forward.RWA.value < 0.99


def test_both_rga_are_of_one_product():
    """Tr(H_b G_b) = Tr(H_a G_a)."""
    rng = np.random.default_rng(1)
    layer = made(random_spectrum(rng, 6), random_spectrum(rng, 4), rng.standard_normal((4, 6)))
    torch.testing.assert_close((layer.H_b * layer.G_b).sum(), (layer.H_a * layer.G_a).sum())


@pytest.mark.parametrize("kind", PLAIN)
def test_scale_does_not_matter(kind):
    rng = np.random.default_rng(2)
    h, g, w = random_spectrum(rng, 6), random_spectrum(rng, 4), rng.standard_normal((4, 6))
    first = alignment_of(made(h, g, w), kind).array()
    for size in (1e-60, 1e60):
        other = alignment_of(made(size * h, g / size, 7 * w), kind).array()
        torch.testing.assert_close(first, other)


@pytest.mark.parametrize("d", [2, 5, 9])
@pytest.mark.parametrize("falling", [0.0, 1.0, 4.0])
def test_the_null_of_the_cosine_is_exact(d, falling):
    """Against 4 000 random rotations drawn by numpy, for mean and standard deviation."""
    rng = np.random.default_rng(d)
    a, b = random_spectrum(rng, d, falling), random_spectrum(rng, d, 0.5)
    drawn_ = []
    for _ in range(4000):
        q, r = np.linalg.qr(rng.standard_normal((d, d)))
        q = q * np.sign(np.diag(r))
        drawn_.append(plain_cosine(q @ a @ q.T, b))
    mean, spread = random_cosine(torch.tensor(a), torch.tensor(b))
    size = math.sqrt(np.trace(a @ a) * np.trace(b @ b))
    assert mean == pytest.approx(np.trace(a) * np.trace(b) / (d * size), rel=1e-12)
    assert mean == pytest.approx(np.mean(drawn_), abs=4 * spread / 4000**0.5 + 1e-9)
    assert spread == pytest.approx(np.std(drawn_), rel=0.1, abs=1e-7)


def test_the_null_of_the_correlation_is_drawn(monkeypatch):
    """By one's own rotations in numpy; the seed settles what is drawn, in the table too."""
    rng = np.random.default_rng(3)
    h, g, z = (random_spectrum(rng, 6, falling) for falling in (1.0, 2.0, 0.5))
    monkeypatch.setattr(drawn_relations, "DRAWS", 3000)
    generator = torch.Generator().manual_seed(0)
    found = random_alignments(*map(torch.tensor, (h, g, z)), "pearson", generator).numpy()
    assert found.shape == (3000, 3)
    own = []
    for _ in range(3000):
        q, r = np.linalg.qr(rng.standard_normal((6, 6)))
        q = q * np.sign(np.diag(r))
        own.append([plain_pearson(q @ a @ q.T, b) for a, b in ((h, g), (h, z), (g, z))])
    spread = np.std(own, axis=0)
    assert np.abs(found.mean(0) - np.mean(own, axis=0)).max() < 5 * spread.max() / 3000**0.5
    np.testing.assert_allclose(found.std(0), spread, rtol=0.1)
    monkeypatch.undo()
    layer = made(h, g, rng.standard_normal((6, 6)))
    tables = [alignment_of(layer, "pearson", seed=seed).array("null_mean") for seed in (0, 0, 1)]
    assert torch.equal(tables[0], tables[1]) and not torch.equal(tables[0], tables[2])


def test_random_rotations_are_uniform():
    """E q_ij² = 1/d and E q_ij⁴ = 3/(d (d + 2)), at every place."""
    q = random_rotations(20_000, 4, torch.Generator().manual_seed(0))
    torch.testing.assert_close(q @ q.mT, torch.eye(4).double().expand_as(q))
    assert q.mean(0).abs().max() < 0.02
    torch.testing.assert_close(q.square().mean(0), torch.full((4, 4), 0.25).double(), atol=0.01,
                               rtol=0)  # fmt: skip
    torch.testing.assert_close(q.pow(4).mean(0), torch.full((4, 4), 0.125).double(), atol=0.01,
                               rtol=0)  # fmt: skip
    assert 0.45 < float((torch.linalg.det(q) > 0).double().mean()) < 0.55


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("normalize", [False, True])
def test_intervals_are_those_of_a_jackknife(kind, normalize):
    """Each group left out by hand: second moments of what remains, then the six numbers."""
    model, loader = seeded(mlp), batches(*data())
    moments = layer_moments(model, loader, cross_entropy, groups=True, unit=normalize)
    found = alignment_of(moments, kind, normalize)
    for layer in moments.values():
        rest = [left_out(layer, k, kind, normalize) for k in range(20)]
        value = found[layer.name]
        for s, side in enumerate(ENDS):
            for r, name in enumerate(PAIRS):
                relation = getattr(getattr(value, side), name)
                pseudo = np.array([20 * relation.value - 19 * six[s][r] for six in rest])
                reach = 2.093024 * pseudo.std(ddof=1) / 20**0.5
                ends = np.clip([pseudo.mean() - reach, pseudo.mean() + reach], -1, 1)
                assert (relation.low, relation.high) == pytest.approx(tuple(ends), abs=1e-5)


def left_out(layer, k, kind, normalize):
    """The six alignments without a group, from sums over the 19 others."""
    w = layer.weight.numpy()
    others = [group for j, group in enumerate(layer.groups) if j != k]
    if normalize:
        h_a, h_b, g_a, g_b = (
            pooled([(o.unit.counts[i], o.unit.means[i], getattr(o.unit, side)) for o in others])
            for i, side in enumerate(("H_a", "H_b", "G_a", "G_b"))
        )
    else:
        total = sum(o.count for o in others)
        h_a = sum(o.count * o.H_a.numpy() for o in others) / total
        g_b = sum(o.count * o.G_b.numpy() for o in others) / total
        h_b, g_a = w @ h_a @ w.T, w.T @ g_b @ w
    ends = ((h_b, g_b, w @ w.T), (h_a, g_a, w.T @ w))
    compare = PLAIN[kind]
    return [[compare(h, g), compare(h, z), compare(g, z)] for h, g, z in ends]


def pooled(parts):
    """The covariance of several samples together, from their counts, means and covariances."""
    total = sum(count for count, _, _ in parts)
    mean = sum(count * m.numpy() for count, m, _ in parts) / total
    second = sum(count * (c.numpy() + np.outer(m, m)) for count, m, c in parts) / total
    return second - np.outer(mean, mean)


def test_intervals_cover():
    """At 95 %, over 40 samples of 300 from one population: of 18 numbers all do in most samples.

    The lowest is that of an isotropic H_a, which fluctuates to second order only.
    """
    model = seeded(mlp)

    def sample(count, seed):
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(4, (count,), generator=generator)
        return [(torch.randn(count, 3, generator=generator), labels)]

    population = alignment(model, sample(60_000, 99), cross_entropy, interval=False).array()
    inside, widths = [], []
    for seed in range(40):
        found = alignment(model, sample(300, seed), cross_entropy)
        low, high = found.array("low"), found.array("high")
        inside.append((low <= population) & (population <= high))
        widths.append(high - low)
    assert torch.stack(inside).double().mean(0).min() > 0.7
    assert torch.stack(inside).double().mean() > 0.9
    assert torch.stack(widths).mean(0).max() < 0.2


def test_without_intervals():
    found = alignment(seeded(mlp), batches(*data()), cross_entropy, interval=False)
    assert found.array("low").isnan().all() and found.array().isfinite().all()
    assert "interval" not in str(found)
    few = alignment(seeded(mlp), [data(19)], cross_entropy)
    assert few.array("low").isnan().all()


def test_convolutions_have_intervals_if_asked_for():
    model, loader = seeded(ConvNet), batches(drawn(60, 1, 6, 6), torch.arange(60) % 3)
    assert alignment(model, loader, cross_entropy).array("low").isnan().all()
    found = alignment(model, loader, cross_entropy, interval=True)
    assert (found.array("low") < found.array("high")).all()


def test_a_dead_layer_is_nan_and_says_so():
    model = seeded(mlp)
    with torch.no_grad():
        model[0].bias.fill_(-100.0)  # no unit after it is alive
    with pytest.warns(DegenerateWarning, match="'[02]': a matrix is 0: .* nan") as caught:
        found = alignment(model, batches(*data()), cross_entropy)
    assert any(warning.filename == __file__ for warning in caught)
    assert math.isnan(found["2"].forward.RGA.value) and math.isnan(found["2"].forward.RGA.low)
    assert found.to_dict()["layers"][1]["forward"]["RGA"]["value"] is None
    assert "nan" in str(found) and any("'2': a matrix is 0" in note for note in found.warnings)


def test_a_single_output():
    """A 1×1 matrix is proportional to any other, and its entries do not vary."""
    model, (inputs, _) = seeded(lambda: mlp(outputs=1)), data()
    loader = batches(inputs, torch.rand(200, 1))
    found = alignment(model, loader, functional.mse_loss, "4")["4"].forward
    assert [found.RGA.value, found.RGA.null_mean, found.RGA.null_std] == [1, 1, 0]
    assert math.isnan(found.RGA.deviation)
    with pytest.warns(DegenerateWarning, match="the same in all entries"):
        found = alignment(model, loader, functional.mse_loss, "4", "pearson")["4"].forward
    assert math.isnan(found.RGA.value)


def test_few_rows_are_noted():
    found = alignment(seeded(mlp), [data(10)], cross_entropy)
    assert any("'2': 10 rows for matrices of size 16" in note for note in found.warnings)
    assert not alignment(seeded(mlp), [data(100)], cross_entropy).warnings


def test_the_table():
    model = seeded(mlp)
    found = alignment(model, batches(*data()), cross_entropy)
    assert len(found) == 3 and found[0] is found["0"]
    text, page = str(found), found._repr_html_()
    for layer in found:
        for side in ENDS:
            for name in PAIRS:
                relation = getattr(getattr(layer, side), name)
                assert f"{relation.value:.2f}" in text and f"<td>{relation.value:.2f}" in page
                assert f"{relation.null_mean:.2f}±{relation.null_std:.2f}" in text
    assert len({len(line) for line in text.splitlines()[3:]}) == 1  # columns stand in line
    assert page.count("<tr>") == 5 and "forward" in page and "95 % interval" in page
    with pytest.raises(RichbookError, match="layer: there is no '1', there are 0, 2, 4"):
        found["1"]


def test_dictionary_is_plain_json_and_complete():
    found = alignment(seeded(mlp), batches(*data()), cross_entropy, normalize=True)
    made_ = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert made_["kind"] == "cosine" and made_["normalize"] is True and made_["warnings"] == []
    assert [row["name"] for row in made_["layers"]] == ["0", "2", "4"]
    for row, layer in zip(made_["layers"], found, strict=True):
        for side in ENDS:
            assert list(row[side]) == ["RGA", "RWA", "GWA"]
            for name, relation in row[side].items():
                expected = getattr(getattr(layer, side), name)
                assert relation == vars(expected)
        assert row["count"] == 200 and row["width"] == layer.width
    array = found.array()
    assert array.shape == (3, 2, 3) and array[1, 1, 2] == found["2"].backward.GWA.value


def test_names_are_escaped():
    model = nn.Sequential()
    model.add_module("<b>", seeded(lambda: nn.Linear(3, 4)))
    page = alignment(model, [data()], cross_entropy)._repr_html_()
    assert "&lt;b&gt;" in page and "<b>" not in page


WRONG = {
    "kind": ({"kind": "angle"}, "kind: expected 'cosine' or 'pearson', got 'angle'"),
    "layers": ({"layers": ["9"]}, "layers: the model has no module '9'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors(case):
    settings, message = WRONG[case]
    with pytest.raises(RichbookError, match=message):
        alignment(seeded(mlp), batches(*data()), cross_entropy, **settings)


def test_errors_of_moments():
    moments = layer_moments(seeded(mlp), batches(*data()), cross_entropy)
    with pytest.raises(RichbookError, match="moments: those of '0' hold no directions"):
        alignment_of(moments, normalize=True)
    with pytest.raises(RichbookError, match="moments: expected a LayerMoments"):
        alignment_of([3])
    with pytest.raises(RichbookError, match="kind"):
        alignment_of(moments, "angle")


def test_moments_come_one_or_several_at_a_time():
    moments = layer_moments(seeded(mlp), batches(*data()), cross_entropy)
    every = alignment_of(moments).array()
    torch.testing.assert_close(alignment_of(list(moments.values())).array(), every)
    torch.testing.assert_close(alignment_of(moments["2"]).array(), every[1:2])
    torch.testing.assert_close(
        alignment(seeded(mlp), batches(*data()), cross_entropy, interval=False).array(), every
    )
    centred = alignment_of(moments["2"].centred())["2"].forward.RGA.value
    layer = moments["2"]
    own = [layer.H_b - torch.outer(layer.mean_h_b, layer.mean_h_b),
           layer.G_b - torch.outer(layer.mean_g_b, layer.mean_g_b)]  # fmt: skip
    assert centred == pytest.approx(plain_cosine(*(matrix.numpy() for matrix in own)), abs=1e-9)


def test_similarity_of_stacks():
    """Over leading dimensions, as for the draws of the null."""
    rng = np.random.default_rng(0)
    stack = np.stack([random_spectrum(rng, 5) for _ in range(3)])
    for kind, plain in PLAIN.items():
        found = similarity(torch.tensor(stack), torch.tensor(stack[0]), kind)
        np.testing.assert_allclose(found, [plain(part, stack[0]) for part in stack], rtol=1e-12)


def test_a_trained_layer_lies_outside_the_null():
    """A small tanh network with weight decay: the hidden layer aligns, and a fresh one does not."""
    inputs, targets = drawn(400, 8), None
    targets = (inputs[:, :3] @ drawn(3, 4, seed=5)).argmax(1)
    model = seeded(lambda: nn.Sequential(
        nn.Linear(8, 12, False), nn.Tanh(), nn.Linear(12, 12, False), nn.Tanh(),
        nn.Linear(12, 4, False)))  # fmt: skip
    loader = batches(inputs, targets, size=400)
    before = alignment(model, loader, cross_entropy)["2"]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.2, weight_decay=0.01)
    generator = torch.Generator().manual_seed(0)
    for _ in range(1000):
        some = torch.randint(400, (16,), generator=generator)
        optimiser.zero_grad()
        cross_entropy(model(inputs[some]), targets[some]).backward()
        optimiser.step()
    after = alignment(model, loader, cross_entropy)["2"]
    for side in ENDS:
        for name in PAIRS:
            relation, fresh = getattr(getattr(after, side), name), getattr(before, side)
            assert relation.value > 0.7 and relation.deviation > 5, (side, name)
            assert getattr(fresh, name).deviation < relation.deviation


def test_reference_is_sound():
    """The reference's second moments are those of its rows (a guard against empty rows)."""
    rows = rows_one_at_a_time(seeded(mlp), *data(5), cross_entropy, ["2"])["2"]
    assert rows["h_a"].shape == (5, 16) and second_moments(rows)["H_a"].trace() > 0
