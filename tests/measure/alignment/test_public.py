"""Whatever the public functions hand out can be imported, for annotations and isinstance."""

import dataclasses
import importlib
import re

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tests.measure.capture.networks import drawn, mlp, seeded

measure = importlib.import_module("richbook.measure")  # the package also has such a function


def results():
    """One of everything that the functions of alignment return."""
    model, loader = seeded(mlp), [(drawn(60, 3), torch.arange(60) % 4)]
    moments = measure.layer_moments(model, loader, cross_entropy, unit=True, groups=True)
    balance = measure.Balance(model, cross_entropy, 0.1, 0.01, 4)
    for _ in range(2):
        balance.update(*loader[0])
    found = {"moments": moments, "balance": balance.result(), "nfa": measure.nfa(model, loader)}
    found["alignment"] = measure.alignment(model, loader, cross_entropy)
    found["exponents"] = measure.exponents(moments["2"], seed=0)
    found["phase"] = measure.classify_phase(found["exponents"])
    found["predicted"] = measure.predicted_exponents("GWA", "RWA")
    found["similarity"] = measure.layer_similarity(model, loader)
    return found


def classes_in(value, seen: set) -> set:
    """The classes of ours that a result is made of."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for part in value:
            classes_in(part, seen)
    elif dataclasses.is_dataclass(value) and not isinstance(value, (type, Tensor)):
        seen.add(type(value).__name__)
        for field in dataclasses.fields(value):
            classes_in(getattr(value, field.name), seen)
    return seen


@pytest.mark.filterwarnings("ignore")
def test_classes_of_results_are_public():
    found = classes_in(results(), set())
    assert {"PowerLaw", "SideBalance", "Side", "UnitMoments", "FeatureAnsatz"} <= found
    assert sorted(name for name in found if name not in measure.__all__) == []
    assert all(isinstance(getattr(measure, name), type) for name in found)


def test_annotations_of_public_functions_name_public_classes():
    for name in measure.__all__:
        function = getattr(measure, name)
        ours = function.__module__.startswith("richbook.measure.alignment")
        if isinstance(function, type) or not ours:
            continue
        made = function.__annotations__["return"]
        words = re.findall(r"[A-Z]\w+", made)
        assert set(words) <= {*measure.__all__, "Tensor", "None"}, (name, made)
