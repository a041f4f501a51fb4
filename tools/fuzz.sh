#!/usr/bin/env bash
# Builds the fuzz targets with clang and runs each: fuzz.sh [SECONDS] [TARGET ...]. Seeds: tests/fuzz/seeds/TARGET (optional).
# Found inputs stay in build-fuzz/corpus; a crash leaves its input in build-fuzz/ and fails the run.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds="${1:-60}"
[ $# -gt 0 ] && shift
make -s -j"$(nproc)" SAN=fuzz fuzz
failed=0
targets=("$@")
[ ${#targets[@]} -gt 0 ] || for f in build-fuzz/tests/fuzz/*_fuzz; do targets+=("$(basename "$f" _fuzz)"); done
for name in "${targets[@]}"; do
    mkdir -p "build-fuzz/corpus/$name"
    seeds=()
    [ -d "tests/fuzz/seeds/$name" ] && seeds=("tests/fuzz/seeds/$name")
    if "build-fuzz/tests/fuzz/${name}_fuzz" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -max_len=16384 \
        -artifact_prefix="build-fuzz/$name-" -print_final_stats=1 "build-fuzz/corpus/$name" "${seeds[@]}" >"build-fuzz/$name.log" 2>&1; then
        echo "$name: $(grep -o 'number_of_executed_units: [0-9]*' "build-fuzz/$name.log" | grep -o '[0-9]*') inputs, no failure"
    else
        tail -n 40 "build-fuzz/$name.log"
        echo "$name: FAILED"
        failed=1
    fi
done
exit $failed
