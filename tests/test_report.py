"""What a run says of itself: the statistics of a group."""

import torch

import report
from config import Config


def test_statistics_of_a_group():
    a, b = "<answer> 4 </answer>", "<answer> 5 </answer>"
    assert report.tells_apart([a, a, b], torch.tensor([0.1, 0.8, 0.0]))
    assert not report.tells_apart([a, a, b], torch.tensor([0.8, 0.8, 0.0]))
    assert not report.tells_apart(["no answer", "none"], torch.tensor([0.1, 0.2]))
    correct = torch.tensor([True, True, False, False])
    assert report.inversions(correct, torch.tensor([1.0, -0.1, 0.0, 0.1])) == 0.5
    assert report.inversions(torch.tensor([True, True]), torch.tensor([1.0, 1.0])) == 0.0


def test_the_progress_bar_shows_the_tokens_a_second_of_all_ranks():
    row = {"reward": 0.5, "accuracy": 1.0, "look_share": 0.25, "kl": 0.0, "response_length": 12.5,
           "seconds": {"sample": 0.5, "judge": 0.25, "learn": 0.25}}  # fmt: skip
    shown = report.progress(row, Config(group_size=8, prompts_per_step=3))
    assert shown == {"reward": "0.50", "accuracy": "1.00", "look_share": "0.25", "kl": "0.00", "tokens/s": "300"}
