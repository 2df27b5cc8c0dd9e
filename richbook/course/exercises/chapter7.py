"""Checks of chapter 7: learning by heart, following a code, and a rich shortcut."""

import torch

from richbook.course.checking import Wrong, as_tensor, close, exercise, require
from richbook.measure import d_lr


@exercise("7.1", "by_heart(clean, share, classes)")
def by_heart(answer, generator):
    """Equal to the sum over every digit that the neighbour may show and every label it may have."""
    for classes in (3, 4, 10):
        drawn = torch.rand(2, generator=generator, dtype=torch.float64)
        clean, share = (0.3 + 0.5 * drawn).tolist()
        value = as_tensor(answer(clean, share, classes), "the accuracy", ())
        expected = _summed(clean, share, classes, generator)
        require(
            close(value, expected, 1e-5),
            f"with accuracy {clean:.3f} on clean labels, {share:.3f} of the labels replaced and "
            f"{classes} classes, the sum over all digits and labels of the neighbour is "
            f"{float(expected):.4f}, you say {float(value):.4f}. Which ways lead to the right "
            "answer, and how many wrong classes are there?",
        )


def _summed(clean: float, share: float, classes: int, generator: torch.Generator) -> torch.Tensor:
    """Probability that the neighbour's label is the wanted class, which is 0."""
    shown = torch.rand(classes, generator=generator, dtype=torch.float64)
    shown[0] = 0.0
    shown *= (1 - clean) / shown.sum()  # other digits, in any proportion
    shown[0] = clean
    label = torch.full((classes, classes), share / (classes - 1), dtype=torch.float64)
    label.fill_diagonal_(1 - share)  # row: the digit that is shown
    return (shown @ label)[0]


@exercise("7.2", "follows(network, images, digits, codes)")
def follows(answer, generator):
    """Right for answers that follow the code, the digit, or neither, in known shares."""
    classes, count = 6, 400
    digits, codes = torch.randint(classes, (2, count), generator=generator)
    given = torch.randint(classes, (count,), generator=generator)
    pick = torch.rand(count, generator=generator)
    given = torch.where(pick < 0.5, codes, torch.where(pick < 0.7, digits, given))
    images = torch.nn.functional.one_hot(given, classes).float()

    def network(batch):
        return 2 * batch - 1

    apart = digits != codes
    code, digit = (given == codes)[apart].double().mean(), (given == digits)[apart].double().mean()
    expected = torch.stack([code, digit, 1 - code - digit])
    value = as_tensor(answer(network, images, digits, codes), "the shares", (3,))
    require(close(value.sum(), 1.0), "the three shares should add up to 1")
    require(
        close(value, expected, 1e-5),
        f"expected {[round(x, 3) for x in expected.tolist()]}, got "
        f"{[round(x, 3) for x in value.tolist()]}, for code, digit, neither. Are images left out "
        "on which code and digit are the same?",
    )


@exercise("7.3", "shortcut(train_classes, test_classes, test_codes, classes)")
def shortcut(answer, generator):
    """D_LR 0 on training samples of unequal classes, one linear map, the code on test samples."""
    for classes in (3, 5):
        counts = torch.randint(10, 60, (classes,), generator=generator)
        train = torch.arange(classes).repeat_interleave(counts)
        test, codes = torch.randint(classes, (2, 100), generator=generator)
        found = answer(train, test, codes, classes)
        if not (isinstance(found, tuple | list) and len(found) == 4):
            raise Wrong("expected four tensors: features, outputs, test features, test outputs")
        names = ("features", "outputs", "test features", "test outputs")
        values = [as_tensor(each, name) for each, name in zip(found, names, strict=True)]
        for value, name, rows in zip(values, names, (len(train),) * 2 + (100,) * 2, strict=True):
            require(value.ndim == 2 and len(value) == rows, f"expected {name} with {rows} rows")
        features, outputs, test_features, test_outputs = values
        _check_linear(features, outputs, test_features, test_outputs)
        require(bool((outputs.argmax(1) == train).all()), "training outputs should name the class")
        require(bool((test_outputs.argmax(1) == codes).all()), "test outputs should name the code")
        value = float(d_lr(features, outputs))
        require(
            value < 1e-8,
            f"with {counts.tolist()} samples a class D_LR is {value:.4f} and not 0. What must "
            "E[ΦΦᵀ] be for T to be a projection?",
        )


def _check_linear(features, outputs, test_features, test_outputs):
    """One affine map must take features to outputs, on both sets of samples."""
    rows, answers = torch.cat([features, test_features]), torch.cat([outputs, test_outputs])
    rows = torch.cat([rows, torch.ones(len(rows), 1, dtype=torch.float64)], dim=1)
    fitted = rows @ torch.linalg.lstsq(rows, answers, driver="gelsd").solution
    require(
        close(fitted, answers, 1e-6),
        "the outputs are not one linear map of the features, the same on training and test samples",
    )
