"""torch.nn.TransformerEncoderLayer and TransformerEncoder: here the oracle is torch itself.

norm_first=False:   h = norm1(x + self_attn(x)),   output = norm2(h + linear2(activation(linear1(h))))
norm_first=True:    h = x + self_attn(norm1(x)),   output = h + linear2(activation(linear1(norm2(h))))

The encoder runs its layers one after the other, then its `norm` if it was given one. Boolean masks mean True = blocked.
Run both inside `torchref.core.plain_path.plain_path()`: in eval mode without gradients they otherwise take a fused
kernel that returns padded rows as zeros.

Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerEncoderLayer.html
"""

from torch.nn import TransformerEncoder as TransformerEncoder
from torch.nn import TransformerEncoderLayer as TransformerEncoderLayer
