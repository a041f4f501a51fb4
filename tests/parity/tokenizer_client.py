"""Speaks with tokenizer_driver.c, which is built here against the library."""
import os
import struct
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def build(work):
    out = os.path.join(work, "tokenizer_driver")
    library = os.path.join(ROOT, os.environ.get("BUILD", "build"), "libhearth.a")
    subprocess.run(["gcc", "-std=gnu17", "-O2", "-g", "-D_GNU_SOURCE", os.path.join(ROOT, "tests/parity/tokenizer_driver.c"), library,
                    "-lpcre2-8", "-lutf8proc", "-lxxhash", "-lm", "-pthread", "-o", out] + os.environ.get("DRIVER_FLAGS", "").split(), check=True)
    return out


class Driver:
    def __init__(self, program, path):
        self.p = subprocess.Popen([program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        line = self.p.stderr.readline().decode()
        self.note = line.strip()
        if "loaded" not in line:
            raise RuntimeError(line)
        self.load_ms = float(line.split("loaded in ")[1].split()[0])

    def ask(self, op, payload, n):
        self.p.stdin.write(op.encode() + struct.pack("<I", n) + payload)
        self.p.stdin.flush()
        (count,) = struct.unpack("<I", self.p.stdout.read(4))
        if count == 0xFFFFFFFF:
            (count,) = struct.unpack("<I", self.p.stdout.read(4))
            raise RuntimeError(self.p.stdout.read(count).decode())
        return count

    def encode(self, text, op="e"):
        raw = text if isinstance(text, bytes) else text.encode()
        count = self.ask(op, raw, len(raw))
        return list(struct.unpack("<%di" % count, self.p.stdout.read(4 * count)))

    def decode(self, ids, op="d"):
        count = self.ask(op, struct.pack("<%di" % len(ids), *ids), 4 * len(ids))
        return self.p.stdout.read(count).decode()

    def close(self):
        self.p.stdin.close()
        self.p.wait()
        self.p.stdout.close(), self.p.stderr.close()
