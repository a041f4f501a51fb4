#!/usr/bin/env bash
# What a machine can check of docs/style: include direction, banned calls, layout, file length, cppcheck.
set -uo pipefail
cd "$(dirname "$0")/.."
bad=0
complain() { echo "lint: $*" && bad=1; }

# A folder includes only itself and folders above it in this list (docs/architecture.md).
order=(base device format text media model engine hub server agent cli)
rank() {
    local i
    for i in "${!order[@]}"; do [ "${order[$i]}" = "$1" ] && echo "$i" && return; done
    echo -1
}
while IFS=: read -r file line text; do
    here=$(echo "$file" | cut -d/ -f2)
    there=$(realpath -m --relative-to=src "$(dirname "$file")/$(echo "$text" | sed -E 's/.*"(.*)".*/\1/')" | cut -d/ -f1)
    case "$text" in *hearth.h*) continue ;; esac
    h=$(rank "$here") t=$(rank "$there")
    [ "$t" = -1 ] && complain "$file:$line includes from the unknown folder '$there'" && continue
    [ "$t" -le "$h" ] || complain "$file:$line: $here/ may not include $there/"
done < <(grep -nE '^#include ".*\.h"' -r src --include=*.c --include=*.h | grep -v '\.def"')

# Calls that have a better one here. abort/exit: only where memory is gone (base/mem.c, clock.c, pool.c) and in the command line.
ban() { # ban REGEX WHY [FILES NOT LOOKED AT...]
    local regex="$1" why="$2"
    shift 2
    local hits
    hits=$(grep -nE "(^|[^a-zA-Z0-9_>.])($regex)\(" -r src --include=*.c --include=*.h)
    for f in "$@"; do hits=$(echo "$hits" | grep -v "^$f"); done
    [ -z "$hits" ] || { echo "$hits" && complain "banned call: $why"; }
}
ban 'strcpy|strcat|sprintf|vsprintf|gets|strtok|atoi|atol|atof|alloca|rand|srand|localtime|gmtime' "use buf, str_to_*, gmtime_r"
ban 'exit|abort|_exit|quick_exit' "library code returns errors" src/base/mem.c src/base/clock.c src/base/pool.c src/cli/
ban 'printf|puts|putchar' "only the command line prints" src/cli/
grep -nE 'ffast-math|/work/shared|\.\./shared' -r src include Makefile && complain "must not appear"

for f in $(git ls-files 'src/**.c' 'src/**.h' 'tests/**.c'); do
    n=$(wc -l <"$f")
    case "$f" in *_table.[ch] | *_avx*.c | *_amx.c | *_ref.c) continue ;; esac
    [ "$n" -le 950 ] || complain "$f has $n lines; split it (limit 900 or so)"
done

# A list without readers is a promise nobody keeps: every option is read, every error code raised.
for field in $(sed -nE 's/^OPTION\([A-Z]+, *([a-z_]+),.*/\1/p' src/cli/options.def); do
    grep -qE "o->$field\b" src/cli/*.c || complain "src/cli/options.def: nothing reads $field"
done
for code in $(sed -nE 's/^ERROR\(([A-Z_]+),.*/\1/p' src/base/errors.def); do
    [ "$code" = NONE ] || grep -rqE "ERR_$code\b" src --include=*.c || complain "src/base/errors.def: nothing raises $code"
done

for page in docs/*.md; do
    [ "$page" = docs/README.md ] || grep -qF "($(basename "$page"))" docs/README.md || complain "$page is not in docs/README.md"
done

files=$(git ls-files '*.c' '*.h' | grep -v '_table\.')
clang-format-14 --dry-run -Werror $files >/tmp/lint.$$ 2>&1 || { head -n 20 /tmp/lint.$$ && complain "layout: run ./dev fmt"; }
rm -f /tmp/lint.$$

mkdir -p build/cppcheck # what it found out about unchanged files
cppcheck --quiet --cppcheck-build-dir=build/cppcheck --std=c11 --enable=warning,portability --inline-suppr --suppress=missingIncludeSystem --error-exitcode=1 \
    -j "$(nproc)" --suppressions-list=tools/cppcheck.txt -Iinclude -D__x86_64__ src || complain "cppcheck"

[ $bad = 0 ] && echo "lint: clean"
exit $bad
