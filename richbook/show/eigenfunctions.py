"""A plot of a kernel's eigenfunctions: which classes, or which images, each responds to."""

from numbers import Integral

import numpy as np
from matplotlib.axes import Axes

from richbook.measure.errors import RichbookError
from richbook.show.canvas import get_axes, signed_image, text_color, to_array


def plot_eigenfunctions(
    values,
    labels=None,
    images=None,
    count: int = 5,
    ax: Axes | None = None,
) -> Axes:
    """Draw the first few eigenfunctions so that one sees what they respond to.

    With `images`, a row for each eigenfunction: the four images on which it is most negative, and
    the four on which it is most positive. With `labels`, a row for each eigenfunction and a column
    for each class: its mean there, and at the end of the row the share of its variance that lies
    between the classes (1 if it is the same on all samples of a class).

    The sign of an eigenfunction means nothing; it is chosen so that the largest part is positive.

    Args:
        values: of the eigenfunctions at the samples, shape (n, p), as
            `FeatureKernel.eigenfunctions` returns them.
        labels: the class of each sample, shape (n,).
        images: one for each sample, shape (n, height, width).
        count: how many eigenfunctions to draw, at least 1; all if there are fewer.
        ax: an Axes, or None for a new figure.

    Returns:
        The Axes.

    Raises:
        RichbookError: if neither or both of `labels` and `images` are given, shapes disagree, or
            `count` is not a whole number of at least 1.

    Example:
        >>> axes = plot_eigenfunctions([[1.0, 1.0], [1.0, -1.0]], labels=[0, 1])
        >>> axes.get_xlabel()
        'class'
    """
    values = to_array(values, "values")
    if values.ndim != 2:
        raise RichbookError(f"values must have shape (n, p), not {values.shape}")
    if (labels is None) == (images is None):
        raise RichbookError("give either labels or images, to say what a column is")
    if not isinstance(count, Integral) or count < 1:
        raise RichbookError(f"count must be a whole number of at least 1, not {count!r}")
    count = min(count, values.shape[1])
    values = values[:, :count]
    values = values * np.where(values.max(0) >= -values.min(0), 1.0, -1.0)
    other = np.asarray(labels).ravel() if images is None else to_array(images, "images")
    name = "labels" if images is None else "images"
    if len(other) != len(values):
        raise RichbookError(f"{name} must have n = {len(values)} entries, not {len(other)}")
    if images is not None and other.ndim != 3:
        raise RichbookError(f"images must have shape (n, height, width), not {other.shape}")
    ax = get_axes(ax)
    draw = _draw_class_means if images is None else _draw_extreme_images
    draw(ax, values, other)
    ax.set_yticks(ax.get_yticks(), [f"$e_{{{k + 1}}}$" for k in range(count)])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_ylabel("eigenfunction")
    return ax


def _draw_class_means(ax: Axes, values: np.ndarray, labels: np.ndarray) -> None:
    """Draw the class means of each eigenfunction, with the share of variance they explain."""
    classes, index, counts = np.unique(labels, return_inverse=True, return_counts=True)
    means = np.stack([values[index == c].mean(0) for c in range(len(classes))])  # (C, count)
    between = (counts[:, None] * (means - values.mean(0)) ** 2).sum(0) / len(values)
    image = signed_image(ax, means.T, aspect="auto")
    for (k, column), value in np.ndenumerate(means.T):
        ax.text(
            column,
            k,
            f"{round(value, 1) + 0.0:.1f}",
            ha="center",
            va="center",
            fontsize=10,
            color=text_color(image.to_rgba(value)),
        )
    for k, share in enumerate(between / np.maximum(values.var(0), 1e-300)):
        text = f"{share:.2f}" if values[:, k].std() > 1e-6 else "constant"
        ax.annotate(
            text,
            (1, k),
            xycoords=("axes fraction", "data"),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=10,
        )
    ax.annotate(
        "share between\nclasses",
        (1, 1),
        xycoords="axes fraction",
        xytext=(8, 4),
        textcoords="offset points",
        va="bottom",
        fontsize=9,
    )
    ax.set_xticks(range(len(classes)), [str(c) for c in classes])
    ax.set_yticks(range(values.shape[1]))
    ax.set_xlabel("class")
    ax.set_title("mean of $e_k$ on each class", fontsize=10.5)


def _draw_extreme_images(ax: Axes, values: np.ndarray, images: np.ndarray, each: int = 4) -> None:
    """Draw, for each eigenfunction, the images at which it is smallest and largest."""
    height, width = images.shape[1:]
    each = min(each, max(1, len(images) // 2))
    gap = max(1, width // 6)
    low, high = images.min(), images.max()
    rows, columns = values.shape[1], 2 * each
    canvas = np.full((rows * (height + gap), columns * (width + gap) + 3 * gap), np.nan)
    lefts = [c * (width + gap) + (3 * gap if c >= each else 0) for c in range(columns)]
    for k in range(rows):
        order = np.argsort(values[:, k], kind="stable")
        chosen = np.concatenate([order[:each], order[-each:]])
        for left, sample in zip(lefts, chosen, strict=True):
            top = k * (height + gap)
            canvas[top : top + height, left : left + width] = images[sample]
    ax.imshow(canvas, cmap="Greys", vmin=low, vmax=high)
    ax.set_yticks([k * (height + gap) + (height - 1) / 2 for k in range(rows)])
    half = (each * (width + gap) - gap - 1) / 2
    ax.set_xticks([half, lefts[each] + half], ["most negative", "most positive"])
