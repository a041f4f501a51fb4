#!/usr/bin/env python3
"""Writes src/device/cpu/kv_levels.c: the levels that code a standard normal variable in 2^bits values with the least mean square error
(Lloyd 1957, Max 1960): each level is the mean of what lies nearer to it than to its neighbours. Standard library only."""
import math

BITS = (2, 3, 4, 5, 8)
pdf = lambda x: math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
cdf = lambda x: math.erfc(-x / math.sqrt(2)) / 2


def positive_levels(n):
    """The upper half, n levels: Lloyd's iteration, then overshot so that 256 levels settle too."""
    level = [3.2 * (i + 0.5) / n for i in range(n)]
    for step in range(400000):
        cut = [0.0] + [(a + b) / 2 for a, b in zip(level, level[1:])]
        moved = 0.0
        for i in range(n):
            a = cut[i]
            if i + 1 < n:
                b = cut[i + 1]
                mean = (pdf(a) - pdf(b)) / (cdf(-a) - cdf(-b))
            else:
                mean = pdf(a) / cdf(-a)
            change = mean - level[i]
            moved = max(moved, abs(change))
            level[i] += change * (1.9 if n > 16 else 1.0)
        if moved < 1e-13 * n:
            break
    return level


print("/* Levels of a standard normal variable, rising; written by tools/kv_levels.py. At least 16 entries a table, so that a")
print(" * whole register can be read. */")
print('#include "internal.h"\n\n/* clang-format off */')
for bits in BITS:
    up = positive_levels(1 << (bits - 1))
    all_ = [-x for x in reversed(up)] + up
    all_ += [0.0] * (16 - len(all_))
    print(f"static const float levels_{bits}[] = {{")
    for i in range(0, len(all_), 8):
        print("    " + ", ".join(f"{x:.9g}f" if "." in f"{x:.9g}" or "e" in f"{x:.9g}" else f"{x:.9g}.0f" for x in all_[i : i + 8]) + ",")
    print("};")
print("/* clang-format on */")
print("const float *const kv_levels[9] = {" + ", ".join(f"[{b}] = levels_{b}" for b in BITS) + "};")
