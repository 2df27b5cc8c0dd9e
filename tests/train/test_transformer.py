"""The transformer against attention written out with loops, and what it promises."""

import pytest
import torch

from richbook.train.transformer import Block, Transformer


def attention_by_hand(block, stream):
    """One sample (tokens, width), one head and one position at a time."""
    normed = block.norm_attention(stream)
    query, (key, value) = block.query(normed), block.key_value(normed).chunk(2, dim=-1)
    size = stream.shape[1] // block.heads
    rows = []
    for position in range(len(stream)):
        parts = []
        for head in range(block.heads):
            part = slice(head * size, (head + 1) * size)
            scores = [
                query[position, part] @ key[other, part] / size**0.5
                for other in range(position + 1)
            ]
            weights = torch.softmax(torch.stack(scores), 0)
            parts.append(sum(w * value[i, part] for i, w in enumerate(weights)))
        rows.append(torch.cat(parts))
    stream = stream + block.mix(torch.stack(rows))
    return stream + block.perceptron(block.norm_perceptron(stream))


@pytest.fixture
def block():
    torch.manual_seed(0)
    return Block(12, heads=3).double()


@torch.no_grad()
def test_a_block_is_causal_attention(block):
    streams = torch.randn(4, 5, 12, dtype=torch.float64)
    expected = torch.stack([attention_by_hand(block, stream) for stream in streams])
    torch.testing.assert_close(block(streams), expected)
    torch.testing.assert_close(block(streams, last_only=True), expected[:, -1:])


def test_the_module_is_the_head_of_its_features():
    network = Transformer(8, 3, 7, width=16, heads=2)
    tokens = torch.randint(8, (6, 3))
    torch.testing.assert_close(network(tokens), network.head(network.features(tokens)))


def test_the_final_norm_can_be_left_out():
    tokens = torch.randint(8, (6, 3))
    normed = Transformer(8, 3, 7, width=16, heads=2).features(tokens)
    bare = Transformer(8, 3, 7, width=16, heads=2, final_norm=False).features(tokens)
    torch.testing.assert_close(torch.nn.functional.layer_norm(bare, (16,)), normed)
    assert bare.std().item() < 0.7


def test_weights_depend_on_the_seed_alone():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, again, other = (Transformer(8, 3, 7, width=16, heads=2, seed=s) for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    for name, each in first.state_dict().items():
        assert torch.equal(each, again.state_dict()[name])
    assert not torch.equal(first.embedding.weight, other.embedding.weight)


def test_blocks_can_start_larger():
    plain, large = (Transformer(8, 3, 7, width=16, heads=2, block_scale=b) for b in (1.0, 2.0))
    for name, each in plain.state_dict().items():
        factor = 2 if name.startswith("blocks") and each.ndim == 2 else 1
        torch.testing.assert_close(large.state_dict()[name], factor * each, msg=name)


def test_every_parameter_learns(device):
    network = Transformer(8, 3, 7, width=16, heads=2).to(device)
    tokens = torch.randint(8, (6, 3), device=device)
    network(tokens).square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None and bool((parameter.grad != 0).any()), name
