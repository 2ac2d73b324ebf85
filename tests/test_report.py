"""What a run says of itself: the statistics of a group."""

import torch

import report


def test_statistics_of_a_group():
    a, b = "<answer> 4 </answer>", "<answer> 5 </answer>"
    assert report.tells_apart([a, a, b], torch.tensor([0.1, 0.8, 0.0]))
    assert not report.tells_apart([a, a, b], torch.tensor([0.8, 0.8, 0.0]))
    assert not report.tells_apart(["no answer", "none"], torch.tensor([0.1, 0.2]))
    correct = torch.tensor([True, True, False, False])
    assert report.inversions(correct, torch.tensor([1.0, -0.1, 0.0, 0.1])) == 0.5
    assert report.inversions(torch.tensor([True, True]), torch.tensor([1.0, 1.0])) == 0.0
