"""A network with default options, trained at one resolution, works at twice the resolution."""

import torch
import torch.nn.functional as F

from flexconv import at_resolution, create_model
from flexconv.data import load
from flexconv.spectrum import alias_report


def test_default_network_keeps_its_accuracy_at_twice_the_resolution():
    torch.manual_seed(0)
    digits = load("digits").at_resolution((16, 16))
    x, y = digits.train.inputs[:800].float(), digits.train.labels[:800]
    test, labels = digits.test.inputs.float(), digits.test.labels
    mean, std = x.mean(), x.std()
    model = create_model("flexnet3", in_channels=1, num_classes=10, image_size=16, widths=[8, 8, 8])
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.05)
    for epoch in range(12):
        for batch in torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch)).split(40):
            optimizer.zero_grad()
            F.cross_entropy(model((x[batch] - mean) / std), y[batch]).backward()
            optimizer.step()
    model.eval()
    finer = F.interpolate(test, scale_factor=2, mode="bilinear", align_corners=False)
    with torch.no_grad():
        here = (model((test - mean) / std).argmax(1) == labels).float().mean().item()
        there = (at_resolution(model, 2)((finer - mean) / std).argmax(1) == labels).float().mean().item()
    assert here > 0.9
    assert there > here - 0.1  # 2 to 10 points between seeds; networks that alias lose 50 and more
    assert alias_report(model, [2.0, 2.0]).band_limited
