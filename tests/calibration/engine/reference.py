"""A decoder written for reading: one sequence, one head at a time, float64, no cache, no fusing.

Shares nothing with the engine but its weights, so that an error in one does not hide in the other.
"""

import torch


def reference_logits(architecture, weights, token_ids) -> torch.Tensor:
    """Logits [tokens, vocab] of every position of one sequence, in float64."""
    a = architecture
    ids = torch.as_tensor(token_ids)
    x = weights.embedding.double()[ids]
    for layer in weights.layers:
        x = x + _attention(a, layer, _norm(x, layer.attention_norm, a.rms_norm_eps))
        y = _norm(x, layer.mlp_norm, a.rms_norm_eps)
        gate_weight, up_weight = layer.gate_up.double().split(a.intermediate_size)
        gate, up = y @ gate_weight.T, y @ up_weight.T
        if layer.gate_up_bias is not None:
            gate_bias, up_bias = layer.gate_up_bias.double().split(a.intermediate_size)
            gate, up = gate + gate_bias, up + up_bias
        y = (gate / (1 + torch.exp(-gate)) * up) @ layer.down.double().T
        x = x + y + (0 if layer.down_bias is None else layer.down_bias.double())
    return _norm(x, weights.final_norm, a.rms_norm_eps) @ weights.head.double().T


def _attention(a, layer, x):
    projected = x @ layer.qkv.double().T + (0 if layer.qkv_bias is None else layer.qkv_bias.double())
    heads = projected.split(a.head_dim, dim=-1)
    outputs = []
    for head in range(a.heads):
        kv = head // (a.heads // a.kv_heads)
        query, key, value = heads[head], heads[a.heads + kv], heads[a.heads + a.kv_heads + kv]
        if a.qk_norm:
            query = _norm(query, layer.query_norm, a.rms_norm_eps)
            key = _norm(key, layer.key_norm, a.rms_norm_eps)
        query, key = _rotate(query, a.rope_theta), _rotate(key, a.rope_theta)
        result = torch.empty_like(query)
        for position in range(len(x)):
            scores = key[: position + 1] @ query[position] / a.head_dim**0.5
            share = torch.exp(scores - scores.max())
            result[position] = (share / share.sum()) @ value[: position + 1]
        outputs.append(result)
    attended = torch.cat(outputs, dim=-1) @ layer.output.double().T
    return attended + (0 if layer.output_bias is None else layer.output_bias.double())


def _norm(x, weight, eps):
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps) * weight.double()


def _rotate(x, theta):
    """Pair i of a head turns by position * theta^(-2i/head_dim): as complex numbers."""
    half = x.shape[-1] // 2
    angles = torch.arange(len(x), dtype=torch.float64)[:, None] * theta ** (
        -2 * torch.arange(half, dtype=torch.float64) / x.shape[-1]
    )
    turned = torch.complex(x[:, :half], x[:, half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), dim=-1)
