"""Adam with split parameters equals torch's."""

import copy
import math

import pytest
import torch
from torch import nn

from flexconv._fast.adam import PIECE, PIECES, FusedAdam, _split

OPTIONS = {"lr": 0.125, "betas": (0.8, 0.95)}


def parameters():
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape)) for shape in [(3,), (37, 400), (PIECE * PIECES + 5,), (7, 5000)]]


def give_gradients(first, second):
    for mine, yours in zip(first, second, strict=True):
        mine.grad = torch.randn_like(mine)
        yours.grad = mine.grad.clone()
    transposed = torch.randn_like(first[-1].t()).t()  # not contiguous
    first[-1].grad, second[-1].grad = transposed, transposed.clone()


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("capturable", [False, True])
def test_steps_equal_those_of_torch(weight_decay, capturable):
    whole, cut, unused = parameters(), parameters(), nn.Parameter(torch.ones(2))
    cls = torch.optim.AdamW if weight_decay else torch.optim.Adam
    theirs = cls(whole, **OPTIONS, weight_decay=weight_decay, fused=True)
    groups = [{"params": [*cut, unused], "weight_decay": weight_decay}]
    ours = FusedAdam(groups, **OPTIONS, decoupled_weight_decay=weight_decay > 0)
    ours.param_groups[0] |= {"capturable": capturable, "lr": torch.tensor(OPTIONS["lr"])}
    seen = []
    ours.register_step_post_hook(lambda *_: seen.append(1))
    for _ in range(3):
        give_gradients(whole, cut)
        theirs.step()
        ours.step()
    assert len(seen) == 3
    assert unused not in ours.state
    for mine, yours in zip(cut, whole, strict=True):
        assert torch.equal(mine, yours)
        assert ours.state[mine].keys() == theirs.state[yours].keys()
        for name, value in theirs.state[yours].items():
            assert torch.equal(ours.state[mine][name], value)
    assert ours.state_dict()["param_groups"][0].keys() == theirs.state_dict()["param_groups"][0].keys()


@pytest.mark.parametrize(
    ("count", "pieces"), [(PIECE, 1), (PIECE + 1, 2), (73_728, 18), (PIECE * PIECES, 36), (1_000_000, 35)]
)
def test_splits_a_parameter_for_one_launch(count, pieces):
    cut = list(_split([torch.zeros(count), torch.ones(count)]))
    assert len(cut) == pieces <= PIECES
    assert sum(len(first) for first, _ in cut) == sum(len(second) for _, second in cut) == count


def test_skips_steps_with_infinite_gradients():
    parameter = nn.Parameter(torch.ones(2 * PIECE))
    optimizer = FusedAdam([parameter], **OPTIONS, decoupled_weight_decay=False)
    optimizer.param_groups[0]["capturable"] = True
    scaler = torch.amp.GradScaler("cpu")
    for factor, steps in ((1.0, 1), (math.inf, 1), (1.0, 2)):
        optimizer.zero_grad()
        scaler.scale((factor * parameter).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert optimizer.state[parameter]["step"] == steps
        assert torch.allclose(parameter, torch.tensor(1 - OPTIONS["lr"] * steps))


def test_resumes_torch_adam_state():
    whole, cut = parameters(), parameters()
    theirs = torch.optim.Adam(whole, **OPTIONS)
    ours = FusedAdam(cut, **OPTIONS, decoupled_weight_decay=False)
    give_gradients(whole, cut)
    theirs.step()
    saved = copy.deepcopy(theirs.state_dict())
    ours.load_state_dict(saved)
    assert ours.param_groups[0]["fused"]  # so that step counts follow their parameters to a GPU
    assert not saved["param_groups"][0]["fused"]
    with torch.no_grad():
        for mine, yours in zip(cut, whole, strict=True):
            mine.copy_(yours)
    give_gradients(whole, cut)
    theirs.step()
    ours.step()
    for mine, yours in zip(cut, whole, strict=True):
        torch.testing.assert_close(mine, yours)
        assert ours.state[mine]["step"] == 2
