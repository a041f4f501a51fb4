"""Texts for comparing tokenizers: many scripts, every kind of white space and control character, emoji sequences, hostile runs,
code, numbers, contractions, random code points (also unassigned and newest), look-alikes of special tokens. Seeded: the same
texts every time."""
import random
import unicodedata

PHRASES = """The quick brown fox jumps over the lazy dog.
Der schnelle braune Fuchs springt über den faulen Hund; Straße, ÄÖÜ.
Le cœur a ses raisons que la raison ne connaît point — œuvre naïve.
El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia. ¿Qué? ¡Sí!
Příliš žluťoučký kůň úpěl ďábelské ódy.
Zażółć gęślą jaźń. Árvíztűrő tükörfúrógép.
Съешь же ещё этих мягких французских булок, да выпей чаю.
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Ὀδυσσεύς
دع القوة تكون معك دائماً، ١٢٣٤٥ ـــ عَرَبِيّ
זה כיף סתם לשמוע איך תנצח קרפד. שָׁלוֹם
नमस्ते दुनिया क्षत्रिय ज्ञान १२३४५ हिन्दी में लिखा
বাংলা ভাষা আমার মাতৃভাষা ৳৫০০
தமிழ் மொழி அழகானது கொ கோ கௌ
తెలుగు భాష ಕನ್ನಡ മലയാളം ගොඩාක් සිංහල
สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง ๑๒๓
ພາສາລາວ မြန်မာဘာသာ ខ្មែរ
你好，世界！我喜欢吃苹果。二〇二六年十一月
繁體中文測試：龍馬精神、憂鬱的臺灣烏龜
こんにちは世界。カタカナとひらがな、漢字もある。ｶﾞｷﾞｸﾞ ㌔ ㍿
안녕하세요 세계! 한국어 문장입니다. 가각갂 ㄱㄴㄷ
ქართული ენა հայերեն አማርኛ ᏣᎳᎩ ᐃᓄᒃᑎᑐᑦ ᚠᚢᚦᚨᚱᚲ
བོད་སྐད་ ᠮᠣᠩᠭᠣᠯ ꦧꦱꦗꦮ 𐎠𐎡𐎢 𓀀𓁐𓂀 𐤀𐤁𐤂
İstanbul ıI iİ ŞşĞğ ǅ ǆ Ǆ ﬁ ﬂ ﬃ ſt K Å Ω
Tiếng Việt có dấu: ấ ầ ẩ ẫ ậ ắ ằ ẳ ẵ ặ
𝒜𝓁𝓅𝒽𝒶 𝟘𝟙𝟚 ① ② Ⅷ ½ ¾ ⅓ x² y₃ ™ ℃ №
👩‍🚀👨‍👩‍👧‍👦🏳️‍🌈🇳🇴🇯🇵👍🏽☝🏿❤️‍🔥🫠🫨🪿 :-) ;) ¯\\_(ツ)_/¯
don't DON'T Don'T we'll WE'LL they'Re I'M it'S you'Ve he'D 'tis rock'n'roll a'sb a'ſb x''s 's't'll
def f(x: int = 0) -> str:\n\treturn f"{x!r:>{10}}"  # comment
for (int i = 0; i < n; ++i) { a[i] += b[i] << 2; }\r\n\r\n/* x */
{"key": [1, 2.5e-10, null, true], "s": "\\u00e9\\n"}
<div class="a b">&nbsp;<br/></div> <!-- c --> https://example.org/a?b=c&d=%20#e user@host.org
3.14159 1,234,567.89 0xDEADBEEF 1e10 12345678901234567890 007 1 22 333 4444 55555 ٣٤٥ 一二三
$100 €5 £3 ¥8 50% #1 a_b_c CamelCaseWordsHERE snake_case_HERE XMLHttpRequest iPhone15Pro
SELECT * FROM t WHERE a='b' AND c<>"d"; -- e
\\frac{a}{b} $\\alpha_{i}^{2}$ \\begin{x}
   leading and trailing   
\ttabs\t\tmore\t \t mixed
line\nline\r\nline\rline\n\n\nline\r\n\r\n \n \n  x
a\u00a0b\u2003c\u2009d\u3000e\u1680f\u2028g\u2029h\u0085i\u200bj\ufeffk\u180el\u2060m
zero\u200dwidth\u200cjoiner\u00adsoft
\u0000\u0001\u0007\u0008\u000b\u000c\u001b[31mred\u001b[0m\u007f\u0080\u009f
a\u0301e\u0301 q\u0323\u0307 q\u0307\u0323 \u0344 \u1100\u1161\u11a8 \u0958 \u2126 \u212b \u1e9b\u0323
Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324\u031e\u0349\u035a\u032f\u031e\u0320\u034dA\u036b\u0357\u0334\u0362\u0335\u031c\u0330\u0354L\u0368\u0367\u0369\u0358\u0320G
\u0301leading mark \u0e33 \u0eb3 \ufb1d\u05b4
\ufffd \ufffe \uffff \U0010ffff \ue000 \U000f0000 \u2fe0 \u0378
\U00011935\U00011930 \U00011938 \U0001611e\U0001611e \U000105d2\u0307 \u32ff \U00010781 \ua7f2 \u0898\u0301 \u1acc\u0316
\U0001f1e6\U0001f1e7\U0001f1e8 \U0001f469\u200d\u2764\ufe0f\u200d\U0001f48b\u200d\U0001f468 \u0031\ufe0f\u20e3 \U0001f3f4\U000e0067\U000e0062\U000e007f
<|im_start|>system\nobey<|im_end|>\n<|im_start|>assistant
<|im_start <|im_start|im_end|> <|endoftext|><|endoftext|>x<|endoftext|> y
<s> </s> [INST] hi [/INST] <unk> <pad> [CLS] [SEP] [MASK] [UNK] mask
 [MASK]  [MASK]a[MASK] <mask> </s></s><s>
<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|> <|reserved_special_token_0|>
<start_of_turn>user\n<end_of_turn> <|turn>model<turn|> <unused5> <think>\nplan\n</think>\n\n<tool_call>
<｜User｜>hi<｜Assistant｜> <0x41><0x0A> <0xE4> \u2581 \u2581\u2581a a\u2581b \u0120 \u010a""".split("\n")

ALPHABETS = [(0x20, 0x7F), (0xA0, 0x250), (0x250, 0x370), (0x300, 0x370), (0x370, 0x400), (0x400, 0x530), (0x530, 0x600), (0x600, 0x700),
             (0x900, 0xE00), (0xE00, 0x1000), (0x1000, 0x1200), (0x1100, 0x1200), (0x1200, 0x1400), (0x1AB0, 0x1B00), (0x1E00, 0x2000),
             (0x2000, 0x2070), (0x2070, 0x2C00), (0x3000, 0x3100), (0x3130, 0x3400), (0x4E00, 0x9FFF), (0xA000, 0xAC00), (0xAC00, 0xD7A4),
             (0xE000, 0xE100), (0xF900, 0xFB50), (0xFB50, 0xFE00), (0xFE00, 0x10000), (0x10000, 0x11000), (0x11000, 0x12000),
             (0x16000, 0x17000), (0x1B000, 0x1B300), (0x1D000, 0x1D800), (0x1E000, 0x1F000), (0x1F000, 0x1FB00), (0x20000, 0x20100),
             (0x2EBF0, 0x2EE60), (0x31350, 0x32400), (0xE0000, 0xE0200), (0x10FF00, 0x110000), (0, 0x20), (0x7F, 0xA1)]


def unescape(s):
    out, i = "", 0
    names = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}
    while i < len(s):
        if s[i] == "\\" and i + 1 < len(s) and s[i + 1] in names:
            out, i = out + names[s[i + 1]], i + 2
        elif s[i] == "\\" and s[i + 1 : i + 2] in ("u", "U"):
            n = 4 if s[i + 1] == "u" else 8
            out, i = out + chr(int(s[i + 2 : i + 2 + n], 16)), i + 2 + n
        else:
            out, i = out + s[i], i + 1
    return out


def points(rng, low, high, n):
    return "".join(chr(c) for c in (rng.randrange(low, high) for _ in range(n)) if not 0xD800 <= c <= 0xDFFF)


def corpus(seed=1, scale=1, specials=()):
    """A list of texts. scale multiplies the random part; specials: texts of the tokenizer's own added tokens."""
    rng = random.Random(seed)
    base = [unescape(p) for p in PHRASES]
    out = ["", " ", "  ", "\n", "a", "é", "😀"] + base + ["\n".join(base), " ".join(base), "".join(base)]
    out += [form for p in base for form in (unicodedata.normalize("NFD", p), p.upper(), p.swapcase(), " " + p, p + "\n", p.title())]
    for unit in ("a", "ab", " ", "\n", " \n", "\t", "1", "12", "!", "=", "-", "é", "漢", "가", "😀", "ا", "a ", "\u0301", "\u0323\u0301", "\r\n", "'s", "▁", "Aa"):
        out += [unit * n for n in (2, 3, 5, 17, 64, 300)]
        out += ["x" + unit * 7 + "y"]
    for low, high in ALPHABETS:
        out += [points(rng, low, high, rng.randrange(1, 60)) for _ in range(4 * scale)]
        out += [" ".join(points(rng, low, high, rng.randrange(1, 7)) for _ in range(10)) for _ in range(2 * scale)]
    spaces = [chr(c) for c in (9, 10, 11, 12, 13, 32, 0x85, 0xA0, 0x1680, 0x2003, 0x2028, 0x3000, 0x200B, 0x1C, 0x180E)]
    for _ in range(80 * scale):
        out.append("".join(rng.choice(spaces + ["a", "1", ".", "é", "漢", "'s"]) for _ in range(rng.randrange(1, 24))))
    for _ in range(60 * scale):
        out.append("".join(chr(c) for c in (rng.randrange(0x110000) for _ in range(rng.randrange(1, 30))) if not 0xD800 <= c <= 0xDFFF))
    words = [w for p in base for w in p.split()]
    for _ in range(150 * scale):
        out.append("".join(rng.choice(words) + rng.choice(["", " ", "  ", "\n", ", ", "\r\n", "\t", ".", "'s "]) for _ in range(rng.randrange(1, 40))))
    for _ in range(60 * scale):
        out.append("".join(rng.choice("aAbBéÉ1٣ '.-_\n漢あ가\u0301ǅʰªº😀") for _ in range(rng.randrange(1, 30))))
    specials = [s for s in specials if s]
    for s in rng.sample(specials, min(len(specials), 40)):
        out += [s, "a" + s, s + "b", " " + s + " ", "a  " + s + "  b", s + s, s[:-1], s[1:], s[:-1] + " " + s[-1], s.upper() + s]
    for _ in range(60 * scale if specials else 0):
        out.append("".join(rng.choice([rng.choice(specials), rng.choice(words), " ", "\n", rng.choice(specials)[: rng.randrange(1, 9)]]) for _ in range(12)))
    return out
