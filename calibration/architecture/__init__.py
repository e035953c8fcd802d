"""What a decoder-only model is made of, read from its config.json, and what follows from that by counting.

A dense decoder layer holds four attention projections and a gated MLP; around the layers stand the token
embedding and the output head (one tensor when they are tied). From the dimensions alone follow, exactly:
  parameters           every stored weight, norm scales and biases included
  KV bytes per token   2 (K and V) x layers x max(kv_heads, tensor_parallel) x head_dim x bytes per element:
                       a rank holds at least one KV head, so more ranks than KV heads means copies
  FLOPs of a step      2 per weight and token, 4 x head_dim x heads x layers per (query, key) pair
Layers with a window keep at most that many tokens: their bytes are counted apart, because they stop growing.
Layers with a recurrent state have no KV; a latent cache (MLA) holds one vector for all heads, on every rank.
A mixture of experts stores all experts and uses a few: active parameters, and FLOPs from them.
Source: published config.json files and the `transformers` classes of the same names. Units: bytes, tokens.
`described` families are counted; `runnable` ones can be measured here too; any other is refused by name.
"""

from calibration.architecture.config_file import load_architecture, no_model, parse_config, parse_config_text
from calibration.architecture.kinds import SUPPORTED_MODEL_TYPES
from calibration.architecture.model import Architecture
from calibration.architecture.parts import Capping, Counts, Experts, Latent, RecurrentState
from calibration.architecture.presets import PRESETS
from calibration.architecture.remarks import remarks
from calibration.architecture.values import UnsupportedArchitecture

__all__ = [
    "PRESETS",
    "SUPPORTED_MODEL_TYPES",
    "Architecture",
    "Capping",
    "Counts",
    "Experts",
    "Latent",
    "RecurrentState",
    "UnsupportedArchitecture",
    "load_architecture",
    "no_model",
    "parse_config",
    "parse_config_text",
    "remarks",
]
