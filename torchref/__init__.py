"""The oracle: plain, readable PyTorch of every module that jaxattn ports. It never imports jax or jaxattn."""

from .transformer.decoder import TransformerDecoder as TransformerDecoder
from .transformer.decoder import TransformerDecoderLayer as TransformerDecoderLayer
from .transformer.encoder import TransformerEncoder as TransformerEncoder
from .transformer.encoder import TransformerEncoderLayer as TransformerEncoderLayer
from .transformer.sinusoidal import SinusoidalPositionalEncoding as SinusoidalPositionalEncoding
from .transformer.transformer import Transformer as Transformer
from .variants.multi_head import MultiHeadCrossAttention as MultiHeadCrossAttention
from .variants.multi_head import MultiHeadSelfAttention as MultiHeadSelfAttention
from .variants.multihead_torch import MultiheadAttention as MultiheadAttention
from .variants.my_attn import MyAttn as MyAttn
from .variants.scaled_dot_product import ScaledDotProductSelfAttention as ScaledDotProductSelfAttention
