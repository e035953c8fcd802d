"""manage.py simulate: any engine and topology on a traffic, told in full; mistakes named by their option."""

from __future__ import annotations

import contextlib
import csv
import io
import json

import pytest
from django.core.management import CommandError, call_command

from planner.management.commands import simulate
from planner.models import TrafficSet
from planner.simulate_options import ENGINES

pytestmark = pytest.mark.django_db


@pytest.fixture
def asked(published):
    """Run it on 60 made-up requests; the exit code, the JSON line, all lines."""

    def run(*argv: str) -> tuple[int, dict, str]:
        out = io.StringIO()
        code = 0
        try:
            call_command(
                "simulate", "--calibration", str(published.pk), "--user", published.owner.get_username(),
                "--traffic", "demo", "--requests", "60", *argv, "--json", stdout=out,
            )  # fmt: skip
        except SystemExit as error:
            code = int(error.code or 0)
        except CommandError as error:
            code = error.returncode
        return code, json.loads(out.getvalue().splitlines()[-1]), out.getvalue()

    run.arguments = (
        "simulate", "--calibration", str(published.pk), "--user", published.owner.get_username()
    )  # fmt: skip
    return run


def test_one_replica_told_in_full(asked, tmp_path) -> None:
    rows, seen = tmp_path / "rows.csv", tmp_path / "seen.json"
    code, told, text = asked(
        "--knobs", "max_num_batched_tokens=256,max_num_seqs=8", "--objective", "ttft:p95:100",
        "--rows", str(rows), "--microscope", "s0:5", str(seen), "--series", "20",
    )  # fmt: skip
    assert code == 0
    assert told["engine"] == "vllm"
    assert (told["knobs"]["max_num_batched_tokens"], told["knobs"]["max_num_seqs"]) == (256, 8)
    assert told["knobs"]["num_blocks"] == 16_384 // 16 - 1  # the calibration's pool, but for vLLM's own block
    everybody = told["all"]
    assert everybody["offered"] == everybody["served"] == 60
    assert everybody["attainment"]["share"] == 1.0
    assert set(everybody["ttft_parts_s"]) == {"queue", "prefill", "chunk wait", "transfer", "first decode"}
    assert told["pools"][0]["kv_mean_share"] > 0
    assert 1 <= len(told["series"]["waiting"]) <= 20
    assert len(list(csv.DictReader(io.StringIO(rows.read_text())))) == 60
    steps = json.loads(seen.read_text())["steps"]
    assert [step["number"] for step in steps] == [0, 1, 2, 3, 4]
    assert "TTFT p95" in text
    assert "KV" in text
    assert not TrafficSet.objects.exists()  # nothing is stored


@pytest.mark.slow  # compiles every assembler
@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_every_engine(asked, engine: str) -> None:
    code, told, _ = asked("--engine", engine, "--objective", "ttft:p50:1e-9")
    assert code == 1
    assert told["all"]["served"] > 0
    assert told["all"]["attainment"]["objectives"][0]["holds"] is False


def test_two_pools_and_what_their_links_carry(asked, tmp_path) -> None:
    seen = tmp_path / "seen.json"
    code, told, text = asked(
        "--prefill", "1", "--decode", "2", "--link-gb-per-s", "10", "--microscope", "0:20", str(seen)
    )  # fmt: skip
    assert code == 0
    look = json.loads(seen.read_text())
    assert {step["replica"] for step in look["steps"]} == {0, 1, 2}
    assert "transfer" in {phase["name"] for way in look["requests"] for phase in way["phases"]}
    assert [pool["name"] for pool in told["pools"]] == ["prefill", "decode"]
    assert sum(link["moved_bytes"] for link in told["links"]) > 0
    assert told["all"]["ttft_parts_s"]["transfer"]["mean"] > 0
    assert "1 prefill and 2 decode replicas, pull" in text


def test_ranks_hand_over_what_each_of_them_keeps(asked, published) -> None:
    """Two KV heads: two ranks keep one each, four keep copies, and twice the bytes move."""
    moved = []
    for ranks in (1, 2, 4):
        type(published).objects.filter(pk=published.pk).update(tensor_parallel=ranks)
        told = asked("--prefill", "1", "--decode", "1", "--link-gb-per-s", "10")[1]
        moved.append(sum(link["moved_bytes"] for link in told["links"]))
    assert moved[0] > 0
    assert moved == pytest.approx([moved[0], moved[0], 2 * moved[0]])


def test_guessed_tokens_by_the_knobs_of_vllm(asked) -> None:
    plain, told = (
        asked("--knobs", "max_num_batched_tokens=256,max_num_seqs=8" + more)[1]
        for more in ("", ",num_speculative_tokens=3,acceptance_rate=0.9,method=mtp")
    )
    assert told["knobs"]["speculative_config"]["method"] == "mtp"
    assert told["all"]["served"] == 60
    assert sum(told["pools"][0]["steps"].values()) < sum(plain["pools"][0]["steps"].values())


def test_guessed_tokens_beside_a_prefix_cache_and_in_the_decode_pool(asked) -> None:
    guessed = "num_speculative_tokens=3,acceptance_rate=0.9"
    code, told, _ = asked("--knobs", f"max_num_batched_tokens=256,max_num_seqs=8,prefix_caching=on,{guessed}")
    assert code == 0
    assert told["all"]["served"] == 60
    plain, two = (
        asked("--prefill", "1", "--decode", "1", "--link-gb-per-s", "10", "--decode-knobs", knobs)[1]
        for knobs in ("max_num_seqs=8", f"max_num_seqs=8,{guessed}")
    )
    assert two["knobs"]["decode"]["speculative_config"]["num_speculative_tokens"] == 3
    assert two["knobs"]["prefill"]["speculative_config"] is None
    assert sum(two["pools"][1]["steps"].values()) < sum(plain["pools"][1]["steps"].values())


def test_clients_in_a_closed_loop_behind_a_warm_up(asked) -> None:
    code, told, _ = asked("--replicas", "2", "--concurrency", "4", "--warm-up", "10")
    assert code == 0
    assert (told["verdict"], told["warm_up_requests"], told["all"]["offered"]) == ("not judged", 10, 50)
    assert told["pools"][0]["peak_running"] <= 4


@pytest.mark.parametrize(
    ("argv", "option", "message"),
    [
        (("--knobs", "max_num_sequences=8"), "--knobs", "vllm has no knob 'max_num_sequences': it has max_num"),
        (("--knobs", "max_num_seqs"), "--knobs", "write name=value,name=value, not 'max_num_seqs'"),
        (("--knobs", "max_num_seqs=a"), "--knobs", "max_num_seqs is a whole number, not 'a'"),
        (("--knobs", "max_num_seqs=0"), "--knobs", "max_num_seqs must be at least 1, not 0"),
        (("--knobs", "async_scheduling=2"), "--knobs", "async_scheduling is on or off"),
        (("--knobs", "block_size=0"), "--knobs", "block_size must be at least 1"),
        (("--knobs", "max_num_seqs=1,max_num_seqs=2"), "--knobs", "max_num_seqs is given twice"),
        (("--knobs", "block_size=1000000"), "--knobs", "no block of 1000000 tokens"),
        (("--knobs", "num_speculative_tokens=3"), "--knobs", "needs num_speculative_tokens and acceptance_rate"),
        (("--knobs", "num_speculative_tokens=3,acceptance_rate=2"), "--knobs", "acceptance_rate must be in"),
        (("--knobs", "num_speculative_tokens=3,acceptance_rate=0.7", "--prefill", "1", "--decode", "1",
          "--link-gb-per-s", "10"), "--knobs", "simulated in the decode pool only: give it with --decode-knobs"),
        (("--prefill-knobs", "num_speculative_tokens=3,acceptance_rate=0.7", "--prefill", "1", "--decode", "1",
          "--link-gb-per-s", "10"), "--prefill-knobs", "simulated in the decode pool only"),
        (("--knobs", "num_speculative_tokens=8,acceptance_rate=0.7,max_num_batched_tokens=8"), "--knobs",
         "max_num_batched_tokens must be more than the 8 tokens"),
        (("--prefill", "1"), "--decode", "two pools need both"),
        (("--prefill", "1", "--decode", "1"), "--link-gb-per-s", "the calibration measured none"),
        (("--replicas", "2", "--prefill", "1", "--decode", "1"), "--replicas", "give either"),
        (("--replicas", "0"), "--replicas", "must be at least 1, not 0"),
        (("--rate-multiplier", "0"), "--rate-multiplier", "must be above 0, not 0"),
        (("--rate-multiplier", "nan"), "--rate-multiplier", "must be above 0, not nan"),
        (("--objective", "ttft:p95"), "--objective", "write metric:percentile:seconds"),
        (("--class-objective", "chat=ttft:p95:1"), "--class-objective", "has no class 'chat': it has none"),
        (("--class-objective", "ttft:p95:1"), "--class-objective", "write CLASS="),
        (("--microscope", "5", "x.json"), "--microscope", "write FROM:TO in seconds"),
        (("--microscope", "5:4", "x.json"), "--microscope", "5 s to 4 s is no window"),
        (("--microscope", "s0:1", "x.json", "--replicas", "2"), "--microscope", "looks at one replica"),
        (("--rows", "/nowhere/rows.csv"), "--rows", "there is no folder /nowhere"),
        (("--warm-up", "60"), "--warm-up", "there are 60 requests"),
        (("--concurrency", "9" * 20), "--concurrency", "must be at most 1e+06"),
        (("--knobs", "num_blocks=" + "9" * 20), "--knobs", "of at most 1,000,000,000"),
        (("--knobs", "num_speculative_tokens=3,acceptance_rate=nan"), "--knobs", "acceptance_rate is a number"),
        (("--decode-knobs", "max_num_seqs=0", "--prefill", "1", "--decode", "1", "--link-gb-per-s", "1"),
         "--decode-knobs", "max_num_seqs must be at least 1"),
        (("--prefill", "1", "--decode", "1", "--link-gb-per-s", "1e308"), "--link-gb-per-s", "at most 1e+09"),
        (("--prefill", "1", "--decode", "1", "--link-gb-per-s", "1e-12"), "--link-gb-per-s", "bytes_per_s must"),
        (("--prefill", "1", "--decode", "1", "--link-gb-per-s", "1", "--link-latency-s", "1e308"),
         "--link-latency-s", "at most 60"),
        (("--host-gap-ms", "1e308"), "--host-gap-ms", "must be at most 1000"),
        (("--host-gap-s", "2"), "--host-gap-s", "must be at most 1"),
        (("--host-gap-s", "0.001", "--host-gap-ms", "1"), "--host-gap-ms", "give one of them"),
        (("--max-model-len", "100"), "--max-model-len", "a preset is made"),
        (("--ttft-limit-s", "0"), "--ttft-limit-s", "must be above 0"),
        (("--series", "5", "--rows", "/proc/none.csv"), "--rows", "cannot be written"),
        (("--rows", "nul\0.csv"), "--rows", "cannot be written: embedded null"),
        (("--rows", "x" * 300), "--rows", "cannot be written: File name too long"),
        (("--rows", "same.out", "--microscope", "0:1", "./same.out"), "--microscope", "--rows writes to same.out"),
        (("--hand-off", "pull"), "--hand-off", "needs two pools: --prefill and --decode"),
        (("--prefill-knobs", "max_num_seqs=2"), "--prefill-knobs", "needs two pools"),
        (("--local-prefill-tokens", "0"), "--local-prefill-tokens", "needs two pools"),
        (("--link-gb-per-s", "1"), "--link-gb-per-s", "needs two pools"),
        (("--link-latency-s", "1"), "--link-latency-s", "needs a link: --link-gb-per-s"),
        (("--think-ms", "1"), "--think-ms", "needs a closed loop"),
        (("--concurrency", "2", "--rate-multiplier", "2"), "--rate-multiplier", "has no arrivals"),
        (("--router", "round robin"), "--router", "has one replica only"),
        (("--prefix-pool-blocks", "5"), "--prefix-pool-blocks", "needs a prefix pool"),
        (("--prefix-pool-gb-per-s", "5"), "--prefix-pool-gb-per-s", "needs a prefix cache"),
        (("--prefix-pool-gb-per-s", "5", "--knobs", "prefix_caching=on"), "--prefix-pool-gb-per-s",
         "does not say which prompts begin alike"),
        (("--prefix-pool-gb-per-s", "5", "--hit-share", "0.5"), "--hit-share", "are not assumed"),
        (("--class-priority", "a=1"), "--class-priority", "has no class 'a': it has none"),
        (("--class-ttft-limit-s", "1"), "--class-ttft-limit-s", "write CLASS=NUMBER"),
        (("--hit-share", "0.5"), "--hit-share", "needs a prefix cache"),
    ],
)  # fmt: skip
def test_a_mistake_names_its_option(asked, argv, option: str, message: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, told, _ = asked(*argv)
    assert code == 2
    (error,) = told["errors"]
    assert error["field"] == option
    assert message in error["message"]
    assert not list(tmp_path.iterdir()), "nothing was written"


def test_pools_with_knobs_of_their_own(asked) -> None:
    code, told, _ = asked(
        "--prefill", "1", "--decode", "1", "--link-gb-per-s", "10", "--message-s", "0.001",
        "--knobs", "max_num_seqs=16", "--prefill-knobs", "max_num_batched_tokens=512",
        "--decode-knobs", "max_num_seqs=4",
    )  # fmt: skip
    assert code == 0
    knobs = told["knobs"]
    assert (knobs["prefill"]["max_num_batched_tokens"], knobs["prefill"]["max_num_seqs"]) == (512, 16)
    assert knobs["decode"]["max_num_seqs"] == 4
    assert told["pools"][1]["peak_running"] <= 4


def test_early_rejection_and_priorities_of_classes(asked, tmp_path) -> None:
    """200 prompts come at once; the later half is urgent."""
    trace = tmp_path / "trace.csv"
    lines = [f"{i / 1000},400,40,{'urgent' if i >= 100 else 'batch'}" for i in range(200)]
    trace.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,class", *lines]) + "\n")

    def told(*argv: str) -> dict:
        out = io.StringIO()
        with contextlib.suppress(SystemExit):
            call_command(*asked.arguments, "--traffic", str(trace), *argv, "--json", stdout=out)
        return json.loads(out.getvalue().splitlines()[-1])["classes"]

    plain = told("--knobs", "policy=priority,max_num_seqs=8")
    first = told("--knobs", "policy=priority,max_num_seqs=8", "--class-priority", "batch=1")
    assert first["urgent"]["latency_s"]["ttft"]["mean"] < plain["urgent"]["latency_s"]["ttft"]["mean"]
    strict = told("--knobs", "max_num_seqs=8", "--class-ttft-limit-s", "urgent=0.01")
    assert strict["batch"]["served"] == 100
    assert sum(strict["urgent"]["refused"].values()) > 0


def test_replicas_share_a_prefix_pool(asked, tmp_path) -> None:
    """Everybody asks about the same document: who comes to a replica first fetches what another has computed."""
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 1000 * i, "input_length": 600, "output_length": 4, "hash_ids": [7, 100 + i]}
        for i in range(8)
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def prefill_s(*argv: str) -> float:
        out = io.StringIO()
        argv = ("--replicas", "4", "--knobs", "prefix_caching=on", *argv)
        call_command(*asked.arguments, "--traffic", str(trace), *argv, "--json", stdout=out)
        told = json.loads(out.getvalue().splitlines()[-1])
        return told["all"]["ttft_parts_s"]["prefill"]["mean"]

    assert prefill_s("--prefix-pool-gb-per-s", "1000") < 0.8 * prefill_s()


def test_a_trace_is_not_overwritten_by_what_is_told_of_it(asked, tmp_path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,10\n1,10,10\n")
    with pytest.raises(CommandError, match="would overwrite the traffic"):
        call_command(*asked.arguments, "--traffic", str(trace), "--rows", str(trace))
    with pytest.raises(CommandError, match="--requests says how many requests a preset makes"):
        call_command(*asked.arguments, "--traffic", str(trace), "--requests", "5")


def test_the_first_run_says_that_it_compiles(asked, monkeypatch) -> None:
    monkeypatch.setattr(simulate.ready, "wait", lambda on_wait, engine: (on_wait(), on_wait()))
    err = io.StringIO()
    call_command(
        *asked.arguments, "--traffic", "preset:demo", "--requests", "5", stdout=io.StringIO(), stderr=err
    )
    assert err.getvalue().count("Compiling the simulator") == 1


def test_a_full_disk_is_told(asked) -> None:
    code, told, _ = asked("--rows", "/dev/full")
    assert code == 2
    assert told["errors"] == [
        {"field": "--rows", "message": "/dev/full cannot be written: No space left on device"}
    ]


def test_without_a_published_calibration(calibration) -> None:
    with pytest.raises(CommandError, match="not published") as caught:
        call_command(
            "simulate", "--calibration", str(calibration.pk), "--traffic", "demo",
            "--user", calibration.owner.get_username(),
        )  # fmt: skip
    assert caught.value.returncode == 3


@pytest.mark.parametrize("option", ["--seed", "--rate-per-s", "--max-model-len"])
def test_what_reads_a_file_does_nothing_to_a_stored_traffic(asked, traffic, option) -> None:
    with pytest.raises(
        CommandError, match=f"{option} belongs to reading a file: a stored traffic has been read"
    ):
        call_command(*asked.arguments, "--traffic", str(traffic.pk), option, "7")


def test_the_host_gap_in_seconds_is_the_one_in_milliseconds(asked) -> None:
    seconds, milliseconds = asked("--host-gap-s", "0.002"), asked("--host-gap-ms", "2")
    assert seconds[1] == milliseconds[1] != asked()[1]


def test_what_was_mostly_never_measured_is_warned_of(asked) -> None:
    """A pool of 400 sequences where eight were measured."""
    plain = asked("--rate-multiplier", "0.1")[2]
    assert "WARNING" not in plain
    _, told, text = asked("--rate-multiplier", "1000")
    assert told["pools"][0]["uncovered_share"] > 0.5
    assert "WARNING: " in text.splitlines()[1]
    assert "steps that were never measured" in text
    assert "; measured up to " in told["outside"]
    assert f"  most of that in {told['outside']}" in text.splitlines()


def test_steps_under_the_microscope_say_what_was_not_measured_of_them(asked, tmp_path) -> None:
    seen = tmp_path / "seen.json"
    for more in ((), ("--replicas", "2")):
        window = "0:1" if more else "s0:200"
        asked("--rate-multiplier", "1000", "--microscope", window, str(seen), *more)
        steps = json.loads(seen.read_text())["steps"]
        beyond = [step for step in steps if step["outside"]]
        assert beyond
        assert all("measured" in step["outside"] for step in beyond)
        assert len(beyond) < len(steps), "the first and the last steps are small"


def test_mistakes_are_told_without_loading_the_pages() -> None:
    assert list(simulate.Command.requires_system_checks) == []
