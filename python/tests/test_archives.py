"""Archives of torch.export without torch: NumPy arrays in and out."""

import numpy as np
import pytest
import torch

import ferroflux


@pytest.fixture
def archive(tmp_path):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)

        def forward(self, x, n: int):
            return self.layer(x) * n, x + 1

    path = tmp_path / "net.pt2"
    net = Net()
    torch.export.save(torch.export.export(net, (torch.randn(3, 4), 2)), path)
    return net, path


def test_numpy_and_torch(archive):
    net, path = archive
    model = ferroflux.load(path)
    x = torch.randn(3, 4)
    expected = net(x, 2)[0].detach().numpy()
    y, z = model(x.numpy(), 2)
    assert isinstance(y, np.ndarray)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    assert isinstance(model(x, 2)[0], torch.Tensor)
    assert [name for name, _ in model.inputs] == ["x", "n"]
    assert "aten.linear" in model.code and "<svg" in model._repr_html_()


def test_wrong_inputs_and_files(archive):
    _, path = archive
    model = ferroflux.load(path)
    with pytest.raises(ferroflux.Error, match="the model wants"):
        model(np.zeros((3, 5), np.float32), 2)
    with pytest.raises(ferroflux.Error):
        ferroflux.load(str(path) + ".missing")
    with pytest.raises(TypeError, match="__dlpack__"):
        model(object(), 2)
