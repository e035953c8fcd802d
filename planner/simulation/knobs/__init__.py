"""Every engine's scheduling knobs under the engine's own names, checked where they are made.

`profile` of each turns them into what the simulators read. Any of them goes into `simulate`. Speculative decoding is
simulated for vLLM only; SGLang's and TensorRT-LLM's knobs for it are refused by name, the others have none.
"""

from planner.simulation.knobs.classic import OrcaKnobs, PrefillFirstKnobs, SarathiKnobs
from planner.simulation.knobs.policy import (
    DECODE_FIRST,
    FAIR_SHARE,
    PREFILL_FIRST,
    SCHEDULING_POLICIES,
    TIME,
    TOKENS,
    PolicyKnobs,
)
from planner.simulation.knobs.sglang import SglangKnobs
from planner.simulation.knobs.speculation import SpeculativeConfig
from planner.simulation.knobs.tensorrt_llm import EQUAL_PROGRESS, FIRST_COME_FIRST_SERVED, TrtLlmKnobs
from planner.simulation.knobs.vllm import FCFS, POLICIES, PRIORITY, VllmKnobs

Knobs = VllmKnobs | SglangKnobs | TrtLlmKnobs | SarathiKnobs | OrcaKnobs | PrefillFirstKnobs | PolicyKnobs

__all__ = [
    "DECODE_FIRST",
    "EQUAL_PROGRESS",
    "FAIR_SHARE",
    "FCFS",
    "FIRST_COME_FIRST_SERVED",
    "POLICIES",
    "PREFILL_FIRST",
    "PRIORITY",
    "SCHEDULING_POLICIES",
    "TIME",
    "TOKENS",
    "Knobs",
    "OrcaKnobs",
    "PolicyKnobs",
    "PrefillFirstKnobs",
    "SarathiKnobs",
    "SglangKnobs",
    "SpeculativeConfig",
    "TrtLlmKnobs",
    "VllmKnobs",
]
