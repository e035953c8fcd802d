"""Fields of one JSON object, each checked by the rules of all JSON lines; what is wrong goes to `problems`."""

from __future__ import annotations

from typing import Any

from planner.traffic.columns import MAX_CLASS_BYTES
from planner.traffic.json_values import count_problem, hash_problem, time_value_problem
from planner.traffic.problems import Problems


class Fields:
    """Reads values of one line; `sound` is False once one was wrong."""

    def __init__(self, line: int, row: dict[str, Any], problems: Problems) -> None:
        self.line, self.row, self.problems = line, row, problems
        self.sound = True

    def wrong(self, name: str | None, message: str) -> None:
        self.sound = False
        self.problems.add(self.line, name, message)

    def count(self, *names: str) -> int:
        """A token count under the first of these names that is there."""
        name = next((name for name in names if self.row.get(name) is not None), names[0])
        problem = count_problem(self.row.get(name))
        if problem:
            self.wrong(name, problem)
            return 0
        return int(self.row[name])

    def seconds(self, name: str, scale: float, *, default: float | None = None) -> float | None:
        """A time or a span that is not negative, in seconds; `default` where it is missing or null."""
        value = self.row.get(name)
        if value is None:
            return default
        problem = time_value_problem(value)
        if problem:
            self.wrong(name, problem)
            return default
        return float(value) * scale

    def hashes(self, name: str = "hash_ids") -> list[int] | None:
        value = self.row.get(name)
        problem = hash_problem(value)
        if problem:
            self.wrong(name, problem)
            return None
        return value

    def name(self, key: str) -> str | None:
        """A name that is text or a whole number, None where it is missing."""
        value = self.row.get(key)
        if value is None or value == "":
            return None
        if isinstance(value, bool) or not isinstance(value, str | int):
            self.wrong(key, "neither text nor a whole number")
            return None
        text = str(value)
        if len(text.encode("utf-8", "replace")) > MAX_CLASS_BYTES * 2:
            self.wrong(key, f"longer than {MAX_CLASS_BYTES * 2} characters")
            return None
        return text

    def inside(self, name: str) -> Fields:
        """The fields of the object under `name`; of an empty one where it is missing."""
        value = self.row.get(name)
        if value is not None and not isinstance(value, dict):
            self.wrong(name, "not an object")
        return Fields(self.line, value if isinstance(value, dict) else {}, self.problems)
