"""Bring a PyTorch attention model to JAX/Flax, with proof that it computes the same thing, and run it under jit."""

from . import convert as convert
from . import models as models
from . import parity as parity
from ._checks import ConversionError as ConversionError
from .capture import capture as capture
from .convert.apply import LoadReport as LoadReport
from .convert.apply import load_state_dict as load_state_dict
from .convert.apply import state_dict as state_dict
from .convert.files import read_checkpoint as read_checkpoint
from .convert.files import save_checkpoint as save_checkpoint
from .convert.torch_bridge import from_torch as from_torch
from .core.dot_product import AttentionOutput as AttentionOutput
from .core.dot_product import dot_product_attention as dot_product_attention
from .transformer.encoder import TransformerEncoder as TransformerEncoder
from .transformer.encoder import TransformerEncoderLayer as TransformerEncoderLayer
from .transformer.sinusoidal import SinusoidalPositionalEncoding as SinusoidalPositionalEncoding
from .variants.multi_head import MultiHeadCrossAttention as MultiHeadCrossAttention
from .variants.multi_head import MultiHeadSelfAttention as MultiHeadSelfAttention
from .variants.multihead_torch import MultiheadAttention as MultiheadAttention
from .variants.my_attn import MyAttn as MyAttn
from .variants.scaled_dot_product import ScaledDotProductSelfAttention as ScaledDotProductSelfAttention
