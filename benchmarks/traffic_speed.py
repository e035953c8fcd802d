"""CPU time and memory of reading large traces: `python benchmarks/traffic_speed.py [rows]` (default 1,000,000).

Each file is read in a process of its own, so that its peak memory is its own. One JSON object a line.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from planner.traffic import TooLarge, read_traffic, statistics, to_npz_bytes

BAR_S_PER_MILLION = 3.0


def main(rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for path in write_files(Path(folder), rows):
            command = [sys.executable, __file__, "--measure", str(path)]
            line = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            print(line, end="", flush=True)
            path.unlink()


def measure(path: Path) -> None:
    before_mib = peak_mib()
    start = time.process_time()
    try:
        traffic = read_traffic(path)
    except TooLarge as error:
        print(json.dumps({"file": path.name, "refused": error.to_dict()["limit"]}))
        return
    read_s = time.process_time() - start
    read_mib = peak_mib()
    start = time.process_time()
    statistics(traffic)
    statistics_s = time.process_time() - start
    start = time.process_time()
    stored = to_npz_bytes(traffic)
    report = {
        "file": path.name,
        "file_mb": round(path.stat().st_size / 1e6, 1),
        "rows": traffic.requests,
        "read_cpu_s": round(read_s, 2),
        "statistics_cpu_s": round(statistics_s, 2),
        "store_cpu_s": round(time.process_time() - start, 2),
        "stored_mb": round(len(stored) / 1e6, 1),
        "started_mib": before_mib,
        "read_peak_mib": read_mib,
        "peak_mib": peak_mib(),
        "within_bar": read_s <= BAR_S_PER_MILLION * max(1, traffic.requests / 1e6),
    }
    print(json.dumps(report))


def peak_mib() -> int:
    """Peak memory of this program (Linux). getrusage would start from the peak of the one that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) >> 10


def write_files(folder: Path, rows: int) -> list[Path]:
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.exponential(0.2, rows))
    prompts, outputs = rng.integers(1, 8_000, rows), rng.integers(1, 900, rows)
    lengths = list(zip(prompts.tolist(), outputs.tolist(), strict=True))
    stamps = np.datetime64("2023-11-16T18:17:03.979960000", "ns") + (times * 1e7).astype("int64") * 100
    texts = [f"{text[:10]} {text[11:27]}" for text in np.datetime_as_string(stamps, "ns").tolist()]
    files = {
        "azure.csv": ("TIMESTAMP,ContextTokens,GeneratedTokens", texts, "{},{},{}\r\n"),
        "decimals.csv": ("arrived_at,num_prefill_tokens,num_decode_tokens", times, "{:.6f},{},{}\n"),
        "seventeen_digits.csv": ("time,input_tokens,output_tokens", (times + 1.7e9).tolist(), "{!r},{},{}\n"),
        "quoted.csv": ("time,input_tokens,output_tokens", times, '"{:.6f}","{}","{}"\n'),
    }
    written = []
    for name, (header, column, form) in files.items():
        path = folder / name
        with path.open("w", newline="") as file:
            file.write(header + ("\r\n" if "\r\n" in form else "\n"))
            file.writelines(form.format(t, p, o) for t, (p, o) in zip(column, lengths, strict=True))
        written.append(path)
    path = folder / "inner_quotes.csv"
    with path.open("w") as file:
        file.write("time,input_tokens,output_tokens,prompt\n")
        file.writelines(
            f'{t:.6f},{p},{o},"said ""{p}"", and left"\n' for t, (p, o) in zip(times, lengths, strict=True)
        )
    written.append(path)
    path = folder / "mooncake.jsonl"
    with path.open("w") as file:
        for t, (p, o) in zip((times * 1e3).astype(int).tolist(), lengths, strict=True):
            hashes = list(range(-(-p // 512)))
            file.write(
                f'{{"timestamp": {t}, "input_length": {p}, "output_length": {o}, "hash_ids": {hashes}}}\n'
            )
    return [*written, path]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(Path(sys.argv[2]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
