"""torch.nn.MultiheadAttention: here the oracle is torch itself.

output, weights = softmax(q kᵀ / √H + mask) v per head, then out_proj; q, k, v from the packed `in_proj_weight`, or from
`q_proj_weight`, `k_proj_weight`, `v_proj_weight` when `kdim` or `vdim` differ from `embed_dim`.

Its conventions are not those of the other modules: sequences come first unless batch_first=True; True in a boolean
`attn_mask` or `key_padding_mask` means blocked; a 3-D `attn_mask` is [B·N, T, S] with index b·N + n; the weights are
averaged over heads unless average_attn_weights=False; a query with every key blocked is NaN where weights are returned.
Run it inside `torchref.core.plain_path.plain_path()`, which keeps it off the fused kernels that answer differently.

Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html
"""

from torch.nn import MultiheadAttention as MultiheadAttention
