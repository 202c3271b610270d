"""The reference attention chooses its kernel for itself, and leaves torch's settings as it found them."""

from types import SimpleNamespace

import pytest
import torch

from gradus.attention import reference
from gradus.attention.reference import attend_causal, attend_masked, causal_mask, without_cudnn_attention
from gradus.models.precision import resolve_device

CPU = torch.device("cpu")


@pytest.fixture(params=[True, False], ids=["cudnn on", "cudnn off"])
def setting(request):
    """Whether the process allows cuDNN's attention: the user's choice, not ours."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(request.param)
    yield request.param
    torch.backends.cuda.enable_cudnn_sdp(before)


def test_choosing_a_gpu_leaves_the_process_setting_alone(setting, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert resolve_device("cuda").type == "cuda"
    assert torch.backends.cuda.cudnn_sdp_enabled() == setting


def test_cudnn_is_off_inside_the_block_alone(setting):
    with without_cudnn_attention():
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled() == setting


def test_the_setting_comes_back_after_a_failure(setting):
    with pytest.raises(RuntimeError), without_cudnn_attention():
        raise RuntimeError("out of memory")
    assert torch.backends.cuda.cudnn_sdp_enabled() == setting


def allowed_during(call, monkeypatch) -> list[bool]:
    """Whether cuDNN was allowed each time that torch's fused attention was called."""
    seen = []

    def watched(q, *tensors, **options):
        seen.append(torch.backends.cuda.cudnn_sdp_enabled())
        return q

    monkeypatch.setattr(reference.F, "scaled_dot_product_attention", watched)
    call()
    return seen


def test_tensors_on_a_gpu_are_attended_without_cudnn(setting, monkeypatch):
    on_gpu = SimpleNamespace(is_cuda=True)
    assert allowed_during(lambda: reference._fused(on_gpu, None, None), monkeypatch) == [False]
    assert torch.backends.cuda.cudnn_sdp_enabled() == setting


def test_on_a_cpu_nothing_is_switched(setting, monkeypatch):
    q, k = torch.zeros(1, 2, 4), torch.zeros(2, 3, 4)
    call = lambda: attend_causal(q, k, k, start=2, scale=1.0)  # noqa: E731
    assert allowed_during(call, monkeypatch) == [setting]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("n", [1, 4, 9])
def test_a_sink_takes_its_share_and_gives_nothing(n, window, dtype, device=CPU):
    """A sink is exact in bfloat16, too: 3.14159 / 0.3 has more digits than a number of it."""
    draw = torch.Generator().manual_seed(n)
    q, keys, values = (
        torch.randn(shape, generator=draw).to(device, dtype) for shape in ((n, 8, 16), *[(2, 9, 16)] * 2)
    )
    sinks = torch.tensor([-30.0, -2.0, 0.0, 1.0, 3.14159, 7.0, 30.0, 100.0], device=device)
    scores = torch.einsum("nhd,hmd->hnm", q.double(), keys.double().repeat_interleave(4, 0)) * 0.3
    visible = causal_mask(n, 9, 9 - n, window, device)
    scores = scores.masked_fill(~visible, float("-inf"))
    weights = scores.exp() / (scores.exp().sum(-1, keepdim=True) + sinks.double().exp()[:, None, None])
    right = torch.einsum("hnm,hmd->nhd", weights, values.double().repeat_interleave(4, 0))
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    found = attend_causal(q, keys, values, start=9 - n, scale=0.3, window=window, sinks=sinks)
    torch.testing.assert_close(found.double(), right, atol=tolerance, rtol=tolerance)
    found = attend_masked(q[None], keys[None], values[None], visible[None], scale=0.3, sinks=sinks)[0]
    torch.testing.assert_close(found.double(), right, atol=tolerance, rtol=tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu_a_sink_takes_its_share(dtype):
    for n in (1, 4, 9):
        for window in (None, 3):
            test_a_sink_takes_its_share_and_gives_nothing(n, window, dtype, torch.device("cuda"))


@pytest.mark.gpu
def test_on_a_gpu_no_shape_of_attention_reaches_cudnn(setting):
    q, k = torch.randn(5, 4, 64, device="cuda").bfloat16(), torch.randn(2, 9, 64, device="cuda").bfloat16()
    visible = torch.ones(1, 5, 9, dtype=torch.bool, device="cuda")
    calls = {
        "prompt": lambda: attend_causal(q, k[:, :5], k[:, :5], start=0, scale=0.125),
        "chunk": lambda: attend_causal(q, k, k, start=4, scale=0.125),
        "decode": lambda: attend_causal(q[:1], k, k, start=8, scale=0.125),
        "masked": lambda: attend_masked(q[None], k[None], k[None], visible, scale=0.125),
    }
    for name, call in calls.items():
        assert not [op for op in operations(call) if "cudnn" in op], name
        assert torch.backends.cuda.cudnn_sdp_enabled() == setting


def operations(call) -> list[str]:
    """Names of the operations and kernels that a call runs."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        call()
        torch.cuda.synchronize()
    names = [event.name.lower() for event in profiled.events()]
    assert any("attention" in name for name in names)
    return names
