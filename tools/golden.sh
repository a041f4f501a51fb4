#!/usr/bin/env bash
# Remakes what tests/data holds from its references: ./dev golden SHARED [NAME ...]; without names all. SHARED is the folder with the
# given material (oracle/, peers/); what each file is: tests/data/README.md. By hand: references change, so look at `git diff --stat`.
# A new generator gets one line in the table: NAME, then the command. Needs about 5 GB of disk for the references (torch, mlx).
set -euo pipefail
cd "$(dirname "$0")/.."
data=tests/data models=tests/data/models
[ -d "${1:-}/oracle" ] || { echo "usage: ./dev golden SHARED [NAME ...]   names: $(sed -n 's/^    \([a-z0-9-]*\)) .*/\1/p' "$0" | paste -sd' ')" >&2 && exit 2; }
shared="$(realpath "$1")"
shift
venv="$CACHE/golden-$(sha256sum tools/requirements-golden.txt | cut -c1-12)"
if [ ! -e "$venv/ready" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check --extra-index-url https://download.pytorch.org/whl/cpu -r tools/requirements-golden.txt
    touch "$venv/ready"
fi
py() { "$venv/bin/python" "$@"; }

make_one() {
    case "$1" in
    weights) py tools/make_weight_goldens.py $data/formats/weights.bin ;;
    gguf) py tools/make_gguf_golden.py $data/formats/small.gguf ;;
    models) py tools/goldens_cut.py "$shared" $models ;;
    definitions) for d in $models/*/definition.bin; do py tools/goldens_hf.py "$(dirname "$d")"; done ;;
    models-gguf) for f in $models/*.gguf; do py tools/make_gguf.py "$shared/oracle/text/models/$(basename "$f" .gguf)" "$f"; done ;;
    odd) for t in tools/make_odd*.py; do py "$t" $models; done ;;
    rope) py tools/goldens_rope.py $data/rope.json ;;
    jinja) py tools/jinja_cases.py >$data/jinja/cases.json ;;
    templates) py tools/jinja_golden.py "$shared/peers/templates" $data/templates/golden.json ;;
    tokenizers) py tools/tokenizer_golden.py ;;
    unicode) py tools/unicode.py >build/unicode_table.c && mv build/unicode_table.c src/text/unicode_table.c ;;
    *) echo "golden: there is no '$1'" >&2 && return 2 ;;
    esac
}

[ $# -gt 0 ] || set -- weights gguf models definitions models-gguf odd rope jinja templates tokenizers unicode
for name in "$@"; do
    echo "golden: $name"
    make_one "$name"
done
git status --short $data src/text/unicode_table.c
