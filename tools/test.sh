#!/usr/bin/env bash
# Runs the tests and closes with "N passed, N failed". Called by ./dev test, which sets PYTHON and CLIENTS_PYTHON.
#   (nothing)   lint, unit and op tests (plain and under sanitizers), pytest, a short fuzz run
#   full DIR    the long comparison over the given material (HEARTH_SHARED=DIR pytest)
#   unit | op | python | clients | lint | fuzz   one part
set -uo pipefail
cd "$(dirname "$0")/.."
passed=0 failed=0 skipped=0
jobs="$(nproc)"
log="$(mktemp)"
trap 'rm -f "$log"' EXIT
SECONDS=0

# One program's result. A status other than 0 without a failed test (a crash, a hang, a refusal) counts as one failure.
count() { # count NAME STATUS PASSED FAILED SKIPPED
    local name="$1" status="$2" p="$3" f="$4" s="$5" why=""
    if [ "$status" != 0 ] && [ "$f" = 0 ]; then
        f=1 why="  (status $status$([ "$status" = 124 ] || [ "$status" = 137 ] && echo ': took too long'))"
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    printf '%5d s  %-44s %4d passed %3d failed%s%s\n' "$SECONDS" "$name" "$p" "$f" "$([ "$s" = 0 ] || printf ' %3d skipped' "$s")" "$why"
    [ "$f" = 0 ] || tail -n 60 "$log"
}

number_before() { grep -oE "[0-9]+ $1" "$log" | tail -n1 | cut -d' ' -f1 | grep . || echo 0; }

run_cmocka() { # run_cmocka NAME PROGRAM
    timeout -k 10 1200 "$2" >"$log" 2>&1
    local status=$? s
    s=$(grep -c '^\[  SKIPPED \] [a-z]' "$log")
    # Lines, not the summary: a program that dies has none. The summary repeats the names of failures behind "listed below".
    count "$1" $status "$(grep -c '^\[       OK \]' "$log")" "$(sed '/listed below/,$d' "$log" | grep -c '^\[  FAILED  \]')" "$s"
    [ "$s" = 0 ] || sed -n 's/^\[  SKIPPED \] \([a-z].*\)/         skipped: \1/p' "$log" | sort -u
}

run_pytest() { # run_pytest NAME ARGS...
    local name="$1"
    shift
    timeout -k 10 1800 "$PYTHON" -m pytest -q -rs --timeout 300 -p no:cacheprovider "$@" >"$log" 2>&1
    local status=$?
    count "$name" $status "$(number_before passed)" $(($(number_before failed) + $(number_before errors?))) "$(number_before skipped)"
    sed -n 's/^SKIPPED \(.*\)/         skipped: \1/p' "$log"
}

step() { # step NAME COMMAND...: counts as one test
    local name="$1"
    shift
    timeout -k 10 1800 "$@" >"$log" 2>&1
    local status=$?
    [ $status = 0 ] && count "$name" 0 1 0 0 || count "$name" $status 0 1 0
}

part_lint() { step lint tools/lint.sh; }

part_unit() { # plain, then address+undefined sanitizers; the threaded ones under the thread sanitizer
    step "build" make -s -j"$jobs" all tests
    for t in build/tests/unit/*_test; do run_cmocka "${t#build/tests/}" "$t"; done
    step "build asan" make -s -j"$jobs" SAN=asan tests
    for t in build-asan/tests/unit/*_test; do # memory_test measures memory, of which a sanitizer takes its own
        [ "$t" = build-asan/tests/unit/memory_test ] || run_cmocka "asan ${t#build-asan/tests/}" "$t"
    done
    step "build tsan" make -s -j"$jobs" SAN=tsan build-tsan/tests/unit/{base,engine}_test
    for t in base engine; do run_cmocka "tsan unit/${t}_test" build-tsan/tests/unit/${t}_test; done
}

part_op() { # every operation at every instruction level
    step "build" make -s -j"$jobs" all tests
    for t in build/tests/op/*_test; do run_cmocka "${t#build/tests/}" "$t"; done
    step "build asan" make -s -j"$jobs" SAN=asan tests
    for t in build-asan/tests/op/*_test; do run_cmocka "asan ${t#build-asan/tests/}" "$t"; done
}

part_python() { # the HTTP surface a second time with a sanitized server
    step "build" make -s -j"$jobs" all tests
    for d in parity api cli web; do run_pytest "pytest tests/$d" tests/$d; done
    step "build asan" make -s -j"$jobs" SAN=asan all tests
    # test_library's programs have no sanitizer; a real model's 200 requests take half an hour under one (the scripted engine's do not)
    BUILD=build-asan run_pytest "asan pytest tests/api" tests/api --ignore tests/api/test_library.py --ignore tests/api/test_smollm2.py
}

part_clients() { # other people's programs, unmodified: litellm, LangChain, aider, schemathesis
    step "build" make -s -j"$jobs" all tests
    PYTHON="$CLIENTS_PYTHON" run_pytest "pytest tests/clients" tests/clients
}

part_fuzz() { # each target for a short while
    timeout -k 10 1200 tools/fuzz.sh "${FUZZ_SECONDS:-10}" >"$log" 2>&1
    local status=$?
    count "fuzz" $status "$(grep -c ': [0-9]* inputs, no failure' "$log")" "$(grep -c ': FAILED$' "$log")" 0
}

part_full() {
    [ -d "${1:-}" ] || { echo "usage: ./dev test full DIR" >&2 && exit 2; }
    HEARTH_SHARED="$(realpath "$1")"
    export HEARTH_SHARED
    step "build" make -s -j"$jobs" all tests
    run_cmocka unit/checkpoint_shared_test build/tests/unit/checkpoint_shared_test
    run_pytest "pytest tests/parity (full)" tests/parity
}

case "${1:-all}" in
all) part_lint; part_unit; part_op; part_python; part_clients; part_fuzz ;;
lint | unit | op | python | clients | fuzz | full) "part_$1" "${@:2}" ;;
*) echo "usage: tools/test.sh [lint|unit|op|python|clients|fuzz|full DIR]" >&2 && exit 2 ;;
esac
[ "$skipped" = 0 ] || echo "$skipped skipped (named above)"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
