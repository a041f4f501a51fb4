#!/usr/bin/env python3
"""Writes tests/data/tokenizers: golden.json (small tokenizers of every kind, texts, and what the reference libraries make of
them) and two SentencePiece models. Usage: tools/tokenizer_golden.py (needs tokenizers, sentencepiece; about a minute).
The texts are tools/tokenizer_corpus.py's; the tokenizers are trained on them by tools/tokenizer_matrix.py."""
import json
import os
import random
import sys
import tempfile

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import tokenizer_corpus  # noqa: E402
import tokenizer_matrix as matrix  # noqa: E402

OUT = os.path.join(HERE, "../tests/data/tokenizers")


def texts():
    rng = random.Random(5)
    everything = [t for t in tokenizer_corpus.corpus(3, 1, [a.content for a in matrix.ADDED]) if len(t) < 160]
    return [t for t in everything if t][:58] + rng.sample(everything[58:], 72)


def reference(t, chosen):
    ids = [t.encode(x, add_special_tokens=False).ids for x in chosen]
    special = [t.encode(x).ids for x in chosen[:3]]
    rng = random.Random(1)
    loose = [[rng.randrange(t.get_vocab_size() + 2) for _ in range(12)] for _ in range(8)]
    return {"ids": ids, "with_special": special, "loose": loose,
            "decoded": [t.decode(i, skip_special_tokens=False) for i in ids[::4] + loose],
            "skipped": [t.decode(i, skip_special_tokens=True) for i in loose]}


def gguf_cases(chosen, base, folder):
    """GGUF metadata with the tokenizer that the same model has in Python."""
    vocab, merges = base["model"]["vocab"], [m if isinstance(m, str) else " ".join(m) for m in base["model"]["merges"]]
    tokens = [s for s, _ in sorted(vocab.items(), key=lambda x: x[1])] + ["<|im_start|>", "<|im_end|>", "<think>"]
    types = [3] + [1] * (len(vocab) - 1) + [3, 3, 4]
    for pre, patterns, edit in (("smollm", [r"\p{N}", matrix.GPT2], {}), ("qwen2", [matrix.QWEN2], {}), ("llama-bpe", [matrix.CL100K], {"ignore_merges": True}),
                                ("gpt-4o", [matrix.O200K], {}), ("deepseek-v3", [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", matrix.DEEPSEEK3], {}), ("qwen35", [matrix.QWEN35], {})):
        data = json.loads(json.dumps(base))
        data["model"].update(edit)
        data["added_tokens"] = []
        t = Tokenizer.from_str(json.dumps(data))
        t.normalizer = normalizers.NFC() if pre.startswith("qwen") else None
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in patterns] + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        t.decoder = decoders.ByteLevel()
        for s, k in zip(tokens, types):
            if k != 1:
                t.add_tokens([AddedToken(s, special=k == 3, normalized=False)])
        meta = {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": types, "merges": merges, "bos_token_id": 0, "eos_token_id": 0, "add_bos_token": False}
        yield {"name": "gguf-" + pre, "gguf": {"tokenizer.ggml." + k: v for k, v in meta.items()}, **reference(t, chosen)}


def sentencepiece_cases(chosen):
    with tempfile.TemporaryDirectory() as work:
        source = os.path.join(work, "text")
        with open(source, "w") as f:
            f.write("\n".join(x for t in tokenizer_corpus.corpus(7)[:120] for x in t.replace("\0", "").splitlines() if x.strip()))
        for name, kind, extra in (("bpe", "bpe", dict(byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False)),
                                  ("unigram", "unigram", dict(byte_fallback=True))):
            prefix = os.path.join(OUT, name)
            sentencepiece.SentencePieceTrainer.train(input=source, model_prefix=prefix, model_type=kind, vocab_size=1100, character_coverage=0.98, hard_vocab_limit=False,
                                                     user_defined_symbols=["<think>"], control_symbols=["<ctl>"], minloglevel=2, **extra)
            os.remove(prefix + ".vocab")
            sp = sentencepiece.SentencePieceProcessor(model_file=prefix + ".model")
            rng = random.Random(1)
            plain = [x if "<" not in x else "" for x in chosen]
            ids = [sp.encode(x) for x in plain]
            loose = [[rng.randrange(sp.vocab_size()) for _ in range(12)] for _ in range(8)]
            expect = {"plain": True, "ids": ids, "with_special": [sp.encode(x, add_bos=True) for x in plain[:3]], "loose": loose, "decoded": [], "skipped": [sp.decode(i) for i in loose]}
            yield {"name": "sentencepiece-" + name, "file": name + ".model", **expect}
            if kind == "bpe":
                kinds = [2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 5 if sp.is_unused(i) else 1 for i in range(sp.vocab_size())]
                kinds[sp.piece_to_id("<think>")] = 4
                meta = {"model": "llama", "tokens": [sp.id_to_piece(i) for i in range(sp.vocab_size())], "scores": [sp.get_score(i) for i in range(sp.vocab_size())],
                        "token_type": kinds, "bos_token_id": sp.bos_id(), "eos_token_id": sp.eos_id(), "unknown_token_id": sp.unk_id()}
                yield {"name": "gguf-llama", "gguf": {"tokenizer.ggml." + k: v for k, v in meta.items()}, **expect}


def bert_case(chosen, piece):
    tokens = [s for s, _ in sorted(piece["model"]["vocab"].items(), key=lambda x: x[1])]
    spelled = [s if s.startswith("[") and s.endswith("]") and len(s) > 2 else s[2:] if s.startswith("##") else "\u2581" + s for s in tokens]
    kinds = [3 if s in ("[UNK]", "[CLS]", "[SEP]") else 1 for s in tokens]
    data = json.loads(json.dumps(piece))
    data["added_tokens"] = data["added_tokens"][:3]
    meta = {"model": "bert", "tokens": spelled, "token_type": kinds, "unknown_token_id": 0, "cls_token_id": 1, "seperator_token_id": 2}
    return {"name": "gguf-bert", "gguf": {"tokenizer.ggml." + k: v for k, v in meta.items()}, **reference(Tokenizer.from_str(json.dumps(data)), chosen)}


def main():
    os.makedirs(OUT, exist_ok=True)
    chosen = texts()
    shared, cases = [], []
    with tempfile.TemporaryDirectory() as work:
        for path in matrix.matrix(work, small=True):
            name = os.path.basename(path)[:-5]
            data = json.load(open(path))
            model = data.pop("model")
            if model not in shared:
                shared.append(model)
            case = {"name": name, "model": shared.index(model), "tokenizer": data, **reference(Tokenizer.from_file(path), chosen)}
            cases.append(case)
            if name == "split-gpt2":
                cases += gguf_cases(chosen, {**data, "model": model}, work)
            if name == "wordpiece":
                cases.append(bert_case(chosen, {**data, "model": model}))
    cases += sentencepiece_cases(chosen)
    with open(os.path.join(OUT, "golden.json"), "w") as f:
        json.dump({"texts": chosen, "models": shared, "cases": cases}, f, ensure_ascii=False, separators=(",", ":"))
    print(len(cases), "cases", os.path.getsize(os.path.join(OUT, "golden.json")), "bytes")


main()
