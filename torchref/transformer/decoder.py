"""torch.nn.TransformerDecoderLayer and TransformerDecoder: here the oracle is torch itself.

norm_first=False:   y = norm1(x + self_attn(x)),   z = norm2(y + multihead_attn(y, memory)),
                    output = norm3(z + linear2(activation(linear1(z))))
norm_first=True:    y = x + self_attn(norm1(x)),   z = y + multihead_attn(norm2(y), memory),
                    output = z + linear2(activation(linear1(norm3(z))))

The decoder runs its layers one after the other, all on the same memory, then its `norm` if it was given one. Boolean
masks mean True = blocked. Run both inside `torchref.core.plain_path.plain_path()`.

Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerDecoderLayer.html
"""

from torch.nn import TransformerDecoder as TransformerDecoder
from torch.nn import TransformerDecoderLayer as TransformerDecoderLayer
