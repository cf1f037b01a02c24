"""BERT, the encoder: Hugging Face's BertModel."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from .._checks import exceeds, shape_text
from .._typing import ArrayLike, DType, Precision, Size
from ..convert.registry import register
from ..convert.rules import IDENTITY, TRANSPOSE, Pack, Rule
from ..transformer.encoder import TransformerEncoder
from .bert_config import BertConfig
from .bert_parts import BertEmbeddings, BertLayer, BertPooler
from .family import Family
from .inputs import attention_bias, integer_ids

#: Hugging Face's modules of a layer → ours, and the transform of their weight.
_LAYER = {
    "attention.output.dense": ("self_attn.out_proj", "kernel", TRANSPOSE),
    "attention.output.LayerNorm": ("norm1", "scale", IDENTITY),
    "intermediate.dense": ("linear1", "kernel", TRANSPOSE),
    "output.dense": ("linear2", "kernel", TRANSPOSE),
    "output.LayerNorm": ("norm2", "scale", IDENTITY),
}
_PROJECTIONS = tuple(f"attention.self.{name}." for name in ("query", "key", "value"))


class BertOutput(NamedTuple):
    """What BERT returns, under Hugging Face's names; `pooler_output` is None without a pooler."""

    last_hidden_state: jax.Array
    pooler_output: jax.Array | None


def _configuration(torch_model, build):
    del build
    config = BertConfig.from_dict(torch_model.config.to_dict())
    return {"config": config, "add_pooling_layer": torch_model.pooler is not None}


@register("transformers.models.bert.modeling_bert.BertModel", configuration=_configuration)
class Bert(nnx.Module):
    """pooler(encoder(embeddings(ids))): a post-norm TransformerEncoder over token, position and type embeddings.

    Equal to transformers' BertModel with attn_implementation="eager". Hidden states are the outputs of `embeddings`
    and `encoder.layers.0`, …; attention maps the weights of `encoder.layers.0.self_attn`, …: see jaxattn.capture.

    Args:
        config: sizes, activation, rates; `BertConfig.from_json` reads Hugging Face's.
        add_pooling_layer: whether there is a pooler.
        dtype: of the computation; None promotes the parameters.
        param_dtype: of the parameters.
        precision: of the matrix products.
        rngs: randomness of the initial parameters: N(0, initializer_range²), biases 0, norms 1, the padding token 0.

    Reference: Devlin et al. 2019, https://arxiv.org/abs/1810.04805
    """

    def __init__(
        self,
        config: BertConfig,
        add_pooling_layer: bool = True,
        *,
        dtype: DType = None,
        param_dtype: DType = jnp.float32,
        precision: Precision = None,
        rngs: nnx.Rngs,
    ):
        options = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        products = {**options, "precision": precision}
        self.config = config
        self.embeddings = BertEmbeddings(config, **options)
        layers = [BertLayer(config, **products) for _ in range(config.num_hidden_layers)]
        self.encoder = TransformerEncoder(layers, config.num_hidden_layers)
        self.pooler = BertPooler(config, **products) if add_pooling_layer else None
        _initialise(self, config, rngs)

    def __call__(
        self,
        input_ids: ArrayLike,
        attention_mask: ArrayLike | None = None,
        token_type_ids: ArrayLike | None = None,
        position_ids: ArrayLike | None = None,
        *,
        deterministic: bool = True,
        rngs: nnx.Rngs | jax.Array | None = None,
    ) -> BertOutput:
        """input_ids [*B, T] → last_hidden_state [*B, T, D], pooler_output [*B, D]; any batch axes, none included.

        A sentence whose tokens are all masked attends to all of them uniformly. Under jit an id above the range reads
        NaN and a negative one counts from the end; outside jit both are errors.

        Args:
            input_ids: tokens, in [0, vocab_size).
            attention_mask: integers or booleans, 1 = may be attended, [*B, S]; or [*B, T, S], a mask for each query.
            token_type_ids: in [0, type_vocab_size), [*B, T] or [T]; None is 0.
            position_ids: in [0, max_position_embeddings), [*B, T] or [T]; None is 0, 1, …, whatever the mask.
            deterministic: False applies dropout.
            rngs: its stream `dropout`, or the key given, draws the dropout masks.

        Raises:
            ValueError: shapes that do not fit; more tokens than positions; ids out of range (outside jit).
            TypeError: ids that are not integers, a floating mask.
        """
        config = self.config
        ids = integer_ids("input_ids", input_ids, config.vocab_size)
        length = _check_length(ids.shape, config.max_position_embeddings, self.pooler is not None)
        numbers = np if isinstance(length, int) else jnp  # NumPy's values are known, also inside jit
        types = numbers.zeros(length, np.int32) if token_type_ids is None else token_type_ids
        types = integer_ids("token_type_ids", types, config.type_vocab_size, ids.shape)
        positions = numbers.arange(length) if position_ids is None else position_ids
        positions = integer_ids("position_ids", positions, config.max_position_embeddings, ids.shape)
        rngs = nnx.Rngs(dropout=rngs) if isinstance(rngs, jax.Array) else rngs
        x = self.embeddings(ids, types, positions, deterministic=deterministic, rngs=rngs)
        keys, pairs = attention_bias(attention_mask, ids.shape, config.num_attention_heads, x.dtype)
        hidden = self.encoder(x, pairs, keys, deterministic=deterministic, rngs=rngs)
        return BertOutput(hidden, None if self.pooler is None else self.pooler(hidden))

    def torch_rules(self) -> list[Rule]:
        """Hugging Face's `encoder.layer.0.attention.self.query.weight`, … ↔ `encoder.layers.0.self_attn…`."""
        one_layer = [
            Rule(tuple(name + kind for name in _PROJECTIONS), f"self_attn.in_proj_{kind}", Pack(3))
            for kind in ("weight", "bias")
        ]
        for source, (target, weight, transform) in _LAYER.items():
            one_layer.append(Rule((f"{source}.weight",), f"{target}.{weight}", transform))
            one_layer.append(Rule((f"{source}.bias",), f"{target}.bias"))
        layers = range(self.config.num_hidden_layers)
        return [rule.under(f"encoder.layer.{i}.", f"encoder.layers.{i}.") for i in layers for rule in one_layer]


def _check_length(shape: tuple[Size, ...], most: int, pooled: bool) -> Size:
    """The length; symbolic (jax.export), it has positions that read NaN beyond the last."""
    length = shape[-1]
    if exceeds(length, most) or (pooled and not length):
        least = "at least 1 (the pooler reads the first) and " if pooled else ""
        raise ValueError(
            f"`input_ids` must have {least}at most max_position_embeddings={most} tokens, got shape "
            f"{shape_text(shape)}; truncate it."
        )
    return length


def _initialise(model: Bert, config: BertConfig, rngs: nnx.Rngs) -> None:
    """BERT's own initial weights instead of torch.nn's."""
    normal = nnx.initializers.normal(config.initializer_range)
    for path, parameter in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        if parameter.ndim == 2:
            parameter[...] = normal(rngs.params(), parameter.shape, parameter.dtype)
        elif path[-1] != "scale":
            parameter[...] = jnp.zeros(parameter.shape, parameter.dtype)
    if config.pad_token_id is not None:
        words = model.embeddings.word_embeddings.embedding
        words[...] = words[...].at[config.pad_token_id].set(0)


def _arguments(names: Sequence[str]) -> Mapping[str, bool]:
    return {"add_pooling_layer": any(name.startswith("pooler.") for name in names)}


def _misfits(config: BertConfig, shapes: Mapping[str, Sequence[int]]) -> list[str]:
    """Sizes far beyond the tensors: a model is built before its weights are compared, layer by layer."""
    layers = len({name.split(".")[2] for name in shapes if name.startswith("encoder.layer.") and name.count(".") > 2})
    longest = max((size for shape in shapes.values() for size in shape), default=0)
    most = {"num_hidden_layers": max(2 * layers, 64)} | dict.fromkeys(
        ("vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings", "type_vocab_size"),
        max(2 * longest, 2**18),
    )
    there = f"the weights have {layers} layers and no axis longer than {longest}"
    return [
        f"`{name}` is {getattr(config, name)}, {there}: the configuration is of another model"
        for name, limit in most.items()
        if getattr(config, name) > limit
    ]


def _renames(names: Sequence[str]) -> Mapping[str, str]:
    """TensorFlow's names of the parameters of a norm, which PyTorch checkpoints of 2018 and 2019 carry."""
    old = {".gamma": ".weight", ".beta": ".bias"}
    return {
        name: name.removesuffix(end) + new
        for name in names
        for end, new in old.items()
        if name.endswith("LayerNorm" + end)
    }


FAMILY = Family(Bert, BertConfig.from_dict, prefix="bert", arguments=_arguments, misfits=_misfits, renames=_renames)
