"""Results of load generators: evidence of how one server answered, never a trace.

run.py says what a result holds · checks.py whether its figures can be true together · the other modules read
one tool's files each · evidence.py puts it together for a refusal.
"""

from planner.traffic.benchmarks.checks import Check, check_run
from planner.traffic.benchmarks.evidence import BenchmarkResult, benchmark_result
from planner.traffic.benchmarks.run import Run

__all__ = ["BenchmarkResult", "Check", "Run", "benchmark_result", "check_run"]
