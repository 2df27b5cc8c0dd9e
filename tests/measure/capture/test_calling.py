"""A batch that the model's forward does not take, and the model's own errors."""

import functools

import pytest
import torch
from torch import nn

from richbook.measure import RichbookError
from richbook.measure.capture import ForwardPasses
from tests.measure.capture.networks import drawn, mlp, seeded

INPUTS, LABELS = drawn(6, 3), torch.arange(6) % 4


class Net(nn.Module):
    """Takes one tensor of numbers, and a switch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, pixels, *, flip=False):
        return self.net(-pixels if flip else pixels)


class WithLoss(Net):
    """Cannot do without labels."""

    def forward(self, pixels, labels):
        return nn.functional.cross_entropy(self.net(pixels), labels)


REFUSED = {
    "no such key": (
        Net, {"image": INPUTS, "label": LABELS},
        "Net.forward does not take a batch: missing a required argument: 'pixels'; passed were "
        "'image'; 'label' was taken out for the targets",
    ),
    "one key too many": (
        Net, {"pixels": INPUTS, "idx": LABELS},
        "Net.forward does not take a batch: got an unexpected keyword argument 'idx'; passed were "
        "'pixels', 'idx'",
    ),
    "labels needed": (
        WithLoss, {"pixels": INPUTS, "labels": LABELS},
        "WithLoss.forward does not take a batch: missing a required argument: 'labels'; passed "
        "were 'pixels'; 'labels' was taken out for the targets: wrap the model in one whose "
        "forward does without",
    ),
    "labels needed, in a tuple": (
        WithLoss, (INPUTS, LABELS),
        "WithLoss.forward does not take a batch: missing a required argument: 'labels'; passed "
        "were 1 by place; the last part of the tuple was taken for the targets",
    ),
    "too many in a tuple": (
        Net, (INPUTS, INPUTS, LABELS),
        "Net.forward does not take a batch: too many positional arguments; passed were 2 by place; "
        "the last part of the tuple was taken for the targets",
    ),
    "labels alone": (
        Net, {"labels": LABELS},
        "Net.forward does not take a batch: missing a required argument: 'pixels'; passed were "
        "no arguments; 'labels' was taken out",
    ),
}  # fmt: skip


@pytest.mark.parametrize("head", [None, "net.4"])
@pytest.mark.parametrize("case", REFUSED)
def test_what_forward_does_not_take(case, head):
    make, batch, told = REFUSED[case]
    with pytest.raises(RichbookError) as caught:
        list(ForwardPasses(seeded(make), [batch], head=head))
    assert str(caught.value).startswith(f"loader: {told}")


def test_the_models_own_errors_are_left_as_they_are():
    class Wrong(Net):
        def forward(self, pixels):
            return self.net(pixels, 3)

    class NotANumber(Net):
        def forward(self, pixels):
            return self.net(pixels + None)

    for make, told in ((Wrong, "takes 2 positional arg"), (NotANumber, "unsupported operand")):
        with pytest.raises(TypeError, match=told):
            list(ForwardPasses(seeded(make), [INPUTS]))


def test_forwards_that_others_wrap():
    """What wrappers and hooks make of the arguments is their business: the call decides."""
    plain = Net.forward

    def with_hook(model):
        model.register_forward_pre_hook(lambda module, args: args[:1])

    def with_any(model):
        model.forward = lambda *args: plain(model, args[0])

    def with_a_name_that_is_not_its_own(model):
        model.forward = functools.wraps(plain)(lambda x, *more: plain(model, x))

    wanted = next(iter(ForwardPasses(seeded(Net), [INPUTS]))).outputs
    for change in (with_hook, with_any, with_a_name_that_is_not_its_own):
        model = seeded(Net)
        change(model)
        (batch,) = ForwardPasses(model, [(INPUTS, INPUTS, LABELS)])
        torch.testing.assert_close(batch.outputs, wanted)


def test_what_python_said_is_kept():
    with pytest.raises(RichbookError) as caught:
        list(ForwardPasses(seeded(Net), [{"image": INPUTS}]))
    assert isinstance(caught.value.__cause__, TypeError)
