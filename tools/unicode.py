#!/usr/bin/env python3
"""Writes src/text/unicode_table.c: per code point, what the reference `tokenizers` library thinks of it.

The library mixes five Unicode versions (Oniguruma, Rust's std, the regex crate, unicode_categories,
unicode-normalization-alignments), so every property is asked of the library itself, one code point at a time.
Usage: tools/unicode.py > src/text/unicode_table.c   (about three minutes; needs tokenizers, libutf8proc)
"""
import ctypes
import sys
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

ALL = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
BIG = "".join(map(chr, ALL))
CATEGORIES = "Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()
FLAGS = "SPACE WORD NUMERIC PUNCT BERT_CONTROL BERT_MARK MARK LOWER NORM NORM_OPAQUE HAN NEW ONIG_WORD NORM_C".split()


def regex(rx):
    p = pre_tokenizers.Split(Regex(rx), "removed", invert=True)
    return {ord(ch) for piece, _ in p.pre_tokenize_str(BIG) for ch in piece}


def dropped(p):
    """Code points that a pre-tokenizer removes."""
    return set(ALL) - {ord(ch) for piece, _ in p.pre_tokenize_str(BIG) for ch in piece}


def isolated(p):
    """Code points that p cuts off on both sides when between letters."""
    return {c for c in ALL if len(p.pre_tokenize_str("a" + chr(c) + "a")) == 3}


def removed_by(n):
    return {c for c in ALL if n.normalize_str(chr(c)) == ""}


def utf8proc():
    lib = ctypes.CDLL("libutf8proc.so.2")
    lib.utf8proc_map.argtypes = [ctypes.c_char_p, ctypes.c_ssize_t, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int]
    lib.utf8proc_map.restype = ctypes.c_ssize_t
    libc = ctypes.CDLL(None)
    libc.free.argtypes = [ctypes.c_void_p]

    def run(text, options):
        raw, out = text.encode(), ctypes.c_void_p()
        n = lib.utf8proc_map(raw, len(raw), ctypes.byref(out), options | 2)
        text = ctypes.string_at(out.value, n).decode()
        libc.free(out)
        return text

    return run


def main():
    category = {}
    for name in CATEGORIES[1:]:
        for c in regex(r"\p{%s}" % name):
            category[c] = name
    flags = {name: set() for name in FLAGS}
    flags["SPACE"] = dropped(pre_tokenizers.WhitespaceSplit())
    assert flags["SPACE"] == regex(r"\s")
    flags["WORD"] = {c for c in ALL if c not in flags["SPACE"] and len(pre_tokenizers.Whitespace().pre_tokenize_str("a" + chr(c))) == 1}
    flags["ONIG_WORD"] = regex(r"\w")
    flags["NUMERIC"] = isolated(pre_tokenizers.Digits(individual_digits=True))
    flags["PUNCT"] = isolated(pre_tokenizers.Punctuation())
    flags["BERT_CONTROL"] = removed_by(normalizers.BertNormalizer(True, False, False, False))
    flags["BERT_MARK"] = removed_by(normalizers.BertNormalizer(False, False, True, False))
    flags["MARK"] = removed_by(normalizers.StripAccents())
    lower = {}
    for c in ALL:
        low = normalizers.Lowercase().normalize_str(chr(c))
        if low != chr(c):
            flags["LOWER"].add(c)
            lower[c] = low
    special_lower = {c: s for c, s in lower.items() if len(s) != 1}
    assert special_lower == {0x130: "i\u0307"}, special_lower

    # Where normalisation has anything to do. NORM: the slow path must look. NORM_OPAQUE: utf8proc (newer) knows something
    # of this code point that the reference does not: it is left alone and nothing moves across it. NORM_C: as NORM, for NFC alone.
    run, forms = utf8proc(), (normalizers.NFD(), normalizers.NFKD())
    for c in ALL:
        ch = chr(c)
        if unicodedata.combining(ch) or any(f.normalize_str(ch) != ch for f in forms) or run(ch, 16) != ch or run(ch, 20) != ch:
            flags["NORM"].add(c)
        if unicodedata.combining(ch) or run(ch, 8) != ch:
            flags["NORM_C"].add(c)
        if forms[0].normalize_str(ch) != run(ch, 16) or forms[1].normalize_str(ch) != run(ch, 20):
            flags["NORM_OPAQUE"].add(c)
        probe = "a\u0301" + ch + "\u0334\u0323\u0301"
        if forms[0].normalize_str(probe) != run(probe, 16):
            flags["NORM_OPAQUE"].add(c)
        parts = run(ch, 16)
        if len(parts) > 1:
            flags["NORM"].update(map(ord, parts[1:]))
            flags["NORM_C"].update(map(ord, parts[1:]))
            if normalizers.NFC().normalize_str(parts) != run(parts, 8):
                flags["NORM_OPAQUE"].update(map(ord, parts))
    for name in ("NORM", "NORM_C"):
        flags[name] |= flags["NORM_OPAQUE"]
        flags[name].update(range(0x1161, 0x1176), range(0x11A8, 0x11C3))
    flags["HAN"] = regex(r"\p{Han}")
    flags["NEW"] = {c for c in ALL if c in category and unicodedata.category(chr(c)) != category[c]} | {0x180E}

    records, index = [], {}
    values = []
    bits = [0] * 0x110000
    for i, name in enumerate(FLAGS):
        for c in flags[name]:
            bits[c] |= 1 << (5 + i)
    for c in range(0x110000):
        rec = bits[c] | CATEGORIES.index(category.get(c, "Cn"))
        if rec not in index:
            index[rec] = len(records)
            records.append(rec)
        values.append(index[rec])
    assert len(records) <= 256, len(records)
    blocks, first = {}, []
    data = []
    for at in range(0, 0x110000, 128):
        block = tuple(values[at : at + 128])
        if block not in blocks:
            blocks[block] = len(blocks)
            data.extend(block)
        first.append(blocks[block])
    # Runs of lower-case pairs: code points from..to (every `step`) map to +delta.
    pairs = sorted((c, ord(s)) for c, s in lower.items() if len(s) == 1)
    runs = []
    for c, low in pairs:
        if runs:
            r = runs[-1]
            gap = c - r[1]
            if low - c == r[3] and gap in (1, 2) and (r[2] == 0 or r[2] == gap):
                r[1], r[2] = c, gap
                continue
        runs.append([c, c, 0, low - c])

    def rows(items, fmt="%d"):
        line, out = "   ", []
        for x in items:
            text = " " + fmt % x + ","
            if len(line) + len(text) > 150:
                out.append(line)
                line = "   "
            line += text
        out.append(line)
        return "\n".join(out)

    w = sys.stdout.write
    w("/* Generated by tools/unicode.py from tokenizers %s; do not edit. Read through unicode.h. */\n" % tokenizers.__version__)
    w('// clang-format off\n#include "unicode.h"\n\n')
    w("const uint16_t unicode_block[%d] = {\n%s\n};\n" % (len(first), rows(first)))
    w("const uint8_t unicode_index[%d] = {\n%s\n};\n" % (len(data), rows(data)))
    w("const uint32_t unicode_record[%d] = {\n%s\n};\n" % (len(records), rows(records, "0x%x")))
    w("const unicode_lower_run unicode_lower_runs[] = {\n%s\n};\n" % rows([tuple(r[:2] + [max(r[2], 1), r[3]]) for r in runs], "{%d, %d, %d, %d}"))
    w("const size_t unicode_n_lower_runs = COUNT(unicode_lower_runs);\n")
    sys.stderr.write("records %d, blocks %d, lower runs %d; " % (len(records), len(blocks), len(runs)))
    sys.stderr.write(", ".join("%s %d" % (k, len(v)) for k, v in flags.items()) + "\n")


main()
