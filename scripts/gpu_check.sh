#!/usr/bin/env bash
# Is the engine right on this GPU, and what does it measure there?   scripts/gpu_check.sh quick|full|replay [FOLDER]
#   quick   at most 2 minutes: kernels, graphs and engine against float64; the device's ceilings
#   full    quick, then at most 5 minutes: calibrations of an 8B-shaped and a 0.6B-shaped model
#   replay  at most 3 minutes: calibrates the 8B-shaped model (unless FOLDER has it from full), serves requests at 80 % of
#           what it holds, and compares with the simulation: bars of 10 % at p50 and p95, 15 % at p99. Needs numba, too.
# Needs this repository, Python 3.11 or newer, torch 2.9 or newer with Triton, numpy and scipy; no Django, no network.
# Writes at most 8 files into FOLDER (default: $OUT, else var/gpu_check). DEVICE=cpu is a dry run with tiny models.
# Exit status: 0 all as it must be, 1 something is wrong (the files say what), 2 called wrongly.
set -euo pipefail
cd "$(dirname "$0")/.."

mode="${1:-}"
out="${2:-${OUT:-var/gpu_check}}"
device="${DEVICE:-cuda:0}"
python="${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}"
case "$mode" in
    quick | full | replay) ;;
    *)
        sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
        exit 2
        ;;
esac
mkdir -p "$out"
out="$(cd "$out" && pwd)"
export RIDGELINE_LOCK_DIR="${RIDGELINE_LOCK_DIR:-$out/.locks}" PYTHONUNBUFFERED=1
status=0
say() { printf '== %s (%ss)\n' "$*" "$SECONDS"; }
limited() { timeout --signal=INT --kill-after=10 "$@"; }

{
    echo "{"
    echo " \"mode\": \"$mode\", \"device\": \"$device\","
    echo " \"commit\": \"$(git rev-parse HEAD 2>/dev/null || echo unknown)\","
    echo " \"changed_files\": $(git status --porcelain 2>/dev/null | wc -l),"
    echo " \"started_at\": \"$(date -u +%Y-%m-%dT%H:%M:%SZ)\","
    echo " \"gpu\": \"$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -1 || true)\","
    echo " \"clocks\": \"$(nvidia-smi --query-gpu=clocks.sm,clocks.mem --format=csv,noheader 2>/dev/null | head -1 || true)\""
    echo "}"
} >"$out/provenance.json"

quick() {
    say "quick: right, and how fast the device is at most"
    (
        if [ "$device" = cpu ]; then export TRITON_INTERPRET=1; fi
        limited 120 "$python" -m calibration.engine.check_device --device "$device" --out "$out/quick.json"
    ) || status=1
}

# calibrate SECONDS NAME MODEL OPTION...: at most so long, into NAME.json
calibrate() {
    local seconds="$1" name="$2" model="$3" code=0
    shift 3
    say "calibrating $name"
    limited "$seconds" "$python" -m calibration.measure --model "$model" --device "$device" "$@" --seed 1 \
        --out "$out/$name.json" >"$out/$name.summary.json" 2>"$out/$name.log" || code=$?
    tail -1 "$out/$name.summary.json" || true
    # 3: the gate refused; the file then holds samples and reason, and that is a finding.
    [ "$code" -eq 0 ] || status=1
    [ "$code" -eq 0 ] || say "$name ended with status $code (3: refused by the gate; see $name.log)"
}

large=(--max-batch 64 --max-context-tokens 8192 --max-step-tokens 4096 --kv-tokens 300000)
small=(--max-batch 4 --max-context-tokens 128 --max-step-tokens 32 --kv-tokens 2048 --dtype float32)

full() {
    if [ "$device" = cpu ]; then
        calibrate 150 dry-run scripts/dry_run_model.json "${small[@]}"
    else
        calibrate 150 llama-8b llama-3.1-8b "${large[@]}"
        calibrate 150 qwen3-0.6b qwen3-0.6b "${large[@]}"
    fi
}

replay() {
    local name=llama-8b code=0 asked=(--preset chat --requests 200)
    if [ "$device" = cpu ]; then
        name=dry-run asked=(--requests 60 --divide-lengths 4)
        [ -s "$out/$name.json" ] || calibrate 100 "$name" scripts/dry_run_model.json "${small[@]}" --steps-only
    else
        [ -s "$out/$name.json" ] || calibrate 100 "$name" llama-3.1-8b "${large[@]}" --steps-only
    fi
    say "replay: at 80 % of what it holds, against the simulation"
    limited 75 "$python" -m planner.verification.offline "$out/$name.json" "${asked[@]}" --replays 3 --at-most-s 45 \
        --seed 1 --out "$out/replay.json" 2>&1 | tee "$out/replay.log" || code=$?
    # 1: outside the bars, and the report says where; 2: there was nothing to predict with.
    [ "$code" -eq 0 ] || status=1
}

case "$mode" in
    quick) quick ;;
    full) quick && full ;;
    replay) replay ;;
esac
rm -rf "$out/.locks"
say "files in $out: $(find "$out" -maxdepth 1 -type f | wc -l)"
exit "$status"
