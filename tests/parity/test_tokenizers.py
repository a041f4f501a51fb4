"""Tokenizers against their references, over the corpus of tools/tokenizer_corpus.py: token ids, texts, streamed texts.
The tokenizers come from Python packages (those installed) and from the directory HEARTH_SHARED; without that variable nothing is
collected here, the golden data of tests/unit/tokenizer_test.c stand in for it."""
import os
import random
import sys

import pytest

if not os.environ.get("HEARTH_SHARED"):
    pytest.skip("the fuller run needs HEARTH_SHARED", allow_module_level=True)
pytest.importorskip("tokenizers")

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../tools")]
import tokenizer_client as client  # noqa: E402
import tokenizer_corpus as corpus  # noqa: E402
import tokenizer_matrix  # noqa: E402
import tokenizer_oracles as oracles  # noqa: E402

WORK = os.environ.get("TMPDIR", "/tmp")
ORACLES = oracles.all_oracles(WORK, os.environ.get("HEARTH_SHARED"))
SCALE = int(os.environ.get("TOKENIZER_SCALE", "1"))


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return client.build(str(tmp_path_factory.mktemp("driver")))


def differences(driver, reference, what, specials):
    texts = corpus.corpus(1, SCALE, specials)
    if what == "spm":  # sentencepiece ends a text at NUL
        texts = [t for t in texts if "\0" not in t]
    for text in texts:
        ids = reference.encode(text)
        yield "encode", text, driver.encode(text, "e" if what == "json" else "p"), ids
        if what == "json":
            yield "encode with specials", text, driver.encode(text, "E"), reference.encode(text, True)
        yield from decodings(driver, reference, what, ids)
    rng = random.Random(3)
    size = reference.size()
    for _ in range(300 * SCALE):
        ids = [rng.randrange(size + 3 * (what == "json")) for _ in range(rng.randrange(1, 30))]
        yield from decodings(driver, reference, what, ids)


def decodings(driver, reference, what, ids):
    if what != "spm":  # sentencepiece always drops control tokens
        kept = reference.decode(ids, False)
        yield "decode", ids, driver.decode(ids, "d"), kept
        yield "stream", ids, driver.decode(ids, "i"), kept
    yield "decode without specials", ids, driver.decode(ids, "s"), reference.decode(ids, True)


def check(program, path, reference, specials, what):
    driver = client.Driver(program, path)
    print(driver.note)
    wrong, count = [], 0
    for kind, source, got, want in differences(driver, reference, what, specials):
        count += 1
        if got != want:
            wrong.append((kind, source, got, want))
    driver.close()
    assert count > 1000
    assert not wrong, "%d of %d differ; first: %s" % (len(wrong), count, "\n".join(map(repr, wrong[:6])))


@pytest.mark.parametrize("name", sorted(ORACLES))
def test_equal(program, name):
    path, reference, specials, what = ORACLES[name]()
    check(program, path, reference, specials, what)


def test_every_part(program, tmp_path):
    """All normalizers, pre-tokenizers, models, post-processors and decoders, in small tokenizers made for it."""
    failed = {}
    for path in tokenizer_matrix.matrix(str(tmp_path)):
        try:
            check(program, path, *oracles.from_json(path), "json")
        except (AssertionError, RuntimeError) as e:
            failed[os.path.basename(path)] = str(e)
    assert not failed, "\n\n".join("%s: %s" % item for item in failed.items())
