"""CPU time and memory of reading large traces: `python benchmarks/traffic_speed.py [rows]` (default 1,000,000).

Each file is read in a process of its own, so that its peak memory is its own. One JSON object a line. With
`--job [rows]` (default 5,000,000) the whole import is measured as a worker does it: a held file of Azure's form
through the job to the stored traffic, in a database of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from planner.traffic import TooLarge, read_traffic, statistics, to_npz_bytes

BAR_S_PER_MILLION = 3.0
JOB_BAR_S, JOB_BAR_MB = 15.0, 500.0  # for five million rows


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


def job(rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_files(Path(folder), rows, only="azure.csv")[0]
        environment = {**os.environ, "RIDGELINE_DATA_DIR": folder, "DATABASE_URL": "", "REDIS_URL": ""}
        environment["MAX_UPLOAD_BYTES"] = environment["MAX_UNPACKED_BYTES"] = str(1 << 30)
        command = [sys.executable, __file__, "--measure-job", str(path)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        print(done.stdout.splitlines()[-1], flush=True)


def measure_job(path: Path) -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
    import django

    django.setup()
    from django.core.files.uploadedfile import UploadedFile
    from django.core.management import call_command

    from accounts.access import current_project
    from accounts.single_user import local_user
    from calibration import jobs
    from planner import import_work, uploads
    from planner.models import TrafficImport

    jobs._send = lambda task, pk: None
    call_command("migrate", verbosity=0)
    user = local_user()
    with path.open("rb") as opened:
        upload = UploadedFile(opened, path.name, size=path.stat().st_size)
        held = uploads.hold(current_project(user), user, upload, path.name)
    row = import_work.start_import(held, user, "large", {}, keep=False)
    started_mib, start, wall = peak_mib(), time.process_time(), time.perf_counter()
    status = jobs.run(TrafficImport, str(row.pk), import_work.import_traffic)
    cpu_s = time.process_time() - start
    row.refresh_from_db()
    report = {
        "job": status, "file_mb": round(path.stat().st_size / 1e6, 1),
        "requests": row.traffic.statistics["requests"] if row.traffic else 0, "cpu_s": round(cpu_s, 2),
        "wall_s": round(time.perf_counter() - wall, 2), "started_mib": started_mib, "peak_mib": peak_mib(),
        "within_bar": cpu_s <= JOB_BAR_S and peak_mib() * 1.048576 <= JOB_BAR_MB, "error": row.error,
    }  # fmt: skip
    print(json.dumps(report))


def peak_mib() -> int:
    """Peak memory of this program (Linux). getrusage would start from the peak of the one that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) >> 10


def write_files(folder: Path, rows: int, only: str = "") -> list[Path]:
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
        if name == only:
            return written
    for name, text in (("inner_quotes", 'said ""{p}"", and left'), ("line_ends", "first, line\nsecond {p}")):
        path = folder / f"{name}.csv"
        with path.open("w") as file:
            file.write("time,input_tokens,output_tokens,prompt\n")
            file.writelines(
                f'{t:.6f},{p},{o},"{text.format(p=p)}"\n' for t, (p, o) in zip(times, lengths, strict=True)
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
    elif sys.argv[1:2] == ["--measure-job"]:
        measure_job(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["--job"]:
        job(int(sys.argv[2]) if len(sys.argv) > 2 else 5_000_000)
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
