"""`hearth fit`: exact sizes from the headers of large sparse files, refusals with numbers, the machines' table; drafts."""
import json
import shutil

import pytest

from conftest import DATA

TINY = DATA / "models" / "llama-q4"
L, D, H, K, DH, F, V = 80, 8192, 64, 8, 128, 28672, 128256  # Llama 3 70B


def write_header(path, tensors):
    """A safetensors file with room for its tensors and nothing in it: sparse on disk."""
    head, at = {}, 0
    for name, dtype, size, shape in tensors:
        n = size
        for d in shape:
            n *= d
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        f.truncate(8 + len(text) + at)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """140 GB of bf16 that take a few kB."""
    folder = tmp_path_factory.mktemp("llama-70b")
    layer = [("input_layernorm", [D]), ("post_attention_layernorm", [D]), ("self_attn.q_proj", [H * DH, D]), ("self_attn.k_proj", [K * DH, D]),
             ("self_attn.v_proj", [K * DH, D]), ("self_attn.o_proj", [D, H * DH]), ("mlp.gate_proj", [F, D]), ("mlp.up_proj", [F, D]), ("mlp.down_proj", [D, F])]
    tensors = [("model.embed_tokens.weight", "BF16", 2, [V, D]), ("lm_head.weight", "BF16", 2, [V, D]), ("model.norm.weight", "BF16", 2, [D])]
    tensors += [(f"model.layers.{i}.{name}.weight", "BF16", 2, shape) for i in range(L) for name, shape in layer]
    write_header(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(dict(
        architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=D, num_hidden_layers=L, num_attention_heads=H, num_key_value_heads=K,
        head_dim=DH, intermediate_size=F, vocab_size=V, max_position_embeddings=131072, rms_norm_eps=1e-5, rope_theta=5e5,
        tie_word_embeddings=False, eos_token_id=1)))
    return folder


def test_exact_from_headers(hearth, large):
    r = hearth("fit", large, "--ctx", 8192, "--memory-budget", 200, "--threads", 2, "--batch", 8, "--json")
    assert r.returncode == 0, r.stderr
    r = json.loads(r.stdout)
    report, parts = r["report"], {p["part"]: p["bytes"] for p in r["report"]["parts"]}
    per_layer = D * H * DH * 2 + 2 * D * K * DH + 3 * D * F
    assert report["weights_bytes"] == 2 * (2 * V * D + L * per_layer) + 4 * D * (2 * L + 1)
    assert report["kv_bytes_per_token"] == 2 * L * K * DH * 2
    assert report["kv_bytes"] == 8192 * report["kv_bytes_per_token"] and report["state_bytes"] == 0
    assert report["total_bytes"] == sum(b for p, b in parts.items() if p not in ("kv_batch", "prompt_cache"))
    assert report["planned_bytes"] == sum(parts.values()) <= report["usable_bytes"] == 200e9
    assert report["fits"] and report["why"] is None and r["context_tokens"] == 8192
    # the largest context is the largest: it fits, one page more does not
    most = report["max_safe_context"]
    assert 8192 < most < 131072 + 1
    if most < 131072:
        for ctx, code in ((most, 0), (most + 64, 4)):
            assert hearth("fit", large, "--ctx", ctx, "--memory-budget", 200, "--threads", 2).returncode == code


def test_other_machines(hearth, large):
    r = json.loads(hearth("fit", large, "--json", "--memory-budget", 200).stdout)
    skus = {k["sku"]: k for k in r["sku_matrix"]}
    assert r["sku_matrix_ctx"] == 32768 and len(skus) >= 12
    assert not skus["RTX 4090"]["fits"] and skus["RTX 4090"]["max_context"] == 0 and skus["RTX 4090"]["decode_tps"] is None
    assert skus["B200"]["fits"] and 30 < skus["B200"]["decode_tps"] < 60  # 8 TB/s over 150 GB
    assert skus["EPYC 9654, DDR5-4800 x12"]["device_bytes"] == 0 and skus["EPYC 9654, DDR5-4800 x12"]["fits"]
    on = skus["H200"]  # weights and cache lie on the card, the rest does not
    assert on["device_bytes"] > 141e9 and 0 < on["host_bytes"] < 2e9
    text = hearth("fit", large, "--skus", "--memory-budget", 200).stdout
    assert "weights" in text and "largest context that fits" in text and "B200" in text


def test_does_not_fit(hearth, large):
    r = hearth("fit", large, "--memory-budget", 100)
    assert r.returncode == 4 and "does not fit" in r.stderr and "100.00 GB" in r.stderr and "141" in r.stderr and "weights" in r.stdout
    r = hearth("fit", large, "--ctx", 131072, "--memory-budget", 150)
    assert r.returncode == 4 and "a context of 131072 does not fit" in r.stderr
    r = hearth("fit", large, "--ctx", 200000)
    assert r.returncode == 1 and "131072" in r.stderr
    assert hearth("fit").returncode == 2


def test_refused_before_weights(hearth, large, tmp_path):
    """Opening 140 GB would take minutes; the refusal comes from the headers, with the numbers (case 134)."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, tmp_path / name)
    for name in ("model.safetensors", "config.json"):
        (tmp_path / name).symlink_to(large / name)
    r = hearth("generate", tmp_path, "x", "--memory-budget", 10, timeout=20)
    assert r.returncode == 4 and "10.00 GB" in r.stderr and "141" in r.stderr
    r = hearth("generate", TINY, "x", "--memory-budget", 0.001)
    assert r.returncode == 4 and "0.00 GB" in r.stderr


def test_the_budget_is_what_the_machine_gives(hearth):
    """Three quarters of the memory of this process; RLIMIT_AS counts."""
    r = json.loads(hearth("fit", TINY, "--json").stdout)
    assert r["report"]["usable_bytes"] <= r["machine"]["usable_ram_bytes"] * 3 // 4 <= r["machine"]["ram_bytes"] * 3 // 4
    import subprocess
    from conftest import HEARTH
    limited = subprocess.run(["sh", "-c", f"ulimit -v 4000000; exec {HEARTH} fit {TINY} --threads 1 --json"], capture_output=True, text=True)
    small = json.loads(limited.stdout)["report"]
    assert small["usable_bytes"] < 4096e6 * 3 / 4


# ---- drafts ----------------------------------------------------------------------------------------------------------
def draft(tmp_path, kind, config):
    folder = tmp_path / kind
    folder.mkdir()
    if config is not None:
        (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return folder


def test_a_small_budget_serves_a_small_model(hearth, smollm2):
    """What is kept for requests follows the budget."""
    r = json.loads(hearth("fit", smollm2, "--ctx", 1024, "--memory-budget", 0.3, "--json").stdout)
    assert r["report"]["fits"] and r["report"]["max_safe_context"] >= 1024



@pytest.mark.parametrize("kind,config", [
    ("mtp", {"model_type": "qwen3_5_mtp", "architectures": ["Qwen3_5MTP"]}),
    ("assistant", {"model_type": "gemma4_assistant_mtp"}),  # tested for before _mtp
    ("deepspec", {"model_type": "gemma4_assistant", "architectures": ["Gemma4DSparkModel"]}),
    ("two-model", {"model_type": "qwen3"}),
    ("two-model", "{\"model_type\": \"qwen3_5_mtp\""),  # broken: an ordinary model
    ("two-model", None),
])
def test_drafts_are_recognised_and_refused(hearth, large, tmp_path, kind, config):
    r = hearth("generate", large, "x", "--draft-model", draft(tmp_path, kind, config), timeout=20)  # the target is not opened
    assert r.returncode == 1 and f"draft of kind {kind} (found in its files)" in r.stderr and "serve without a draft" in r.stderr


def test_a_dspark_draft(hearth, large, tmp_path):
    folder = draft(tmp_path, "d", {"model_type": "x_mtp"})
    (folder / "dspark.json").write_text("{}")
    assert "draft of kind dspark" in hearth("generate", large, "x", "--draft-model", folder).stderr


def test_kinds_by_name(hearth, large, tmp_path):
    folder = draft(tmp_path, "d", {"model_type": "x_mtp"})
    r = hearth("generate", large, "x", "--draft-model", folder, "--draft-kind", "two-model")
    assert "draft of kind two-model: " in r.stderr and "found" not in r.stderr
    assert "draft of kind ngram" in hearth("generate", large, "x", "--draft-kind", "ngram").stderr
    assert "must be alone" in hearth("generate", large, "x", "--draft-model", folder, "--draft-kind", "ngram").stderr
    assert "needs a draft model" in hearth("generate", large, "x", "--draft-kind", "mtp").stderr
    r = hearth("generate", large, "x", "--draft-model", folder, "--draft-kind", "eagle")
    assert "'eagle' is not one of dspark, deepspec, assistant, mtp, two-model, ngram" in r.stderr
    assert hearth("generate", large, "x", "--draft-model", "no-such-model").returncode == 3
