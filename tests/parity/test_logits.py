"""`hearth logits` against every golden of the oracle whose family is known, in both numerics. Bars: docs/parity.md.

Collected only with HEARTH_SHARED=DIR (`./dev test full DIR`), DIR holding oracle/text. What the ordinary tests compare is in
tests/unit/model_test.c.
"""
import json, os, re, struct, subprocess
from pathlib import Path
import numpy as np
import pytest
from safetensors.numpy import load_file

ROOT = Path(__file__).parents[2]
HEARTH = os.environ.get("HEARTH_BIN", str(ROOT / "build/hearth"))
SHARED = os.environ.get("HEARTH_SHARED")
ORACLE = Path(SHARED) / "oracle/text" if SHARED else None
# Goldens are mlx-lm's reading; where that is not the model's own definition they are compared under --compat mlx-lm.
MLX_READING = {"gemma", "gemma2", "mistral", "phi3", "starcoder2"}
# One wrong choice of an expert or of an indexed key makes a bf16 mean meaningless: medians there.
MEDIAN = ("qwen3_moe", "qwen3_5_moe", "gemma4_26b", "deepseek_v3", "glm_dsa")

pytestmark = pytest.mark.skipif(not SHARED, reason="HEARTH_SHARED is not set")


def known_types():
    """model_types the program knows, from the one list."""
    text = (ROOT / "src/model/families.def").read_text()
    return set(re.findall(r'^FAMILY\(\w+, "(\w+)"', text, re.M)) | set(re.findall(r'^REMAP\("(\w+)"', text, re.M))


def checkpoints():
    if not ORACLE:
        return []
    out = []
    for folder in sorted((ORACLE / "models").iterdir()):
        c = json.loads((folder / "config.json").read_text())
        kind = c.get("text_config", c).get("model_type", c["model_type"])
        if {kind, c["model_type"]} & known_types() and (ORACLE / f"goldens/{folder.name}.safetensors").exists():
            out.append(folder.name)
    return out


def run(tmp_path, model, ids, greedy=0, numerics="f32", compat=False, kv=None):
    (tmp_path / "ids").write_text(",".join(map(str, ids)))
    out = tmp_path / "out.safetensors"
    command = [HEARTH, "logits", str(model), "--ids-file", str(tmp_path / "ids"), "--numerics", numerics, "--out", str(out)]
    command += ["--greedy", str(greedy)] if greedy else []
    command += ["--compat", "mlx-lm"] if compat else []
    command += ["--kv-quant", kv[0], "--kv-group-size", kv[1]] if kv else []
    r = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert r.returncode == 0, r.stderr
    return load_file(out)


def kl(want, got):
    """Per row, of softmax(want) from softmax(got)."""
    want, got = (x.astype(np.float64) - x.max(-1, keepdims=True) for x in (want, got))
    want, got = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (want, got))
    return (np.exp(want) * (want - got)).sum(-1)


def family(name):
    return name.rsplit("-", 1)[0]


@pytest.mark.parametrize("name", checkpoints())
def test_f32(name, tmp_path):
    """Every stored position and every greedy row within the bound; greedy ids equal wherever the margin exceeds it."""
    g, bound = load_file(ORACLE / f"goldens/{name}.safetensors"), 5e-3 if "q1g" in name else 5e-4
    compat = family(name) in MLX_READING
    a = run(tmp_path, ORACLE / "models" / name, g["short_ids"], len(g["dec_ids"]), compat=compat)
    b = run(tmp_path, ORACLE / "models" / name, g["long_ids"], len(g["declong_ids"]), compat=compat)
    assert np.abs(a["logits"] - g["f32_short"]).max() < bound
    assert np.abs(b["logits"][g["long_pos"]] - g["f32_long"]).max() < bound
    sure = np.take_along_axis(g["f32_long"], b["logits"][g["long_pos"]].argmax(-1)[:, None], -1)[:, 0]
    assert (g["f32_long"].max(-1) - sure <= 2 * bound).all()
    for mine, ids, rows, margin in (
        (a, g["dec_ids"], g["f32_dec"], g["dec_margin"]),
        (b, g["declong_ids"], g["f32_declong"], g["declong_margin"]),
    ):
        differs = np.flatnonzero(mine["greedy_ids"] != ids)
        n = differs[0] + 1 if len(differs) else len(ids)  # rows after a different choice are another text's
        assert not len(differs) or margin[differs[0]] <= 2 * bound, f"greedy id {differs[0]}"
        assert np.abs(mine["greedy_logits"][:n] - rows[:n]).max() < bound


@pytest.mark.parametrize("name", checkpoints())
def test_default(name, tmp_path):
    """KL to f32 at most a hundredth of what the reference's own bf16 arithmetic costs, or 5e-6."""
    g = load_file(ORACLE / f"goldens/{name}.safetensors")
    compat = family(name) in MLX_READING
    middle = np.median if family(name).startswith(MEDIAN) else np.mean
    short = np.concatenate([g["short_ids"], g["dec_ids"][:-1]])  # what was generated, given: all rows of one text
    long = np.concatenate([g["long_ids"], g["declong_ids"][:-1]])
    a = run(tmp_path, ORACLE / "models" / name, short, numerics="default", compat=compat)["logits"]
    b = run(tmp_path, ORACLE / "models" / name, long, numerics="default", compat=compat)["logits"]
    n, m = len(g["short_ids"]), len(g["long_ids"])
    mine = np.concatenate(
        [kl(g["f32_short"], a[:n]), kl(g["f32_dec"], a[n - 1 :]), kl(g["f32_long"], b[g["long_pos"]]), kl(g["f32_declong"], b[m - 1 :])]
    )
    r1 = np.concatenate([g["r1_short_kl"], g["r1_dec_kl"], g["r1_long_kl"][g["long_pos"]], g["r1_declong_kl"]])
    assert middle(mine) <= max(middle(r1) / 100, 5e-6)


def kv_goldens():
    return sorted(p.stem for p in (ORACLE / "goldens").glob("*.kv*.safetensors")) if ORACLE else []


@pytest.mark.parametrize("numerics", ["f32", "default"])
@pytest.mark.parametrize("name", kv_goldens())
def test_kv(name, numerics, tmp_path):
    """Quantised caches, mlx-lm's way: the prompt is seen as it was, the reply sees codes (docs/kv-cache.md on the bars)."""
    g = load_file(ORACLE / f"goldens/{name}.safetensors")
    model, bits, group = re.fullmatch(r"(.*)\.kv(\d)g(\d+)", name).groups()
    a = run(tmp_path, ORACLE / "models" / model, g["long_ids"], len(g["dec_ids"]), numerics, True, (bits, group))
    differs = np.flatnonzero(a["greedy_ids"] != g["dec_ids"])
    n = differs[0] + 1 if len(differs) else len(g["dec_ids"])
    mean = kl(g["f32_dec"][:n], a["greedy_logits"][:n]).mean()
    if numerics == "f32":
        assert not len(differs)
        assert mean < 5e-6
        assert np.abs(a["greedy_logits"] - g["f32_dec"]).max() < (5e-4 if bits == "4" else 5e-2)
    else:
        best = np.sort(g["f32_dec"][n - 1])
        assert not len(differs) or best[-1] - best[-2] < 0.1
        assert mean < g["r1_dec_kl"].mean() / 10


@pytest.mark.parametrize("folder", sorted((ROOT / "tests/data/models").glob("*/definition.bin")), ids=lambda p: p.parent.name)
def test_definition(folder, tmp_path):
    """Without --compat: the model's own definition, as transformers computes it (tools/goldens_hf.py)."""
    raw = folder.read_bytes()
    V, n_short, n_long, n_pos, n_dec = struct.unpack_from("<5i", raw, 4)
    ids = np.frombuffer(raw, "<i4", n_short + n_long + n_pos + n_dec, 32)
    rows = np.frombuffer(raw, "<f4", -1, 32 + 4 * len(ids)).reshape(-1, V)
    short, long, pos, dec = np.split(ids, np.cumsum([n_short, n_long, n_pos]))
    a = run(tmp_path, folder.parent, short, n_dec)
    b = run(tmp_path, folder.parent, long)
    assert np.abs(a["logits"] - rows[:n_short]).max() < 5e-4
    assert np.abs(b["logits"][pos] - rows[n_short : n_short + n_pos]).max() < 5e-4
    assert (a["greedy_ids"] == dec).all()
    assert np.abs(a["greedy_logits"] - rows[n_short + n_pos :]).max() < 5e-4
