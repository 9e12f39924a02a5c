"""cuDNN's recurrent operators, which compiled code has on every device, beside torch's own layers on the CPU."""

import pytest
import torch

MODES = {"relu": (0, torch.rnn_relu, 1), "tanh": (1, torch.rnn_tanh, 1), "lstm": (2, torch.lstm, 4), "gru": (3, torch.gru, 3)}
FEATURES, HIDDEN = 3, 4


class Case:
    """Layers in both directions: arguments and what calls the two operators with them."""

    def __init__(self, name, layers=2, bidirectional=True, batch_first=False, projection=0, packed=()):
        self.name, self.packed = name, list(packed)
        self.mode, self.torch, gates = MODES[name]
        self.layers, self.bidirectional, self.batch_first, self.projection = layers, bidirectional, batch_first, projection
        ways, shown, batch = 1 + bidirectional, projection or HIDDEN, packed[0] if packed else 2
        rows = (sum(packed),) if packed else (batch, 5) if batch_first else (5, batch)
        self.x = self.leaf(*rows, FEATURES)
        self.states = [self.leaf(layers * ways, batch, size) for size in (shown, HIDDEN)[: 1 + (name == "lstm")]]
        self.weights = []
        for n in range(layers * ways):
            sizes = [(gates * HIDDEN, FEATURES if n < ways else shown * ways), (gates * HIDDEN, shown), (gates * HIDDEN,), (gates * HIDDEN,)]
            self.weights += [self.leaf(*s) for s in sizes + ([(projection, HIDDEN)] if projection else [])]
        # What cuDNN keeps the weights in, whose values are not read.
        self.buffer = torch.zeros(sum(w.numel() for w in self.weights))

    @staticmethod
    def leaf(*sizes):
        return (torch.randn(*sizes) * 0.5).requires_grad_()

    @property
    def leaves(self):
        return [self.x, *self.states, *self.weights]

    def cudnn(self, dropout=0.0):
        def f(x, states, weights, buffer):
            cell = states[1] if len(states) > 1 else None
            sizes = (self.mode, HIDDEN, self.projection, self.layers)
            each = 5 if self.projection else 4
            rest = (self.batch_first, dropout, True, self.bidirectional, self.packed, None)
            return torch._cudnn_rnn(x, weights, each, buffer, states[0], cell, *sizes, *rest)[: 1 + len(states)]

        return f

    def layer(self):
        state = self.states if self.name == "lstm" else self.states[0]
        rest = (self.weights, True, self.layers, 0.0, True, self.bidirectional)
        if self.packed:
            return self.torch(self.x, torch.tensor(self.packed), state, *rest)
        return self.torch(self.x, state, *rest, self.batch_first)


CASES = [dict(name=name, **more) for name in MODES for more in ({}, {"batch_first": True, "layers": 1}, {"packed": (3, 2, 2, 1)})]
CASES += [{"name": "lstm", "projection": 2}, {"name": "lstm", "projection": 2, "packed": (3, 1)}]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients(compiled, case):
    case = Case(**case)
    given = (case.x, case.states, case.weights, case.buffer)
    ours, eager = compiled(case.cudnn(), fullgraph=True)(*given), case.layer()
    with torch.no_grad():
        inference = compiled(case.cudnn(), fullgraph=True)(*given)
    cotangents = [torch.randn_like(y) for y in eager]
    found = torch.autograd.grad(ours, case.leaves, cotangents)
    for a, b in zip((*ours, *inference, *found), (*eager, *eager, *torch.autograd.grad(eager, case.leaves, cotangents))):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_dropout_between_layers_is_left_to_torch(compiled):
    case = Case("lstm")
    with pytest.raises(Exception, match="cuDNN's reserve"):
        compiled(case.cudnn(dropout=0.5), fullgraph=True)(case.x, case.states, case.weights, case.buffer)


def test_shapes_of_the_backward_are_those_of_the_operands():
    from ferroflux.recurrent import shapes

    case = Case("lstm", batch_first=True)
    t = [leaf.detach().to("meta") for leaf in case.leaves]
    h, c, w = t[1], t[2], t[3:]
    rest = (2, HIDDEN, 0, 2, True, 0.0, True, True, [], None, None)
    for mask in ([True] * 4, [True, False, False, True], [False, True, True, False]):
        *firsts, weights = shapes(t[0], w, 4, None, h, c, None, None, None, None, *rest, mask)
        for got, operand, wanted in zip(firsts, t, mask):
            assert got is None if not wanted else got.shape == operand.shape
        assert [g.shape for g in weights] == ([g.shape for g in w] if mask[3] else [])
