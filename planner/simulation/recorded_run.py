"""A real server's run as a folder: what it was asked, with which knobs, and when each token came.

    meta.json            engine_kwargs {max_num_seqs, max_num_batched_tokens, async_scheduling?}, vllm_version?
                         kv_cache {block_size, num_gpu_blocks or num_kv_tokens, enable_prefix_caching?}
    requests.jsonl       a request a line: request_id, input_toks, output_toks, queued_ts, first_token_ts, last_token_ts
    steps.csv.gz         step times of the same device and model (calibration.sources.step_csv); or steps.csv
    prefix_blocks.jsonl  optional: request_id, hash_ids of the prompt's blocks of kv_cache.block_size tokens

Stamps are seconds on one clock. A request arrives when the engine queues it; what happens before (front end, network)
is not in the run. Of the pool one block is vLLM's own. Prefix caching is on unless the file says otherwise, as in
vLLM itself. Everything that is wrong is said with its file and line or field; nothing is repaired or left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibration import strict_json
from calibration.sources.step_csv import StepCsvError, read_step_csv
from calibration.sources.unpacking import UnpackError, read_bytes
from calibration.steptime import StepSample
from planner.simulation.arrays import Floats, Ints
from planner.simulation.knobs import VllmKnobs
from planner.simulation.prefix import PrefixBlocks, blocks_of
from planner.traffic.model import PrefixHashes

MAX_BYTES = 256 * 2**20
MOST_TOKENS = 10**8
MOST_PROBLEMS = 20
#: Stamps may be seconds since 1970; beyond this they are in another unit, and a float64 no longer tells microseconds.
MOST_S = 1e11
COUNTS, STAMPS = ("input_toks", "output_toks"), ("queued_ts", "first_token_ts", "last_token_ts")


class RecordedRunError(ValueError):
    """The folder does not hold a run; `problems` say in which file and line, the first MOST_PROBLEMS of them."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems[:MOST_PROBLEMS]
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True, slots=True, eq=False)
class RecordedRun:
    """Arrays have one entry per request, by arrival; arrival_s starts at 0. `knobs` are synchronous.

    asynchronous: whether the server scheduled asynchronously, None where it is not recorded.
    """

    name: str
    version: str
    samples: list[StepSample]
    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    first_token_s: Floats
    last_token_s: Floats
    knobs: VllmKnobs
    asynchronous: bool | None
    prefix: PrefixBlocks | None

    @property
    def kv_tokens(self) -> int:
        return self.knobs.num_blocks * self.knobs.block_size

    def measured_s(self, metric: str) -> Floats:
        """Seconds of each request by "ttft", "e2e" or "tpot" (those with two outputs or more)."""
        if metric == "ttft":
            return self.first_token_s - self.arrival_s
        if metric == "e2e":
            return self.last_token_s - self.arrival_s
        several = self.output_tokens >= 2
        gaps: Floats = (self.last_token_s - self.first_token_s)[several] / (self.output_tokens[several] - 1)
        return gaps


def read_recorded_run(folder: Path | str) -> RecordedRun:
    """Read a folder as above. RecordedRunError when a file is missing or wrong."""
    folder = Path(folder)
    if not folder.is_dir():
        raise RecordedRunError([f"{folder}: is not a folder"])
    meta = _Fields("meta.json", _object(folder / "meta.json"))
    knobs = _knobs(meta)
    rows = _requests(folder / "requests.jsonl")
    order = sorted(range(len(rows)), key=lambda i: rows[i]["queued_ts"])
    columns = {name: np.array([rows[i][name] for i in order]) for name in (*COUNTS, *STAMPS)}
    prompts = columns["input_toks"].astype(np.int64)
    ids = [rows[i]["request_id"] for i in order]
    start_s = columns["queued_ts"][0]
    asynchronous = meta.optional("engine_kwargs.async_scheduling", bool)
    return RecordedRun(
        name=folder.resolve().name,
        version=str(meta.optional("vllm_version", str) or "of unknown version"),
        samples=_samples(folder),
        arrival_s=columns["queued_ts"] - start_s,
        prompt_tokens=prompts,
        output_tokens=columns["output_toks"].astype(np.int64),
        first_token_s=columns["first_token_ts"] - start_s,
        last_token_s=columns["last_token_ts"] - start_s,
        knobs=knobs,
        asynchronous=asynchronous,
        prefix=_prefix(folder / "prefix_blocks.jsonl", ids, prompts, knobs.block_size),
    )


class _Fields:
    """A JSON object whose fields are asked for by dotted path."""

    def __init__(self, file: str, content: Mapping[str, Any]) -> None:
        self.file, self.content = file, content

    def optional(self, path: str, kind: type) -> Any:
        value: Any = self.content
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is None:
            return None
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise RecordedRunError(
                [f"{self.file}: {path}: must be of type {kind.__name__}, is {value!r:.40}"]
            )
        return value

    def count(self, path: str) -> int:
        value = self.optional(path, int)
        if value is None:
            raise RecordedRunError([f"{self.file}: {path}: is missing"])
        if not 1 <= value <= MOST_TOKENS:
            raise RecordedRunError([f"{self.file}: {path}: must be from 1 to {MOST_TOKENS:,}, is {value}"])
        return int(value)


def _knobs(meta: _Fields) -> VllmKnobs:
    block = meta.count("kv_cache.block_size")
    if meta.optional("kv_cache.num_gpu_blocks", int) is not None:
        blocks = meta.count("kv_cache.num_gpu_blocks")
    else:
        blocks = meta.count("kv_cache.num_kv_tokens") // block
    if blocks < 2:
        raise RecordedRunError(
            ["meta.json: kv_cache: has no block beside the one that vLLM keeps for itself"]
        )
    caching = meta.optional("kv_cache.enable_prefix_caching", bool)
    return VllmKnobs(
        max_num_batched_tokens=meta.count("engine_kwargs.max_num_batched_tokens"),
        max_num_seqs=meta.count("engine_kwargs.max_num_seqs"),
        num_blocks=blocks - 1,
        block_size=block,
        async_scheduling=False,
        prefix_caching=True if caching is None else caching,
    )


def _samples(folder: Path) -> list[StepSample]:
    path = next((folder / name for name in ("steps.csv.gz", "steps.csv") if (folder / name).exists()), None)
    if path is None:
        raise RecordedRunError(["steps.csv.gz: is missing"])
    try:
        return read_step_csv(path)
    except StepCsvError as error:
        raise RecordedRunError([f"{path.name}: {line}" for line in error.lines(MOST_PROBLEMS)]) from error
    except OSError as error:
        raise RecordedRunError([f"{path.name}: {error.strerror}"]) from error


def _requests(path: Path) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = []
    problems: list[str] = []
    seen: set[Any] = set()
    for number, line in _lines(path):
        problem = _wrong_request(line)
        if problem is None and line["request_id"] in seen:
            problem = f"request_id {line['request_id']!r:.40} appears more than once"
        if problem is None:
            seen.add(line["request_id"])
            rows.append(line)
        else:
            problems.append(f"{path.name}: line {number}: {problem}")
    if problems or not rows:
        raise RecordedRunError(problems or [f"{path.name}: there is no request in it"])
    return rows


def _wrong_request(line: Mapping[str, Any]) -> str | None:
    """What is wrong with a request's line, None if nothing is."""
    for name in ("request_id", *COUNTS, *STAMPS):
        if name not in line:
            return f"{name} is missing"
    if not isinstance(line["request_id"], str | int):
        return "request_id must be text or a number"
    for name in COUNTS:
        value = line[name]
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_TOKENS:
            return f"{name} must be a whole number from 1 to {MOST_TOKENS:,}, is {value!r:.40}"
    for name in STAMPS:
        value = line[name]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number:
            return f"{name} must be a finite number of seconds, is {value!r:.40}"
        if not -MOST_S <= value <= MOST_S:
            return f"{name} must be at most {MOST_S:g} seconds from 0, is {value!r:.40}"
    if not line["queued_ts"] <= line["first_token_ts"] <= line["last_token_ts"]:
        return "queued_ts, first_token_ts and last_token_ts must follow each other"
    return None


def _prefix(path: Path, ids: list[Any], prompts: Ints, block: int) -> PrefixBlocks | None:
    if not path.exists():
        return None
    hashes: dict[Any, list[int]] = {}
    problems = []
    tokens = dict(zip(ids, prompts.tolist(), strict=True))
    for number, line in _lines(path):
        problem = _wrong_hashes(line, tokens, block)
        if problem is None and line["request_id"] in hashes:
            problem = f"request_id {line['request_id']!r:.40} appears more than once"
        if problem is None:
            hashes[line["request_id"]] = line["hash_ids"]
        else:
            problems.append(f"{path.name}: line {number}: {problem}")
    missing = [name for name in ids if name not in hashes]
    if missing and not problems:
        problems = [
            f"{path.name}: has no line for request {missing[0]!r:.40} ({len(missing)} missing in all)"
        ]
    if problems:
        raise RecordedRunError(problems)
    flat = np.array([name for request in ids for name in hashes[request]], dtype=np.uint64)
    offsets = np.concatenate([[0], np.cumsum([len(hashes[request]) for request in ids])]).astype(np.int64)
    return blocks_of(PrefixHashes(flat, offsets, block), prompts, block)


def _wrong_hashes(line: Mapping[str, Any], tokens: Mapping[Any, int], block: int) -> str | None:
    for name in ("request_id", "hash_ids"):
        if name not in line:
            return f"{name} is missing"
    request, found = line["request_id"], line["hash_ids"]
    if not isinstance(request, str | int) or request not in tokens:
        return f"there is no request {request!r:.40} in requests.jsonl"
    whole = isinstance(found, list) and all(isinstance(name, int) and 0 <= name < 2**64 for name in found)
    if not whole:
        return "hash_ids must be a list of whole numbers from 0 to 2^64 - 1"
    if len(found) not in (tokens[request] // block, -(-tokens[request] // block)):
        return (
            f"hash_ids has {len(found)} entries, a prompt of {tokens[request]} tokens has"
            f" {tokens[request] // block} full blocks of {block}"
        )
    return None


def _object(path: Path) -> Mapping[str, Any]:
    try:
        content = strict_json.read(_text(path))
    except strict_json.JsonError as error:
        raise RecordedRunError([f"{path.name}: {error}"]) from error
    if not isinstance(content, dict):
        raise RecordedRunError([f"{path.name}: must be a JSON object"])
    return content


def _lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The objects of a JSON lines file with their line numbers; blank lines are passed over."""
    for number, text in enumerate(_text(path).split("\n"), 1):
        if not text.strip():
            continue
        try:
            line = strict_json.read(text)
        except strict_json.JsonError as error:
            raise RecordedRunError([f"{path.name}: line {number}: {error}"]) from error
        if not isinstance(line, dict):
            raise RecordedRunError([f"{path.name}: line {number}: must be a JSON object"])
        yield number, line


def _text(path: Path) -> str:
    try:
        return read_bytes(path, MAX_BYTES).decode("utf-8-sig")
    except FileNotFoundError as error:
        raise RecordedRunError([f"{path.name}: is missing"]) from error
    except UnicodeDecodeError as error:
        raise RecordedRunError([f"{path.name}: is not UTF-8 text"]) from error
    except UnpackError as error:
        raise RecordedRunError([f"{path.name}: {error}"]) from error
    except OSError as error:
        raise RecordedRunError([f"{path.name}: {error.strerror}"]) from error
