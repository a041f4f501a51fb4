"""Small tokenizers that use every part hearth knows: model kinds by normalizers, pre-tokenizers, decoders, post-processors and
added-token options. Trained on the corpus, so that they merge real text. matrix(folder) writes NAME.json for each."""
import copy
import json
import os

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import tokenizer_corpus

P, N, D = pre_tokenizers, normalizers, decoders
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = CL100K.replace("{1,3}", "")
QWEN35 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
TEKKEN = O200K.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace("{1,3}", "")
KIMI = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
DEEPSEEK3 = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK3 = DEEPSEEK3.replace('\\"', '"')
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"


def split(rx, behavior="isolated", invert=False):
    return P.Split(Regex(rx), behavior, invert)


def byte_level(*before, prefix=False, regex=False):
    return P.Sequence(list(before) + [P.ByteLevel(add_prefix_space=prefix, use_regex=regex)])


def train(model, trainer, pre=None, norm=None):
    t = Tokenizer(model)
    if pre:
        t.pre_tokenizer = pre
    if norm:
        t.normalizer = norm
    texts = [x for x in tokenizer_corpus.corpus(7)[:300] if len(x) < 4000]
    t.train_from_iterator(texts, trainer)
    return t


def special(text, **kw):
    return AddedToken(text, special=True, normalized=False, **kw)


ADDED = [special("<|im_start|>"), special("<|im_end|>"), special("<|im_start|im_end|>"), special("[MASK]", lstrip=True), special("[END]", rstrip=True),
         special("<both>", lstrip=True, rstrip=True), AddedToken("mask", single_word=True, normalized=False), AddedToken("Straße", normalized=True),
         AddedToken("KÖLN", normalized=True, single_word=True), AddedToken("<think>", normalized=False), AddedToken("  ", normalized=True),
         AddedToken("\n\n", normalized=False), AddedToken("é", normalized=True), AddedToken("of them", normalized=False, lstrip=True)]


def matrix(folder, small=False):
    half = 2 if small else 1
    os.makedirs(folder, exist_ok=True)
    out = []

    def save(name, t, add=True):
        if add:  # a token that a Strip normalizer empties makes the reference panic
            t.add_tokens([a for a in ADDED if a.content.strip() or not a.normalized or '"Strip"' not in str(t.normalizer and t.normalizer.__getstate__())])
        path = os.path.join(folder, name + ".json")
        t.save(path)
        out.append(path)

    byte_bpe = train(models.BPE(), trainers.BpeTrainer(vocab_size=1200 // half, initial_alphabet=P.ByteLevel.alphabet(), special_tokens=["<|endoftext|>"], show_progress=False),
                     byte_level(split(QWEN2)))
    base = byte_bpe.to_str()

    def variant(name, pre=None, norm=None, dec=None, post=None, edit=None, add=True):
        data = json.loads(base)
        if edit:
            edit(data)
        t = Tokenizer.from_str(json.dumps(data))
        t.pre_tokenizer = pre or byte_level(split(QWEN2))
        t.normalizer = norm
        t.decoder = dec or D.ByteLevel()
        if post:
            t.post_processor = post
        save(name, t, add)

    for name, rx in dict(gpt2=GPT2, cl100k=CL100K, qwen2=QWEN2, qwen35=QWEN35, o200k=O200K, tekken=TEKKEN, kimi=KIMI, bloom=BLOOM, deepseek3=DEEPSEEK3).items():
        variant("split-" + name, byte_level(split(rx)))
    variant("split-deepseek", byte_level(split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK3)), norm=N.Sequence([]))
    variant("byte-level-regex", P.ByteLevel(add_prefix_space=False))
    variant("byte-level-prefix", P.ByteLevel(add_prefix_space=True))
    variant("smollm", P.Sequence([P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False)]))
    variant("falcon", P.Sequence([P.Punctuation("contiguous"), P.ByteLevel(add_prefix_space=False), P.Digits(), split("[0-9][0-9][0-9]")]))
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            variant("behavior-%s-%d" % (behavior, invert), byte_level(split(r"\p{L}|,", behavior, invert)))
            variant("literal-%s-%d" % (behavior, invert), byte_level(P.Split("a", behavior, invert)))
        variant("punctuation-" + behavior, byte_level(P.Punctuation(behavior)))
    for rx in (r"\w+|[^\w\s]+", r"\d{2}|\D", r"(?<=a)b|\bc", r"[[:alpha:]]+", r"x*", r"^.|.$", r"(?i)gr|k", r"[a-z&&[^aeiou]]+|[^\p{L}&&[^x]]", r"[\s\p{P}[a-f[0-9]]]+", r"[^\S\r\n]+", r"\h+", r"\p{Greek}+|\p{Sc}"):
        variant("regex-%d" % len(out), byte_level(split(rx)))
    for name, n in dict(nfc=N.NFC(), nfd=N.NFD(), nfkc=N.NFKC(), nfkd=N.NFKD(), lower=N.Lowercase(), strip=N.Strip(), left=N.Strip(True, False), right=N.Strip(False, True),
                        accents=N.Sequence([N.NFD(), N.StripAccents()]), only_accents=N.StripAccents(), nmt=N.Nmt(), bert=N.BertNormalizer(), bert_cased=N.BertNormalizer(True, True, None, False),
                        bert_bare=N.BertNormalizer(False, False, True, True), prepend=N.Prepend("▁"), replace=N.Replace(" ", "▁"), replace_re=N.Replace(Regex(r"\s+"), " "),
                        replace_long=N.Replace("a", "<aa>"), seq=N.Sequence([N.NFKC(), N.Lowercase(), N.Replace(Regex("(``|'')"), '"'), N.Strip()]),
                        bytes=N.ByteLevel()).items():
        variant("norm-" + name, norm=n)
    variant("template", post=processors.TemplateProcessing(single="<|endoftext|> $A <|endoftext|> <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]))
    variant("roberta", post=processors.RobertaProcessing(sep=("<|endoftext|>", 0), cls=("<|endoftext|>", 5)))
    variant("bert-post", post=processors.BertProcessing(sep=("<|endoftext|>", 0), cls=("<|endoftext|>", 5)))
    variant("post-sequence", post=processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])]))
    variant("ignore-merges", edit=lambda d: d["model"].update(ignore_merges=True))
    variant("string-merges", edit=lambda d: d["model"].update(merges=[" ".join(m) for m in d["model"]["merges"]]))
    variant("no-type", edit=lambda d: d["model"].pop("type"))
    variant("ids-disagree", edit=lambda d: d["added_tokens"].extend([dict(d["added_tokens"][0], id=77777, content="<far>"), dict(d["added_tokens"][0], id=77777, content="<far>", special=False)]))
    variant("unk", edit=lambda d: (d["model"].update(unk_token="<|endoftext|>"), [d["model"]["vocab"].pop(c, None) for c in ()]), pre=P.Whitespace())
    variant("unk-fused", edit=lambda d: d["model"].update(unk_token="<|endoftext|>", fuse_unk=True), pre=P.WhitespaceSplit())
    variant("no-unk", pre=P.BertPreTokenizer())
    variant("delimiter", P.Sequence([P.CharDelimiterSplit("e"), P.ByteLevel(False)]))
    if hasattr(P, "FixedLength"):
        variant("fixed-length", byte_level(P.FixedLength(3)))
    variant("digits", byte_level(P.Digits()))
    variant("no-pre", pre=P.Sequence([]))
    variant("decode-join", edit=lambda d: None)
    data = json.load(open(out[-1]))
    data["decoder"] = None
    json.dump(data, open(out[-1], "w"))

    # SentencePiece-like BPE: byte fallback, with the normalizer, Metaspace and Gemma forms.
    spm = train(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True), trainers.BpeTrainer(
        vocab_size=1500 // half, special_tokens=["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)], limit_alphabet=400, show_progress=False),
        P.Metaspace(prepend_scheme="always"))
    for name, norm, pre, dec in (
        ("llama", N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]), None, D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)])),
        ("gemma", N.Replace(" ", "▁"), P.Split(" ", "merged_with_previous"), D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse()])),
        ("meta-always", None, P.Metaspace(prepend_scheme="always"), D.Metaspace(prepend_scheme="always")),
        ("meta-first", None, P.Metaspace(prepend_scheme="first"), D.Metaspace(prepend_scheme="first")),
        ("meta-never", None, P.Metaspace(prepend_scheme="never"), D.Metaspace(prepend_scheme="never")),
        ("meta-whole", None, P.Metaspace(prepend_scheme="first", split=False), D.Sequence([D.ByteFallback(), D.Metaspace(prepend_scheme="first")])),
        ("meta-space", None, P.Sequence([P.WhitespaceSplit(), P.Metaspace(prepend_scheme="first")]), D.Sequence([D.ByteFallback(), D.Fuse(), D.Replace(Regex("▁+"), " "), D.Strip(" ", 1, 0)])),
    ):
        t = Tokenizer.from_str(spm.to_str())
        t.normalizer, t.decoder = norm, dec
        if pre:
            t.pre_tokenizer = pre
        else:
            t.pre_tokenizer = P.Sequence([])
        save("spm-" + name, t)
    data = json.loads(spm.to_str())
    for b in range(0x80, 0xC0):  # a byte that is missing makes the fallback fail
        data["model"]["vocab"].pop("<0x%02X>" % b)
    data["model"]["fuse_unk"] = False
    data["added_tokens"] = [a for a in data["added_tokens"] if not a["content"].startswith("<0x")]
    t = Tokenizer.from_str(json.dumps(data))
    t.decoder = D.Sequence([D.ByteFallback(), D.Metaspace()])
    save("spm-bytes-missing", t)

    words = train(models.BPE(unk_token="[UNK]", end_of_word_suffix="</w>"), trainers.BpeTrainer(vocab_size=1200 // half, special_tokens=["[UNK]"], end_of_word_suffix="</w>", show_progress=False), P.Whitespace(), N.Lowercase())
    words.decoder = D.BPEDecoder("</w>")
    save("bpe-suffix", words)
    words = train(models.BPE(unk_token="[UNK]", continuing_subword_prefix="##"), trainers.BpeTrainer(vocab_size=1200 // half, special_tokens=["[UNK]"], continuing_subword_prefix="##", show_progress=False), P.Whitespace())
    words.decoder = D.WordPiece("##", False)
    save("bpe-prefix", words)

    uni = train(models.Unigram(), trainers.UnigramTrainer(vocab_size=9000, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False), P.Metaspace(), N.NFKC())
    uni.decoder = D.Metaspace()
    save("unigram", uni)
    data = json.loads(uni.to_str())
    data["model"]["vocab"] += [["<0x%02X>" % b, -20.0] for b in range(256)]
    data["model"]["byte_fallback"] = True
    t = Tokenizer.from_str(json.dumps(data))
    t.decoder = D.Sequence([D.ByteFallback(), D.Metaspace()])
    save("unigram-bytes", t)

    piece = train(models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(vocab_size=1200 // half, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False), P.BertPreTokenizer(), N.BertNormalizer())
    piece.decoder = D.WordPiece()
    piece.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    save("wordpiece", piece)
    data = json.loads(piece.to_str())
    data["model"]["max_input_chars_per_word"] = 4
    save("wordpiece-short", Tokenizer.from_str(json.dumps(data)))
    level = train(models.WordLevel(unk_token="[UNK]"), trainers.WordLevelTrainer(vocab_size=900 // half, special_tokens=["[UNK]"], show_progress=False), P.Whitespace(), N.Lowercase())
    save("wordlevel", level)
    return out
