"""A decoder written for reading: one sequence, one head at a time, float64, no cache, no fusing.

Shares nothing with the engine but its weights, so that an error in one does not hide in the other. Written from the
families' published formulas: windows and caps per Gemma 2, experts per Mixtral, Qwen3 and DeepSeek-V3, latent
attention with keys and values made for every position (nothing is absorbed).
"""

import math

import torch


def reference_logits(architecture, weights, token_ids) -> torch.Tensor:
    """Logits [tokens, vocab] of every position of one sequence, in float64."""
    a = architecture
    gemma = a.model_type == "gemma2"
    x = weights.embedding.double()[torch.as_tensor(token_ids)] * (math.sqrt(a.hidden_size) if gemma else 1)
    for index, layer in enumerate(weights.layers):
        attention = _latent_attention if a.latent else _attention
        y = attention(a, layer.attention, _norm(x, layer.attention_norm, a.rms_norm_eps), _window(a, index))
        x = x + (_norm(y, layer.attention_post_norm, a.rms_norm_eps) if gemma else y)
        y = _norm(x, layer.mlp_norm, a.rms_norm_eps)
        y = _experts(a, layer.mlp, y) if _has_experts(a, index) else _gated(layer.mlp, y, gemma)
        x = x + (_norm(y, layer.mlp_post_norm, a.rms_norm_eps) if gemma else y)
    logits = _norm(x, weights.final_norm, a.rms_norm_eps) @ weights.head.double().T
    return torch.tanh(logits / a.capping.logit_cap) * a.capping.logit_cap if gemma else logits


def _window(a, index):
    if a.model_type == "gemma2":
        return a.sliding_window_tokens if index % 2 == 0 else None
    return a.sliding_window_tokens if index >= a.layers - a.windowed_layers else None


def _has_experts(a, index):
    if a.experts is None:
        return False
    return index not in a.experts.dense_at if a.experts.dense_at else index >= a.layers - a.experts.layers


def _attention(a, w, x, window):
    projected = x @ w.qkv.double().T + (0 if w.qkv_bias is None else w.qkv_bias.double())
    heads = projected.split(a.head_dim, dim=-1)
    outputs = []
    for head in range(a.heads):
        kv = head // (a.heads // a.kv_heads)
        query, key, value = heads[head], heads[a.heads + kv], heads[a.heads + a.kv_heads + kv]
        if a.qk_norm:
            query = _norm(query, w.query_norm, a.rms_norm_eps)
            key = _norm(key, w.key_norm, a.rms_norm_eps)
        query, key = _rotate(query, a.rope_theta), _rotate(key, a.rope_theta)
        scale = math.sqrt(a.capping.query_scalar if a.capping else a.head_dim)
        outputs.append(_softmaxed(query, key, value, scale, window, a.capping and a.capping.attention_cap))
    attended = torch.cat(outputs, dim=-1) @ w.output.double().T
    return attended + (0 if w.output_bias is None else w.output_bias.double())


def _latent_attention(a, w, x, window):
    m = a.latent
    down = x @ w.down.double().T + (0 if w.down_bias is None else w.down_bias.double())
    latent = _norm(down[:, m.query_rank : m.query_rank + m.rank], w.latent_norm, a.rms_norm_eps)
    rotary = _rotate(down[:, m.query_rank + m.rank :], a.rope_theta)
    source = _norm(down[:, : m.query_rank], w.query_norm, a.rms_norm_eps) if m.query_rank else x
    queries = source @ w.query_up.double().T
    outputs = []
    for head in range(a.heads):
        query = queries[:, head * a.head_dim : (head + 1) * a.head_dim]
        query = torch.cat((query[:, : m.nope_size], _rotate(query[:, m.nope_size :], a.rope_theta)), dim=-1)
        key = torch.cat((latent @ w.key_up[head].double().T, rotary), dim=-1)
        value = latent @ w.value_up[head].double().T
        outputs.append(_softmaxed(query, key, value, math.sqrt(a.head_dim), None, None))
    attended = torch.cat(outputs, dim=-1) @ w.output.double().T
    return attended + (0 if w.output_bias is None else w.output_bias.double())


def _softmaxed(query, key, value, scale, window, cap):
    result = torch.empty(len(query), value.shape[-1], dtype=torch.float64)
    for position in range(len(query)):
        first = 0 if window is None else max(0, position - window + 1)
        scores = key[first : position + 1] @ query[position] / scale
        if cap:
            scores = torch.tanh(scores / cap) * cap
        share = torch.exp(scores - scores.max())
        result[position] = (share / share.sum()) @ value[first : position + 1]
    return result


def _gated(w, x, gelu=False):
    inner = w.down.shape[-1]
    gate_weight, up_weight = w.gate_up.double().split(inner)
    gate, up = x @ gate_weight.T, x @ up_weight.T
    if w.gate_up_bias is not None:
        gate_bias, up_bias = w.gate_up_bias.double().split(inner)
        gate, up = gate + gate_bias, up + up_bias
    y = (_gelu(gate) if gelu else gate / (1 + torch.exp(-gate))) * up @ w.down.double().T
    return y + (0 if w.down_bias is None else w.down_bias.double())


def _gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _experts(a, w, x):
    """Token by token: scores, the groups that may be used, the best experts in them, their weighted outputs."""
    e = a.experts
    result = torch.zeros_like(x)
    for row, token in enumerate(x):
        logits = w.router.double() @ token
        scores = 1 / (1 + torch.exp(-logits)) if e.sigmoid else torch.softmax(logits, dim=0)
        ranked = scores if w.correction is None else scores + w.correction.double()
        size = e.experts // e.groups
        best_two = [
            ranked[g * size : (g + 1) * size].sort(descending=True).values[:2].sum() for g in range(e.groups)
        ]
        groups = sorted(range(e.groups), key=lambda g: -float(best_two[g]))[: e.top_groups]
        allowed = [i for i in range(e.experts) if i // size in groups]
        picked = sorted(allowed, key=lambda i: -float(ranked[i]))[: e.per_token]
        total = sum(scores[i] for i in picked) if e.normalised else 1
        for i in picked:
            gate, up = (w.gate_up[i].double() @ token).split(e.intermediate_size)
            result[row] += (
                scores[i] / total * e.scale * (w.down[i].double() @ (gate / (1 + torch.exp(-gate)) * up))
            )
        if w.shared is not None:
            result[row] += _gated(w.shared, token[None])[0]
    return result


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
