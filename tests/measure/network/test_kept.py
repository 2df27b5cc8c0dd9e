"""The kept part of a stream: as many rows as it may, each as likely, whatever the blocks."""

import torch

from richbook.measure.network.kept import Kept


def kept_of(blocks, capacity, seed=0):
    kept = Kept(capacity, seed)
    for block in blocks:
        kept.add(values=block, doubled=2 * block)
    return kept.rows()


def test_cuts_do_not_matter_and_rows_stay_together_and_in_order():
    stream = torch.arange(1000)
    found = kept_of([stream], 50)
    for cut in (1, 49, 333):
        again = kept_of(stream.split(cut), 50)
        assert torch.equal(found["values"], again["values"])
    assert torch.equal(found["doubled"], 2 * found["values"])
    assert torch.equal(found["values"], found["values"].sort().values)
    assert len(found["values"].unique()) == 50


def test_all_rows_of_a_short_stream():
    assert kept_of(torch.arange(20).split(6), 50)["values"].tolist() == list(range(20))


def test_each_row_is_as_likely():
    """Of 100 rows, 10 are kept, 2000 times: each row 200 times, give or take 5 standard errors."""
    counts = torch.zeros(100)
    for seed in range(2000):
        counts[kept_of(torch.arange(100).split(30), 10, seed)["values"]] += 1
    assert (counts - 200).abs().max() < 5 * (2000 * 0.1 * 0.9) ** 0.5


def test_nothing_yet():
    assert Kept(5).rows() == {}
