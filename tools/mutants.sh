#!/usr/bin/env bash
# Shows that the tests have teeth: mutants.sh [NAME ...]. Each tests/mutants/NAME.patch is a bug of the kind that happens when a model
# is written down; its first line names the test program that must fail with it ("unit/model_test: what is wrong").
# The last commit is built in build-mutants/tree, a worktree of its own; the same programs must pass there without a patch.
set -uo pipefail
cd "$(dirname "$0")/.."
root="$PWD" tree="$PWD/build-mutants/tree" log="$PWD/build-mutants/log"
names=("$@")
[ $# -gt 0 ] || mapfile -t names < <(basename -s .patch tests/mutants/*.patch)
mkdir -p build-mutants
export CCACHE_NOHASHDIR=1 # objects of this tree serve the other: only paths for debuggers differ
trap 'git worktree remove --force "$tree"' EXIT
git worktree add --quiet --force --detach "$tree" HEAD || exit 1

run() { # run TEST: builds it and runs it; 0 passes, 1 fails, 2 does not build
    make -s -C "$tree" -j"$(nproc)" EXTRA_CFLAGS=-Wno-error "build/tests/$1" >"$log" 2>&1 || return 2
    (cd "$tree" && timeout -k 10 600 "build/tests/$1") >"$log" 2>&1 || return 1
}

caught=0 missed=0
verdict() { # verdict CAUGHT? NAME TEXT
    if [ "$1" = 1 ]; then caught=$((caught + 1)); else missed=$((missed + 1)); fi
    printf '%-28s %s\n' "$2" "$3"
}

declare -A sound
for name in "${names[@]}"; do
    patch="$root/tests/mutants/$name.patch"
    test="$(head -n1 "$patch" | cut -d: -f1)" what="$(head -n1 "$patch" | cut -d' ' -f2-)"
    if [ -z "${sound[$test]:-}" ]; then
        run "$test"
        sound[$test]=$?
    fi
    if [ "${sound[$test]}" != 0 ]; then
        verdict 0 "$name" "NOT TRIED: $test does not pass without a patch"
    elif ! git -C "$tree" apply -C1 --recount "$patch" 2>"$log"; then
        verdict 0 "$name" "DOES NOT APPLY: $(tail -n1 "$log")"
    else
        run "$test"
        case $? in
        0) verdict 0 "$name" "NOT CAUGHT by $test ($what)" ;;
        1) verdict 1 "$name" "caught by $test: $(sed -n 's/^\[  FAILED  \] \([a-z].*\)/\1/p' "$log" | sort -u | head -n3 | paste -sd' ') ($what)" ;;
        *) verdict 0 "$name" "DOES NOT BUILD: $(grep -m1 error "$log")" ;;
        esac
        git -C "$tree" checkout --quiet .
    fi
done
echo "$caught caught, $missed not"
[ "$missed" = 0 ]
