#!/usr/bin/env bash
# Runs the tests and closes with "N passed, N failed". Called by ./dev test, which sets PYTHON.
#   (nothing)   lint, unit and op tests (plain and under sanitizers), pytest, a short fuzz run
#   full DIR    the long comparison over the given material (HEARTH_SHARED=DIR pytest)
#   unit | op | python | lint | fuzz   one part
set -uo pipefail
cd "$(dirname "$0")/.."
passed=0 failed=0
jobs="$(nproc)"
log="$(mktemp)"
trap 'rm -f "$log"' EXIT

count() { # count NAME STATUS PASSED FAILED: one program's result
    passed=$((passed + $3))
    failed=$((failed + $4))
    if [ "$2" != 0 ] && [ "$4" = 0 ]; then failed=$((failed + 1)) && set -- "$1" "$2" "$3" 1; fi
    printf '%-44s %4d passed %3d failed\n' "$1" "$3" "$4"
    if [ "$4" != 0 ]; then tail -n 60 "$log"; fi
}

run_cmocka() { # run_cmocka NAME PROGRAM
    timeout 600 "$2" >"$log" 2>&1
    local status=$? p f
    p=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test(s)\..*/\1/p' "$log" | tail -n1)
    f=$(sed -n 's/^\[  FAILED  \] \([0-9]*\) test(s), listed below.*/\1/p' "$log" | tail -n1)
    count "$1" $status "${p:-0}" "${f:-0}"
}

run_pytest() { # run_pytest NAME ARGS...
    local name="$1"
    shift
    timeout 3000 "$PYTHON" -m pytest -q -x --maxfail=20 -p no:cacheprovider "$@" >"$log" 2>&1
    local status=$? p f e
    [ $status = 5 ] && return # nothing collected
    p=$(grep -oE '[0-9]+ passed' "$log" | tail -n1 | cut -d' ' -f1)
    f=$(grep -oE '[0-9]+ failed' "$log" | tail -n1 | cut -d' ' -f1)
    e=$(grep -oE '[0-9]+ errors?' "$log" | tail -n1 | cut -d' ' -f1)
    count "$name" $status "${p:-0}" $((${f:-0} + ${e:-0}))
}

step() { # step NAME COMMAND...: counts as one test
    local name="$1"
    shift
    "$@" >"$log" 2>&1
    local status=$?
    [ $status = 0 ] && count "$name" 0 1 0 || count "$name" $status 0 1
}

part_lint() { step lint tools/lint.sh; }

part_unit() { # plain, then address+undefined sanitizers; the threaded ones under the thread sanitizer
    step "build" make -s -j"$jobs" all tests
    for t in build/tests/unit/*_test; do run_cmocka "${t#build/tests/}" "$t"; done
    step "build asan" make -s -j"$jobs" SAN=asan tests
    for t in build-asan/tests/unit/*_test; do run_cmocka "asan ${t#build-asan/tests/}" "$t"; done
    step "build tsan" make -s -j"$jobs" SAN=tsan tests
    for t in base engine; do
        [ -e build-tsan/tests/unit/${t}_test ] && run_cmocka "tsan unit/${t}_test" build-tsan/tests/unit/${t}_test
    done
}

part_op() {
    step "build" make -s -j"$jobs" all tests
    for t in build/tests/op/*_test; do run_cmocka "${t#build/tests/}" "$t"; done
    step "build asan" make -s -j"$jobs" SAN=asan tests
    for t in build-asan/tests/op/*_test; do HEARTH_TEST_SHORT=1 run_cmocka "asan ${t#build-asan/tests/}" "$t"; done
}

part_python() {
    step "build" make -s -j"$jobs" all tests
    for d in parity api cli web; do
        [ -d tests/$d ] && run_pytest "pytest tests/$d" tests/$d
    done
}

part_fuzz() { step "fuzz (short)" tools/fuzz.sh "${FUZZ_SECONDS:-10}"; }

part_full() {
    [ -d "${1:-}" ] || { echo "usage: ./dev test full DIR" >&2 && exit 2; }
    HEARTH_SHARED="$(realpath "$1")"
    export HEARTH_SHARED
    step "build" make -s -j"$jobs" all tests
    run_cmocka unit/checkpoint_shared_test build/tests/unit/checkpoint_shared_test
    run_pytest "pytest tests/parity (full)" tests/parity
}

case "${1:-all}" in
all) part_lint && part_unit && part_op && part_python && part_fuzz ;;
lint | unit | op | python | fuzz | full) "part_$1" "${@:2}" ;;
*) echo "usage: tools/test.sh [lint|unit|op|python|fuzz|full DIR]" >&2 && exit 2 ;;
esac
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
