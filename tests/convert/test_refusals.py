"""What from_torch says about models in different styles: converted, unwrapped, merged or refused, in which words."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.utils import parametrizations, prune
from torch.optim.swa_utils import AveragedModel

import jaxattn
from jaxattn.convert import port_report

D, N, F = 6, 2, 11


class VisionTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.ConvTranspose2d(3, D, 2, 2)
        self.cls_token = nn.Parameter(torch.randn(1, 1, D))
        self.register_buffer("positions", torch.randn(5, D))
        self.encoder = encoder()
        self.head = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 3))


class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = encoder()
        self.cross = nn.MultiheadAttention(D, N)
        self.norm = nn.RMSNorm(D)


class DecoderOnly(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(F, D)
        attention, feed_forward = (
            nn.MultiheadAttention(D, N),
            nn.Sequential(nn.Linear(D, F), nn.GELU(), nn.Linear(F, D)),
        )
        self.blocks = nn.ModuleDict({"0": nn.ModuleDict({"attention": attention, "feed_forward": feed_forward})})
        self.lm_head = nn.Linear(D, F, bias=False)
        self.lm_head.weight = self.embed.weight


class Linear(nn.Linear):
    """Called as torch's, and computes something else."""

    def forward(self, input):
        return -super().forward(input)


class Dropout(nn.Module):
    """Called as torch's, without a rate."""


def encoder() -> Any:
    layer = nn.TransformerEncoderLayer(D, N, F, batch_first=True)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


def tied(bias: bool = False, kind: type[nn.Linear] = nn.Linear) -> Any:
    model = nn.Sequential(nn.Embedding(F, D), nn.LayerNorm(D), kind(D, F, bias=bias))
    model[2].weight = model[0].weight
    return model


def wrapped_inside() -> Any:
    model = encoder()
    layer = model.layers[0]
    layer.self_attn = torch.compile(layer.self_attn)
    model.layers[0] = checkpoint_wrapper(layer)
    return model


def hooked() -> Any:
    model = nn.Sequential(nn.Linear(D, D), nn.ReLU())
    model[0].register_forward_hook(watch)
    model[1].register_forward_pre_hook(watch)
    return model


def watch(*args):
    del args


def hooked_wrapper() -> Any:
    model = nn.Sequential(nn.DataParallel(nn.Linear(D, D)))
    model[0].register_forward_hook(watch)
    return model


def patched() -> Any:
    model: Any = nn.TransformerEncoderLayer(D, N, F)
    model.self_attn.forward = lambda *args: args
    return model


def traced() -> Any:
    return torch.jit.trace(nn.Linear(D, F), torch.ones(2, D))


def weight_normed() -> Any:
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(D, D)), nn.ReLU())


#: model → (error, or the classes that were taken off by path; sentences that the error or the report has).
MODELS: dict[str, tuple[Callable[[], Any], type[Exception] | dict[str, str], list[str]]] = {
    "seq2seq": (
        Seq2Seq,
        NotImplementedError,
        ["`encoder` (TransformerEncoder)", "`cross` (MultiheadAttention)", "`norm` (RMSNorm)", "convert.twins(model)"],
    ),
    "vision": (
        VisionTransformer,
        NotImplementedError,
        [
            "no Flax twin for .*VisionTransformer: a forward of its own can't be translated",
            "`head` (Sequential)",
            "`cls_token`, `patches.weight`",
            "`patches` has no twin (torch.nn.modules.conv.ConvTranspose2d)",
            "`positions` is a buffer",
            "Next: write a Flax class for `VisionTransformer`, of which only `__call__` is your work",
        ],
    ),
    "decoder only, nested ModuleDict": (
        DecoderOnly,
        NotImplementedError,
        [
            "`blocks.0.attention` (MultiheadAttention)",
            "`lm_head` shares `lm_head.weight` with `embed.weight`: call twins['embed'].attend(x)",
        ],
    ),
    "shared embeddings": (tied, {}, ["shared, stored once: 2.weight = 0.weight"]),
    "shared embeddings, bias": (
        lambda: tied(bias=True),
        jaxattn.ConversionError,
        ["`0.weight` and `2.weight` are one tensor in PyTorch", "untie them (a clone)"],
    ),
    "shared embeddings, subclass": (
        lambda: tied(kind=Linear),
        NotImplementedError,
        ["`2`: no Flax twin for .*Linear, which may compute something else than torch.nn.modules.linear.Linear"],
    ),
    "DataParallel": (lambda: nn.DataParallel(tied()), {"": "DataParallel"}, ["unwrapped: DataParallel"]),
    "averaged": (lambda: AveragedModel(nn.Linear(D, F)), {"": "AveragedModel"}, []),
    "compiled": (lambda: torch.compile(nn.Linear(D, F)), {"": "OptimizedModule"}, []),
    "wrapped inside": (
        wrapped_inside,
        {"layers.0": "CheckpointWrapper", "layers.0.self_attn": "OptimizedModule"},
        ["`layers.0.self_attn` from OptimizedModule"],
    ),
    "half": (lambda: encoder().half(), {}, ["modules brought over"]),
    "parametrised": (
        weight_normed,
        NotImplementedError,
        ["`0` computes `weight` by _WeightNorm: pass merge=True to take the effective weight (one-way"],
    ),
    "hooks": (
        hooked,
        NotImplementedError,
        ["`0` has a forward hook (watch), .*remove it", "`1` has a forward pre-hook (watch)"],
    ),
    "hooks on a wrapper": (hooked_wrapper, NotImplementedError, ["wrapper `0` has forward hooks (watch), .*remove"]),
    "two wrappers": (
        lambda: nn.DataParallel(AveragedModel(nn.Linear(D, F))),
        {"": "DataParallel of AveragedModel"},
        [],
    ),
    "no module": (lambda: nn.Linear(D, F).state_dict(), TypeError, ["got OrderedDict; weights alone go into"]),
    "patched": (patched, NotImplementedError, ["`self_attn` has a `forward` of its own, set on the instance"]),
    "unknown inside": (
        lambda: nn.Sequential(nn.Linear(D, D), nn.Sequential(nn.InstanceNorm1d(D))),
        NotImplementedError,
        ["`1.0`: no Flax twin for torch.nn.modules.instancenorm.InstanceNorm1d", "jaxattn.convert.twins(model)"],
    ),
    "max_norm": (
        lambda: nn.Embedding(F, D, max_norm=1.0, scale_grad_by_freq=True),
        NotImplementedError,
        ["max_norm=1.0, which rewrites its weight", "scale_grad_by_freq=True"],
    ),
    "scripted": (lambda: torch.jit.script(nn.Linear(D, F)), NotImplementedError, ["the module is a ScriptModule"]),
    "traced inside": (
        lambda: nn.Sequential(traced()),
        NotImplementedError,
        ["`0` is a ScriptModule, whose code is compiled"],
    ),
    "lazy": (
        lambda: nn.Sequential(nn.LazyLinear(D)),
        NotImplementedError,
        ["`0` is a lazy module without weights yet"],
    ),
    "quantised": (
        lambda: torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(D, F))),
        NotImplementedError,
        ["`0` is quantised"],
    ),
    "meta": (
        lambda: nn.Linear(D, F, device="meta"),
        jaxattn.ConversionError,
        ["`weight` is a meta tensor", "`bias` is"],
    ),
    "double": (lambda: nn.Linear(D, F).double(), jaxattn.ConversionError, ["64-bit types are off"]),
    "everything dropped": (
        lambda: nn.Sequential(nn.Dropout(1.0)),
        NotImplementedError,
        ["`0`: `rate` must be a rate in [0, 1), got 1.0"],
    ),
}


def says(sentence: str, text: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in sentence.split(".*"))
    return re.search(pattern, text, re.DOTALL | re.IGNORECASE) is not None


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", MODELS)
def test_what_is_said_about(name):
    make, outcome, sentences = MODELS[name]
    model = make()
    model = model.eval() if isinstance(model, nn.Module) else model
    if isinstance(outcome, dict):
        report = port_report(jaxattn.from_torch(model))
        assert report is not None and report.unwrapped == outcome
        text = str(report)
    else:
        with pytest.raises(outcome) as caught:
            jaxattn.from_torch(model)
        text = str(caught.value)
    assert [sentence for sentence in sentences if not says(sentence, text)] == [], text


REPARAMETRISED: dict[str, Callable[[], Any]] = {
    "weight_norm": lambda: parametrizations.weight_norm(nn.Linear(D, D)),
    "spectral_norm": lambda: parametrizations.spectral_norm(nn.Linear(D, D)),
    "old weight_norm": lambda: torch.nn.utils.weight_norm(nn.Linear(D, D)),
    "old spectral_norm": lambda: torch.nn.utils.spectral_norm(nn.Linear(D, D)),
    "pruned": lambda: prune.l1_unstructured(nn.Linear(D, D), "weight", 0.5),
    "pruned twice": lambda: prune.random_unstructured(
        prune.l1_unstructured(nn.Linear(D, D), "weight", 0.5), "weight", 0.2
    ),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", REPARAMETRISED)
def test_merging_takes_the_weight_of_evaluation_and_changes_nothing(name):
    """In training mode, where spectral_norm would move its buffers at every look."""
    inner = REPARAMETRISED[name]()
    module = nn.Sequential(inner, nn.Identity()).train()
    module[0].bias.requires_grad_(False)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    with pytest.raises(NotImplementedError, match="merge=True"):
        jaxattn.from_torch(module)
    twin = jaxattn.from_torch(module, merge=True)
    report = port_report(twin)
    assert report is not None and report.merged == ["0.weight"] and report.frozen == ["0.bias"]
    assert module[0] is inner and module.training and inner.training
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    x = torch.randn(3, D)
    assert np.allclose(twin(x.numpy()), module.eval()(x).detach().numpy(), atol=1e-6)
    with pytest.raises(NotImplementedError, match="one-way"):
        jaxattn.to_torch(twin, module)
    with pytest.raises(NotImplementedError, match="one-way"):
        jaxattn.to_torch(twin, nn.Sequential(nn.Linear(D, D), nn.Identity()))


def test_a_dropout_of_ones_own_is_a_part_like_any_other():
    twins = jaxattn.convert.twins(nn.Sequential(nn.Linear(D, D), Dropout()).train())
    assert list(twins) == ["0"] and "has no twin" in twins.report.left["1"]


def test_distributed_wrappers_are_known_by_name():
    """DistributedDataParallel needs a process group: a class of its name and place stands in."""

    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    Wrapper.__module__, Wrapper.__qualname__ = "torch.nn.parallel.distributed", "DistributedDataParallel"
    assert nn.parallel.DistributedDataParallel.__module__ == Wrapper.__module__
    report = port_report(jaxattn.from_torch(Wrapper(nn.Linear(D, F))))
    assert report is not None and report.unwrapped == {"": "DistributedDataParallel"} and report.twins == {"": ""}


def test_what_no_value_shows_is_noted():
    module = nn.Sequential(nn.Embedding(F, D, sparse=True), nn.ReLU())
    module[1].register_full_backward_hook(watch)
    report = port_report(jaxattn.from_torch(module))
    assert report is not None and report.training is not None and "changes nothing" in report.training
    assert report.notes == ["`0` has sparse=True: its gradient is dense here", report.notes[1]]
    assert report.notes[1].startswith("`1` has backward hooks")
