"""A question made ready: what is tried, on which benches, from its inputs. Everybody who takes part in a search makes
the same from the same inputs."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from calibration.architecture import Architecture
from calibration.capacity import KVCapacity
from calibration.engines import Foreign, MeasuredEngine, foreign
from calibration.kept_memory import keep_freed
from planner.search.answer import Question
from planner.search.combinations import Holds, Pools, capacity_of, combinations, pool_pairs_of_kinds
from planner.search.conditions import ConditionError, Conditions
from planner.search.crew import Crew, Do
from planner.search.draws import StepTimes, draws_of, error_band, law_error
from planner.search.engines import VERSIONS, longest_in
from planner.search.evaluate import Bench
from planner.search.excluded import Excluded
from planner.search.fleet import FIRST, Fleet
from planner.search.hardware import Hardware
from planner.search.inputs import sha256, traffic_inputs
from planner.search.objectives import Objective, ObjectiveError, check_objectives
from planner.search.parts import Hand
from planner.search.periods import Asked
from planner.search.requests import median_tokens, requests_of
from planner.search.result import SCHEMA_VERSION
from planner.search.runs import Simulate, SimulateCluster
from planner.search.space import DEFAULT_MAX_REPLICAS, Bounds, SearchSpace, default_space
from planner.simulation.kernel import simulate as simulate_compiled
from planner.simulation.kernel.cluster import simulate as simulate_cluster_compiled
from planner.traffic import Traffic

DEFAULT_REFITS: Final = 40


LEAST_REQUEST_TOKENS: Final = 2  # one of the prompt, one of the answer


class PlanError(ValueError):
    """Inputs no plan can be made from: `.field` names the input, `.message` says why."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class Prepared:
    """`hand`: does parts of this search. `inputs`: all it takes to ask again. The rest is as in `answer.Question`."""

    hand: Hand
    conditions: Conditions
    model: StepTimes
    architecture: Architecture
    subject: str
    max_model_len: int
    longest_prompt_tokens: int
    max_replicas: int
    band: float
    repeats: int
    excluded: Excluded
    foreign: Foreign | None
    inputs: Mapping[str, Any]
    told: tuple[str, ...] = ()

    def question(self, do: Do) -> Question:
        """The question as put to whoever `do`es parts."""
        hand = self.hand
        return Question(
            bench=hand.bench,
            crew=Crew(do, hand.combinations, hand.pairs),
            conditions=self.conditions,
            model=self.model,
            architecture=self.architecture,
            subject=self.subject,
            max_model_len=self.max_model_len,
            longest_prompt_tokens=self.longest_prompt_tokens,
            max_replicas=self.max_replicas,
            band=self.band,
            draws=hand.draws,
            combinations=hand.combinations,
            repeats=self.repeats,
            excluded=self.excluded,
            foreign=self.foreign,
            told=self.told,
        )


def prepare(
    traffic: Traffic,
    model: StepTimes,
    kv_tokens: int | KVCapacity,
    architecture: Architecture,
    objectives: Sequence[Objective],
    space: SearchSpace | None = None,
    *,
    conditions: Conditions | None = None,
    max_replicas: int = DEFAULT_MAX_REPLICAS,
    seed: int = 0,
    device: str = "",
    max_model_len: int | None = None,
    host_gap_s: float | None = None,
    band: float | None = None,
    measured_engine: MeasuredEngine | None = None,
    second: Hardware | None = None,
    schedule: Asked | None = None,
    refits: int = DEFAULT_REFITS,
    told: Sequence[str] = (),
    should_stop: Callable[[], bool] = lambda: False,
    simulate: Simulate = simulate_compiled,
    simulate_cluster: SimulateCluster = simulate_cluster_compiled,
) -> Prepared:
    """Inputs and errors as of `plan`. `schedule`: what is asked of the answer by time of day, for the record. `told`:
    sentences about the step times that the verdict is to repeat."""
    _settle()
    goals = check_objectives(tuple(objectives))
    terms = conditions or Conditions()
    kinds = (Hardware(device, model, capacity_of(kv_tokens), measured_engine), *([second] if second else []))
    arrays = model.arrays()
    holds = [Holds(Bounds.of(kind.model.arrays()), kind.capacity) for kind in kinds]
    bounds, capacity = holds[0].bounds, holds[0].capacity
    space = space or default_space(bounds, max_replicas, terms.engine)
    space, told = _with_room(space, holds, terms, told)
    smallest = min(hold.capacity.tokens(max(space.budgets_tokens)) for hold in holds)
    gap_s = terms.host_gap_s if host_gap_s is None else host_gap_s
    longest = _longest_request(smallest, architecture, space, max_model_len, terms)
    try:
        requests, excluded = requests_of(traffic, terms, longest, space.block_tokens, goals)
    except (ConditionError, ObjectiveError) as error:
        raise PlanError(error.field, error.message) from error
    if requests.count == 0:
        raise PlanError(
            "traffic",
            f"all {excluded.count:,} requests need more than max_model_len {longest:,} tokens (prompt and output)",
        )
    longest_prompt = int(requests.prompt_tokens.max())
    tried = [
        combinations(
            space,
            hold.bounds,
            hold.capacity,
            longest,
            terms.engine,
            longest_prompt_tokens=longest_prompt,
            prefix_caching=terms.prefix != "none",
            kind=kind,
        )
        for kind, hold in enumerate(holds)
    ]
    found = tuple(combination for own, _ in tried for combination in own)
    repeats = sum(repeated for _, repeated in tried)
    most_replicas = min(space.max_replicas, requests.count)
    fleet = Fleet.of(terms, tuple(kind.device for kind in kinds), most_replicas)
    if not any(fleet.most):
        raise PlanError("max_gpus", "no replica has as few GPUs as there may be")
    bench = Bench(
        requests,
        goals,
        trade_axes(goals),
        arrays,
        gap_s,
        simulate,
        should_stop,
        link=terms.link,
        bytes_per_token=kinds[FIRST].bytes_per_token(architecture),
        message_s=terms.message_s,
        hit_share=terms.hit_share,
        simulate_cluster=simulate_cluster,
        second_step_time=second.model.arrays() if second else None,
        second_bytes_per_token=second.bytes_per_token(architecture) if second else None,
        fleet=fleet,
    )
    pairs: tuple[Pools, ...] = ()
    if terms.link is not None and most_replicas > 1:
        pairs = pool_pairs_of_kinds(
            holds,
            space=space,
            max_model_len=longest,
            engine=terms.engine,
            median_prompt_tokens=median_tokens(requests.prompt_tokens),
            longest_prompt_tokens=longest_prompt,
            prefix_caching=terms.prefix != "none",
        )
    unseen = math.log1p(terms.step_uncertainty)
    law = max(error_band(kind.model) for kind in kinds)
    sigma = math.hypot(law, unseen)
    other = _most_foreign(kinds, terms)
    draws = draws_of(
        model,
        requests,
        refits,
        seed,
        link_sigma=terms.link.sigma if terms.link else 0.0,
        step_sigma=math.hypot(law_error(model), unseen),
        mixed_attention=other.mixed_attention if other else (1.0, 1.0),
        second=second.model if second else None,
    )
    own_band = sigma if band is None else band
    inputs: dict[str, Any] = {
        "schema": SCHEMA_VERSION,
        "engine": {"name": terms.engine, "version": VERSIONS[terms.engine]},
        "traffic": traffic_inputs(traffic),
        "step_time_sha256": sha256(model.to_dict()),
        "architecture": architecture.to_dict(),
        "device": device,
        "kv_tokens": smallest,
        "kv_capacity": capacity.to_dict(),
        "measured_engine": measured_engine.to_dict() if measured_engine else None,
        "max_model_len": longest,
        "objectives": [o.spec for o in goals],
        "space": space.to_dict(),
        "conditions": terms.to_dict(),
        "seed": seed,
        "host_gap_s": gap_s,
        "band": own_band,
        "refits": refits,
        "schedule": (schedule or Asked()).to_dict(),
        "hardware": [
            kind.inputs(fleet.gpus[number], fleet.prices[number], fleet.most[number])
            for number, kind in enumerate(kinds)
        ],
    }
    return Prepared(
        hand=Hand(bench, found, pairs, draws if refits else None, law, longest),
        conditions=terms,
        model=model,
        architecture=architecture,
        subject=architecture.name,
        max_model_len=longest,
        longest_prompt_tokens=longest_prompt,
        max_replicas=most_replicas,
        band=own_band,
        repeats=repeats,
        excluded=excluded,
        foreign=other,
        inputs=inputs,
        told=tuple(told),
    )


@cache
def _settle() -> None:
    """Once for this process: what it frees is kept; and what it has loaded by now lives as long as it does, which the
    collector of cycles, as a search makes thousands of small objects, would look through again and again."""
    keep_freed()
    gc.collect()
    gc.freeze()


def _most_foreign(kinds: Sequence[Hardware], terms: Conditions) -> Foreign | None:
    """Of step times that another engine's were: the one that leaves more in doubt."""
    found = [
        other
        for kind in kinds
        if kind.measured_engine
        and (other := foreign(kind.measured_engine, terms.engine, VERSIONS[terms.engine]))
    ]
    return max(found, key=lambda other: other.mixed_attention[1] / other.mixed_attention[0], default=None)


def _with_room(
    space: SearchSpace, holds: Sequence[Holds], conditions: Conditions, told: Sequence[str]
) -> tuple[SearchSpace, Sequence[str]]:
    """Without the budgets whose steps leave no KV pool on some of the hardware, which is then told. Where none leaves
    any, all of them."""

    def room(budget: int) -> int:
        tokens = min(hold.capacity.tokens(budget) for hold in holds)
        return longest_in(conditions.engine, tokens, space.block_tokens)

    kept = tuple(budget for budget in space.budgets_tokens if room(budget) >= LEAST_REQUEST_TOKENS)
    if not kept or len(kept) == len(space.budgets_tokens):
        return space, told
    gone = ", ".join(f"{budget:,}" for budget in sorted(set(space.budgets_tokens) - set(kept)))
    sentence = f"Steps of {gone} tokens leave no memory for a KV cache there: they were not tried."
    return replace(space, budgets_tokens=kept), [*told, sentence]


def _longest_request(
    kv_tokens: int,
    architecture: Architecture,
    space: SearchSpace,
    max_model_len: int | None,
    conditions: Conditions,
) -> int:
    """max_model_len: what was asked for, if model and pool can hold it, else the most they can."""
    pool_tokens = longest_in(conditions.engine, kv_tokens, space.block_tokens)
    if pool_tokens < LEAST_REQUEST_TOKENS:
        raise PlanError(
            "kv_tokens",
            f"a KV pool of {kv_tokens} tokens has no usable block of {space.block_tokens} tokens beside the "
            "reserved one",
        )
    most = min(architecture.max_position_tokens, pool_tokens)
    if max_model_len is None:
        return most
    if not 2 <= max_model_len <= most:
        raise PlanError(
            "max_model_len",
            f"max_model_len lies in 2..{most} (the model takes {architecture.max_position_tokens} tokens, the KV "
            f"pool {pool_tokens}), not {max_model_len}",
        )
    return max_model_len


def trade_axes(objectives: Sequence[Objective]) -> tuple[Objective, Objective]:
    """The axes of the trade plot: the asked percentiles of TTFT and ITL, or the customary ones."""
    everyone = [o for o in objectives if o.request_class is None]
    # Where every class has objectives of its own, nothing is asked of all: the first class's stand for the axis.
    of = None if everyone or not objectives else objectives[0].request_class

    def axis(default: Objective) -> Objective:
        asked = [o for o in (*everyone, *objectives) if o.metric == default.metric]
        return asked[0] if asked else default

    return (
        axis(Objective("ttft", 95.0, 1.0, request_class=of)),
        axis(Objective("itl", 99.0, 1.0, request_class=of)),
    )
