"""Tensors on a CUDA device: values and gradients of eager PyTorch, streams, threads, memory, device graphs.

Every test is skipped where torch sees no such device.
"""

import copy
import gc
import threading

import pytest
import torch
import torch.nn.functional as F

import ferroflux

from .conftest import same

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")

CUDA = "cuda"
# Long enough that work which does not wait for it is seen: about 20 ms at the clock of any GPU.
SLEEP = 40_000_000


@pytest.fixture(autouse=True)
def full_precision():
    """Eager convolutions in float32, as compiled ones are."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before
    torch.cuda.synchronize()


def randn(*sizes, **keywords):
    return torch.randn(*sizes, device=CUDA, **keywords)


class Attention(torch.nn.Module):
    """One block of a transformer, `[B, T, 32]`."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(32)
        self.qkv = torch.nn.Linear(32, 96)
        self.out = torch.nn.Linear(32, 32)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(2))


NETS = {
    "mlp": (lambda: torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)), (16, 32)),
    "conv": (
        lambda: torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(8, 16, 3, stride=2, groups=2), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
        ),
        (4, 3, 20, 20),
    ),
    "attention": (Attention, (2, 16, 32)),
    "lstm": (lambda: First(torch.nn.LSTM(16, 24, batch_first=True)), (3, 7, 16)),
}  # fmt: skip


class First(torch.nn.Module):
    """The first result of another module."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


def pair(name):
    """A network, a copy of it, and the sizes of its input."""
    make, sizes = NETS[name]
    ours = make().to(CUDA)
    return ours, copy.deepcopy(ours), sizes


# -- values -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETS)
def test_inference(compiled, name):
    ours, eager, sizes = pair(name)
    ours.eval(), eager.eval()
    g = compiled(ours) if name != "lstm" else torch.compile(ours, backend="ferroflux")
    with torch.no_grad():
        for _ in range(3):
            x = randn(*sizes)
            torch.testing.assert_close(g(x), eager(x), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NETS)
def test_training(compiled, name):
    ours, eager, sizes = pair(name)
    g = compiled(ours) if name != "lstm" else torch.compile(ours, backend="ferroflux")
    optimizers = [torch.optim.SGD(m.parameters(), 0.05, momentum=0.9) for m in (ours, eager)]
    for _ in range(4):
        x = randn(*sizes)
        for f, optimizer in zip((g, eager), optimizers):
            optimizer.zero_grad()
            f(x).square().mean().backward()
            optimizer.step()
    for (key, a), b in zip(ours.state_dict().items(), eager.state_dict().values()):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-4, msg=lambda m: f"{key}: {m}")


def test_a_whole_step_with_its_optimizer(compiled):
    ours, eager, sizes = pair("mlp")

    def step_of(model):
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    ours_step, eager_step = compiled(step_of(ours)), step_of(eager)
    for _ in range(4):
        x = randn(*sizes)
        same(ours_step(x), eager_step(x), 1e-4)


def test_changes_of_weights_are_seen(compiled):
    ours, eager, sizes = pair("mlp")
    g, x = compiled(ours), randn(*sizes)
    with torch.no_grad():
        for n in range(8):
            same(g(x), eager(x), 1e-4)
            for m in (ours, eager):
                m[0].weight.mul_(0.9)
                m[2].bias.copy_(torch.full((8,), float(n)))


def test_dtypes(compiled):
    f = lambda x: (x * 3 - 1).sum(0) + x.amax(0)
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8):
        x = torch.arange(48, device=CUDA).reshape(6, 8).to(dtype)
        ours, eager = compiled(f)(x), f(x)
        assert ours.dtype == eager.dtype and ours.device == eager.device
        torch.testing.assert_close(ours, eager, rtol=2e-2, atol=1e-2)


def test_complex_numbers(compiled):
    f = lambda x: torch.fft.rfft(x) * 2j
    x = randn(4, 16)
    same(compiled(f)(x), f(x), 1e-4)
    g = lambda z: (z * z.conj()).real + z.imag
    z = randn(4, 8, dtype=torch.complex64)
    same(compiled(g)(z), g(z), 1e-4)


def test_grids(compiled):
    f = lambda x, grid: F.grid_sample(x, grid, align_corners=True)
    x, grid = randn(2, 3, 6, 6), torch.rand(2, 4, 5, 2, device=CUDA) * 2.2 - 1.1
    g, found = compiled(f), []
    for function in (g, f):
        a, b = x.clone().requires_grad_(), grid.clone().requires_grad_()
        function(a, b).square().sum().backward()
        found.append((a.grad, b.grad))
    for ours, eager in zip(*found):
        torch.testing.assert_close(ours, eager, rtol=1e-3, atol=1e-3)


def test_autocast(compiled):
    ours, eager, sizes = pair("attention")

    def loss(model):
        def f(x):
            with torch.autocast(CUDA, torch.bfloat16):
                return model(x).float().square().mean()

        return f

    x = randn(*sizes)
    g, f = compiled(loss(ours)), loss(eager)
    g(x).backward()
    f(x).backward()
    for a, b in zip(ours.parameters(), eager.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=6e-2, atol=6e-2 * float(b.grad.abs().max()))


def test_grad_scaler(compiled):
    ours, eager, sizes = pair("mlp")
    runs = []
    x = randn(*sizes)
    for model, compile in ((ours, compiled), (eager, lambda m: m)):
        g, scaler = compile(model), torch.amp.GradScaler(CUDA, init_scale=1024.0)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            optimizer.zero_grad()
            with torch.autocast(CUDA, torch.float16):
                loss = g(x).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        runs.append((loss.detach(), scaler.get_scale()))
    torch.testing.assert_close(runs[0][0], runs[1][0], rtol=2e-2, atol=1e-3)
    assert runs[0][1] == runs[1][1]


# -- sizes, aliases, randomness -----------------------------------------------------------------------------------------------


def test_sizes_that_change(compiled):
    f = lambda x, w: F.layer_norm(x @ w, (8,)).softmax(0)
    g, w = compiled(f, dynamic=True), randn(16, 8)
    for n in (2, 3, 17, 64, 1, 255):
        x = randn(n, 16)
        same(g(x, w), f(x, w), 1e-4)


def test_inputs_written_in_place(compiled):
    def f(x, buffer):
        buffer.mul_(0.5).add_(x.mean(0))
        x[1:].relu_()
        return buffer * 2

    x, buffer = randn(4, 8), randn(8)
    y, other = x.clone(), buffer.clone()
    g = compiled(f)
    for _ in range(3):
        same(g(x, buffer), f(y, other))
        same(x, y)
        same(buffer, other)


def test_views_and_aliases(compiled):
    def f(x):
        y = x * 2
        return y, y.t(), x, x[1:], y.view(-1)[2:]

    x = randn(4, 6)
    y, t, same_x, part, tail = compiled(f)(x)
    assert same_x.data_ptr() == x.data_ptr() and part.data_ptr() == x[1:].data_ptr()
    assert t.data_ptr() == y.data_ptr() and tail.data_ptr() == y.data_ptr() + 8
    for a, b in zip((y, t, same_x, part, tail), f(x)):
        same(a, b)


def test_inputs_with_strides_and_offsets(compiled):
    f = lambda a, b: (a + 1) @ b
    a, b = randn(12, 10)[2:, 1:9].t(), randn(10, 3, 2)[..., 1]
    same(compiled(f)(a, b), f(a, b), 1e-4)


def test_random_numbers(compiled):
    g = compiled(lambda x: F.dropout(x, 0.5))
    x = torch.ones(1000, device=CUDA, requires_grad=True)
    y = g(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert 300 < int((y == 0).sum()) < 700
    assert not torch.equal(g(x), g(x))
    h = compiled(torch.rand_like)
    torch.manual_seed(1)
    a = h(x.detach())
    torch.manual_seed(1)
    assert torch.equal(a, h(x.detach())) and not torch.equal(a, h(x.detach()))


def test_numbers_and_tensors_of_the_host_among_those_of_the_device():
    """What has tensors of both is split between compiled code and torch."""

    def f(x, n, table):
        y = (x * n).relu()
        host = table * 2 + 1
        return y + host.to(x.device), host, y.cpu().sum()

    g = torch.compile(f, backend="ferroflux")
    x, table = randn(4, 8), torch.randn(8)
    for n in (torch.tensor(2.0), torch.tensor(-3.0)):
        for a, b in zip(g(x, n, table), f(x, n, table)):
            same(a, b, 1e-4)


# -- streams and threads ------------------------------------------------------------------------------------------------------


def test_work_is_on_the_current_stream(compiled):
    f = lambda x: (x * 2).relu() + 1
    g = compiled(f)
    g(randn(1 << 16))
    stream = torch.cuda.Stream()
    for _ in range(5):
        with torch.cuda.stream(stream):
            x = torch.zeros(1 << 16, device=CUDA)
            torch.cuda._sleep(SLEEP)
            x.add_(3)
            y = g(x)
            z = y * 1
        torch.cuda.current_stream().wait_stream(stream)
        assert torch.equal(z, torch.full_like(z, 7)), "the compiled code did not wait for its stream"


def test_several_streams(compiled):
    f = lambda x, w: (x @ w).tanh().sum(-1)
    g, w = compiled(f), randn(64, 64)
    streams = [torch.cuda.Stream() for _ in range(4)]
    g(randn(64, 64), w)
    torch.cuda.synchronize()
    found = []
    for n in range(40):
        with torch.cuda.stream(streams[n % 4]):
            x = torch.full((64, 64), float(n), device=CUDA) / 40
            found.append((x, g(x, w)))
    torch.cuda.synchronize()
    for x, y in found:
        same(y, f(x, w), 1e-4)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_threads(compiled, mode):
    f = lambda x: (x @ x).relu() + x.sum(0)
    g = compiled(f, options={"mode": mode})
    inputs = [randn(32, 32) for _ in range(4)]
    expected, wrong = [f(x) for x in inputs], []
    g(inputs[0])
    torch.cuda.synchronize()

    def work(n):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(50):
                    if not torch.allclose(g(inputs[n]), expected[n], rtol=1e-3, atol=1e-3):
                        wrong.append(n)
        except Exception as e:
            wrong.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong, wrong


# -- device graphs ------------------------------------------------------------------------------------------------------------


def test_reduce_overhead_keeps_earlier_results(compiled):
    ours, eager, sizes = pair("mlp")
    g = compiled(ours, options={"mode": "reduce-overhead"})
    with torch.no_grad():
        inputs = [randn(*sizes) for _ in range(10)]
        results = [g(x) for x in inputs]
        for x, y in zip(inputs, results):
            same(y, eager(x), 1e-4)


def test_reduce_overhead_in_training(compiled):
    ours, eager, sizes = pair("conv")
    g = compiled(ours, options={"mode": "reduce-overhead"})
    for _ in range(5):
        x = randn(*sizes)
        for f, m in ((g, ours), (eager, eager)):
            m.zero_grad(set_to_none=True)
            f(x).square().mean().backward()
        for a, b in zip(ours.parameters(), eager.parameters()):
            torch.testing.assert_close(a.grad, b.grad, rtol=2e-3, atol=2e-4)


def test_reduce_overhead_by_its_argument():
    """``mode=`` of torch.compile, which does not take options beside it."""
    f = lambda x: x.softmax(-1) * 2
    g, x = torch.compile(f, backend="ferroflux", mode="reduce-overhead"), randn(8, 16)
    for _ in range(4):
        same(g(x), f(x))


# -- memory -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_memory_stays_flat(compiled, mode):
    g = compiled(lambda x, w: (x @ w).relu().sum(-1), options={"mode": mode})
    w = randn(512, 512)
    run = lambda: [g(randn(256, 512), w) for _ in range(10)]
    for _ in range(10):
        run()
    gc.collect()
    torch.cuda.synchronize()
    free, own = torch.cuda.mem_get_info()[0], torch.cuda.memory_allocated()
    for _ in range(100):
        run()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= own + (1 << 20)
    assert free - torch.cuda.mem_get_info()[0] <= 8 << 20


def test_results_are_in_memory_of_torchs_allocator(compiled):
    g = compiled(lambda x: x * 2)
    x = torch.ones(1 << 20, device=CUDA)
    g(x)
    before = torch.cuda.memory_allocated()
    y = g(x)
    assert torch.cuda.memory_allocated() - before == 4 << 20
    y.resize_(1 << 21)
    assert torch.cuda.memory_allocated() - before >= 8 << 20


def test_memory_of_programs_is_given_back(compiled):
    def one():
        torch._dynamo.reset()
        compiled(lambda x: (x @ x).softmax(-1) @ x)(randn(1024, 1024))
        gc.collect()
        torch.cuda.synchronize()

    # Libraries take their workspaces, and the driver its first modules, with the first programs.
    for _ in range(4):
        one()
    free, reserved = torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()
    for _ in range(8):
        one()
    more, of_torch = free - torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved() - reserved
    assert more <= 16 << 20, f"{more >> 20} MB more after 8 programs, {of_torch >> 20} MB of them torch's"


def test_results_outlive_their_program(compiled):
    y = compiled(lambda x: x * 2)(torch.ones(1000, device=CUDA))
    torch._dynamo.reset()
    gc.collect()
    assert float(y.sum()) == 2000


several = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch sees one CUDA device")


@several
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_model_on_the_second_device(compiled, mode):
    torch.manual_seed(0)
    model = NETS["attention"][0]().to("cuda:1")
    ours = compiled(copy.deepcopy(model), options={"mode": mode})
    for n in range(4):
        x = torch.randn(2, 16, 32, device="cuda:1", requires_grad=True)
        y = x.detach().clone().requires_grad_()
        a, b = ours(x), model(y)
        a.square().sum().backward()
        b.square().sum().backward()
        same(a.detach(), b.detach())
        same(x.grad, y.grad)
        assert torch.cuda.current_device() == 0, "the caller's device is as it was"
    same(compiled(lambda x: x * 2)(randn(8)).shape, torch.Size([8]))


@several
def test_a_graph_on_two_devices():
    torch.manual_seed(0)

    def function(x, y):
        x = (x @ x.T).relu() * 2
        return (x.to("cuda:1") + y).softmax(-1), x.sum(0)

    x, y = torch.randn(16, 16, device="cuda:0"), torch.randn(16, 16, device="cuda:1")
    same(torch.compile(function, backend="ferroflux")(x, y), function(x, y))


@several
def test_current_devices_of_threads_are_left_alone(compiled):
    ours = compiled(lambda x: (x @ x).tanh())
    wrong = []

    def work(number):
        torch.cuda.set_device(number)
        for _ in range(50):
            x = torch.randn(32, 32, device=f"cuda:{1 - number}")
            y = ours(x)
            here = torch.ones(4, device="cuda")
            if torch.cuda.current_device() != number or here.device.index != number or y.device != x.device:
                wrong.append((number, y.device))

    # TorchDynamo compiles for both devices before there are threads.
    for number in (0, 1):
        ours(torch.randn(32, 32, device=f"cuda:{number}"))
    threads = [threading.Thread(target=work, args=(n,)) for n in (0, 1)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_arenas_are_torchs_memory_between_calls(compiled):
    """A chain of products has temporaries, which are torch's for the time of a call and nobody's afterwards."""
    weights = [randn(512, 512) / 23 for _ in range(4)]

    def chain(x):
        for w in weights:
            x = torch.softmax(x @ w, -1)
        return x.sum()

    ours = compiled(chain, options={"freeze": False})
    x = randn(4096, 512)
    same(ours(x), chain(x), tolerance=1e-2)
    torch.cuda.synchronize()
    gc.collect()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        ours(x)
    torch.cuda.synchronize()
    # One temporary of the chain is 8 MiB.
    assert torch.cuda.max_memory_allocated() - before >= 8 << 20, "temporaries are counted"
    gc.collect()
    assert torch.cuda.memory_allocated() - before < 1 << 20, "and given back"


def test_memory_that_torch_may_not_have_is_refused_to_compiled_code(compiled):
    # The result is torch's in any case, and small.
    function = lambda x: ((x @ x / 64).softmax(-1) @ x).sum()
    ours = compiled(function)
    x = randn(64, 64)
    same(ours(x), function(x), tolerance=1e-2)
    total = torch.cuda.get_device_properties(0).total_memory
    big = torch.randn(4096, 4096, device=CUDA)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (8 << 20)) / total)
    try:
        with pytest.raises(ferroflux.Error, match="allocator has none left"):
            ours(big)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    same(ours(big), function(big), tolerance=10.0)


def test_a_stream_that_frees_memory_meanwhile_is_waited_for(compiled):
    """Threads on one stream: what one frees while its kernels run is not an arena of the other's call before they end."""
    weight = randn(1024, 1024) / 32
    ours = compiled(lambda x: torch.softmax(x @ weight, -1).sum(0), options={"freeze": False})
    x = randn(1024, 1024)
    wanted, wrong = torch.softmax(x @ weight, -1).sum(0), []
    ours(x)

    def other():
        for _ in range(300):
            filled = torch.empty(1024, 1024, device=CUDA)
            torch.cuda._sleep(20_000)
            filled.fill_(float("nan"))
            del filled

    thread = threading.Thread(target=other)
    thread.start()
    for _ in range(300):
        if not torch.allclose(ours(x), wanted, rtol=1e-3, atol=1e-3):
            wrong.append(1)
    thread.join()
    assert not wrong
