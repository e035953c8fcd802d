"""A search is work in parts, and a crew does them: one process's threads, or several processes on several machines.

A part says in JSON what is to be simulated, by positions in lists that every member of the crew makes for itself from
the same question (`parts.Hand` does what it says). What is done with the answers, and in which order, is the search's
own business and happens in one place: so the answer is the same whoever did which part, and a part that is lost with
its process is simply done again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from typing import Any, Final

from planner.search.combinations import Candidate, Combination, Pools
from planner.search.evaluate import Evaluation, Stopped
from planner.search.runs import PoolUse
from planner.search.screening import unseen

CLIMB, SPLITS, UNDER = "climb", "splits", "under"
#: What a candidate is simulated under: as asked, in a draw, and so on (`parts.Hand.under`).
ASKED: Final = "asked"
DRAW: Final = "draw"
MIXED: Final = "mixed"
LOAD: Final = "load"
CHANGE: Final = "change"
POLICY: Final = "policy"
ALONE: Final = "alone"

Part = Mapping[str, Any]


UNSEEN: Final = unseen()
_EVALUATION: Final = tuple(each.name for each in fields(Evaluation))
_POOL: Final = tuple(each.name for each in fields(PoolUse))


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What one candidate did; `rejected`: why it was not simulated to its end, where a bound settled it. cpu_s: of the
    part that it is of, told with the part's first candidate."""

    evaluation: Evaluation
    rejected: str = ""
    cpu_s: float = field(default=0.0, compare=False)

    def to_dict(self) -> dict[str, Any]:
        if self.evaluation == UNSEEN:  # most of the splits: a bound rejected them
            return {"rejected": self.rejected, "cpu_s": self.cpu_s}
        told = {name: getattr(self.evaluation, name) for name in _EVALUATION}
        told["pools"] = [{name: getattr(pool, name) for name in _POOL} for pool in self.evaluation.pools]
        return {"evaluation": told, "rejected": self.rejected, "cpu_s": self.cpu_s}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Evaluated:
        """What `to_dict` wrote, also by way of JSON, to the last bit."""
        if "evaluation" not in data:
            return cls(UNSEEN, data["rejected"], data["cpu_s"])
        values = dict(data["evaluation"])
        pools = (PoolUse(**{**pool, "busy_s": tuple(pool["busy_s"])}) for pool in values.pop("pools"))
        return cls(Evaluation(**values, pools=tuple(pools)), data["rejected"], data["cpu_s"])


Answers = Sequence[Evaluated]
#: Does parts; answers in their order, None for one that was stopped. May begin before it is asked for the first.
Do = Callable[[Sequence[Part]], Iterator[Answers | None]]


#: A whole run: the candidate, what it is simulated under, and with which value.
Asked = tuple[Candidate, str, Any]
#: Fewer parts than this are not asked for by themselves, where it is known what else will be: of one part, a second
#: process has nothing.
FEWEST: Final = 4


@dataclass(frozen=True, slots=True)
class Crew:
    """`do`: who does parts. `combinations`, `pairs`: the lists that parts point into. Whole runs are remembered, so
    that they can be done `ahead` of the question that needs them."""

    do: Do
    combinations: Sequence[Combination]
    pairs: Sequence[Pools] = ()
    _known: dict[str, Evaluation] = field(default_factory=dict, init=False, repr=False)
    _later: list[Part] = field(default_factory=list, init=False, repr=False)

    def climb(
        self, groups: Sequence[Sequence[int]], rungs: Sequence[int], *, whole_at: int
    ) -> Iterator[Answers | None]:
        """Per group of combinations (positions, in the order in which they are simulated) their evaluations on each
        number of replicas, one number after the other; a combination that has met the objectives climbs no further. On
        `whole_at` replicas runs go to their end."""
        return self.do(
            [{"do": CLIMB, "of": list(g), "rungs": list(rungs), "whole_at": whole_at} for g in groups]
        )

    def splits(self, asked: Sequence[tuple[Sequence[int], int, int]]) -> Iterator[Answers | None]:
        """Per group of pairs (positions), number of prefill replicas and of all replicas their evaluations."""
        return self.do(
            [
                {"do": SPLITS, "of": list(group), "prefill": prefill, "replicas": replicas}
                for group, prefill, replicas in asked
            ]
        )

    def under(self, candidate: Candidate, what: str, values: Sequence[Any]) -> list[Evaluation]:
        """The candidate's whole run under each of `values`. Raises Stopped when the caller wants to stop."""
        return self._whole([(candidate, what, value) for value in values])

    def each(self, candidates: Sequence[Candidate], what: str = ASKED) -> list[Evaluation]:
        """Whole runs of several candidates. Raises Stopped when the caller wants to stop."""
        return self._whole([(candidate, what, None) for candidate in candidates])

    def ahead(self, now: Iterable[Asked], later: Iterable[Asked] = ()) -> Callable[[], None]:
        """Begins whole runs that several questions need, all at once: between one question and the next everybody
        waits for the last part. `later`: those that fill up what is asked of less than FEWEST. Call what is returned
        to have them done; a stop is met by the question."""
        self._later.extend(self._part(each) for each in later)
        return self._begun([self._part(each) for each in now])

    def _whole(self, asked: Sequence[Asked]) -> list[Evaluation]:
        parts = [self._part(each) for each in asked]
        self._begun(parts)()
        keys = [_key(part) for part in parts]
        if any(key not in self._known for key in keys):
            raise Stopped
        return [self._known[key] for key in keys]

    def _begun(self, parts: Sequence[Part]) -> Callable[[], None]:
        new = [part for part in parts if _key(part) not in self._known]
        while new and len(new) < FEWEST and self._later:
            part = self._later.pop(0)
            if _key(part) not in self._known and part not in new:
                new.append(part)
        answered = self.do(new) if new else iter(())

        def finish() -> None:
            for part, answers in zip(new, answered, strict=True):
                if answers is not None:
                    self._known[_key(part)] = answers[0].evaluation

        return finish

    def _part(self, asked: Asked) -> Part:
        candidate, what, value = asked
        return {"do": UNDER, "of": self._place(candidate), "what": what, "value": value}

    def _place(self, candidate: Candidate) -> list[int]:
        """[of two pools?, position, replicas, prefill replicas]."""
        if candidate.pools is not None:
            position = self.pairs.index(candidate.pools)
            return [1, position, candidate.replicas, candidate.prefill_replicas]
        wanted = (candidate.knobs, candidate.kind, candidate.router)
        position = next(i for i, c in enumerate(self.combinations) if (c.knobs, c.kind, c.router) == wanted)
        return [0, position, candidate.replicas, 0]


def _key(part: Part) -> str:
    return json.dumps(part, sort_keys=True)


def in_threads(do_part: Callable[[Part], Answers], threads: int) -> Do:
    """Parts done by threads of this process (the kernels release the GIL); one thread is the caller's own, which has
    nobody to wait for."""

    def here(parts: Sequence[Part]) -> Iterator[Answers | None]:
        for part in parts:
            try:
                answers = do_part(part)
            except Stopped:
                yield None
            else:
                yield answers

    def do(parts: Sequence[Part]) -> Iterator[Answers | None]:
        with ThreadPoolExecutor(threads) as pool:
            futures: list[Future[Answers]] = [pool.submit(do_part, part) for part in parts]
            for future in futures:
                try:
                    yield future.result()
                except Stopped:
                    yield None

    return do if threads > 1 else here
