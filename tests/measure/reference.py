"""The definitions of the measures, spelled out with n×n matrices in float64.

Slow on purpose, and written without the package. A function is a column of its values at the n
samples, ⟨f|g⟩ is the mean of f·g, and an operator on functions is an n×n matrix. Ranks are stated
by the caller, who made the data, and never found by a tolerance.
"""

import numpy as np
import pytest
import torch


def array(values):
    """Any tensor as a float64 numpy array."""
    return torch.as_tensor(values).detach().cpu().double().numpy()


def put(device, values, dtype=torch.float64):
    """Numbers as a tensor of ``dtype`` on ``device``."""
    if torch.device(device).type == "mps" and dtype == torch.float64:
        pytest.skip("mps has no float64")
    return torch.as_tensor(np.asarray(values)).to(dtype).to(device)


def problem(seed, n=60, p=8, c=4, offset=0.5):
    """Features (n, p) with a falling spectrum and an offset, and c outputs they express in part."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, p)) * np.geomspace(1, 0.1, p) @ rng.normal(size=(p, p)) + offset
    outputs = features @ rng.normal(size=(p, c)) + rng.normal(size=(n, c)) + offset
    return features, outputs


def zero_sum(outputs):
    return outputs - outputs.mean(1, keepdims=True)


def softmax(logits):
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def orthogonal(rng, size):
    return np.linalg.qr(rng.normal(size=(size, size)))[0]


def invertible(rng, size, condition):
    """A random matrix whose singular values run from 1 down to 1/condition."""
    return orthogonal(rng, size) * np.geomspace(1, 1 / condition, size) @ orthogonal(rng, size)


def kernel(features):
    """T = Σ_k |Φ_k⟩⟨Φ_k|."""
    features = array(features)
    return features @ features.T / len(features)


def constant_projector(n):
    """|1⟩⟨1|."""
    return np.ones((n, n)) / n


def span_projector(outputs, rank):
    """P_Ĥ, from the ``rank`` leading left singular vectors of the outputs, not centred."""
    basis = np.linalg.svd(array(outputs), full_matrices=False)[0][:, :rank]
    return basis @ basis.T


def minimum_projection(outputs, rank, a1=1.0, a2=1.0):
    """T_MP = a1 |1⟩⟨1| + a2 P_Ĥ."""
    return a1 * constant_projector(len(outputs)) + a2 * span_projector(outputs, rank)


def centred(operator):
    """c(A) = (I − |1⟩⟨1|) A (I − |1⟩⟨1|)."""
    rest = np.eye(len(operator)) - constant_projector(len(operator))
    return rest @ operator @ rest


def operator_cka(a, b):
    """Tr(c(A) c(B)) / (‖c(A)‖_F ‖c(B)‖_F)."""
    a, b = centred(a), centred(b)
    return np.trace(a @ b) / (np.linalg.norm(a) * np.linalg.norm(b))


def d_lr(features, outputs, rank, a1=1.0, a2=1.0):
    """1 − CKA(T, T_MP)."""
    return 1 - operator_cka(kernel(features), minimum_projection(outputs, rank, a1, a2))


def d_lr_of_centred_outputs(features, outputs, rank):
    """What one gets by projecting on the span of the centred outputs: not the definition."""
    outputs = array(outputs)
    return d_lr(features, outputs - outputs.mean(0), rank)


def cka(features_a, features_b):
    """HSIC(K, L) / √(HSIC(K, K) HSIC(L, L))."""

    def hsic(k, l_):
        rest = np.eye(len(k)) - constant_projector(len(k))
        return np.trace(k @ rest @ l_ @ rest)

    k, l_ = kernel(features_a), kernel(features_b)
    return hsic(k, l_) / np.sqrt(hsic(k, k) * hsic(l_, l_))


def eigenpairs(operator, count):
    """The ``count`` largest eigenvalues, and the eigenfunctions with E[e²] = 1 as columns."""
    values, vectors = np.linalg.eigh(operator)
    return values[::-1][:count], vectors[:, ::-1][:, :count] * np.sqrt(len(operator))


def utilization(features, outputs, rank, count):
    """u_k = ‖P_Ĥ e_k‖² for the ``count`` leading eigenfunctions of c(T), and Tr c(P_Ĥ)."""
    projector = span_projector(outputs, rank)
    _, functions = eigenpairs(centred(kernel(features)), count)
    images = projector @ functions
    return (images**2).mean(0), np.trace(centred(projector))


def nc1(features, labels):
    """Tr(Σ_W Σ_B⁺)/C, sample by sample and class by class."""
    features, labels = array(features), np.asarray(labels)
    classes = sorted(set(labels.tolist()))
    means = {label: features[labels == label].mean(0) for label in classes}
    centre = sum(means.values()) / len(classes)
    width = features.shape[1]
    within, between = np.zeros((width, width)), np.zeros((width, width))
    for row, label in zip(features, labels.tolist(), strict=True):
        within += np.outer(row - means[label], row - means[label]) / len(features)
    for mean in means.values():
        between += np.outer(mean - centre, mean - centre) / len(classes)
    return np.trace(within @ np.linalg.pinv(between, rcond=1e-10, hermitian=True)) / len(classes)
