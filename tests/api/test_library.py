"""libhearth as a program outside this tree sees it: header, pkg-config, installed files, exported names, the example program."""
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
MODEL = ROOT / "tests/data/models/llama_plain-q4"


def run(*args, env=None, **kw):
    return subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=300,
                          env={**os.environ, **(env or {})}, **kw)


def ok(*args, **kw):
    r = run(*args, **kw)
    assert r.returncode == 0, f"{args}: {r.stdout}{r.stderr}"
    return r.stdout


def flags(pc_dir, *what):
    return ok("pkg-config", *what, "hearth", env={"PKG_CONFIG_PATH": str(pc_dir)}).split()


def test_only_the_public_names_are_exported():
    declared = {w.split("(")[0].lstrip("*") for line in (ROOT / "include/hearth.h").read_text().splitlines()
                if line.startswith("HEARTH_API") for w in line.split() if w.lstrip("*").startswith("hearth_") and "(" in w}
    exported = {line.split()[-1] for line in ok("nm", "-D", "--defined-only", BUILD / "libhearth.so").splitlines()}
    assert exported == declared


def test_the_header_is_c_and_cplusplus(tmp_path):
    src = tmp_path / "h.c"
    src.write_text("#include <hearth.h>\nint f(void);\nint f(void) { hearth_gen_opts o = HEARTH_GEN_OPTS_INIT; return o.max_tokens; }\n")
    ok("gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", f"-I{ROOT}/include", src)
    ok("g++", "-std=c++20", "-Wall", "-Werror", "-fsyntax-only", "-x", "c++", f"-I{ROOT}/include", src)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    prefix = tmp_path_factory.mktemp("prefix")
    ok("make", "-s", "install", f"PREFIX={prefix}", cwd=ROOT)
    return prefix


def test_install_has_everything(installed):
    for f in ("include/hearth.h", "lib/libhearth.a", "lib/libhearth.so", "lib/libhearth.so.0", "lib/pkgconfig/hearth.pc"):
        assert (installed / f).exists(), f
    version = (ROOT / "VERSION").read_text().strip()
    assert flags(installed / "lib/pkgconfig", "--modversion") == [version]


def build_example(pc_dir, out):
    ok("gcc", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", ROOT / "tests/api/example.c", "-o", out,
       *flags(pc_dir, "--cflags", "--libs"))
    return out


@pytest.mark.parametrize("where", ["tree", "installed"])
def test_example_program(where, installed, tmp_path):
    pc_dir, lib = (BUILD, BUILD) if where == "tree" else (installed / "lib/pkgconfig", installed / "lib")
    program = build_example(pc_dir, tmp_path / "example")
    env = {"LD_LIBRARY_PATH": str(lib)}
    r = run(program, MODEL, 'Say "hi"\\', env=env)
    assert r.returncode == 0, r.stderr
    text, last = r.stdout.rstrip("\n").rsplit("\n", 1)
    assert last.startswith("[") and (last.endswith(", length]") or last.endswith(", stop]"))
    assert r.stdout == run(program, MODEL, 'Say "hi"\\', env=env).stdout  # greedy: the same every time
    r = run(program, tmp_path / "no-model", "x", env=env)
    assert r.returncode == 1 and "no-model" in r.stderr


LIBRARY_TEST = r"""
#include <hearth.h>
#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static hearth_model *model;
static int32_t prompt[40];

static void next_all(hearth_gen *g, char *text, int *tokens) {
    hearth_token t = HEARTH_TOKEN_INIT;
    int rc;
    *tokens = 0;
    size_t n = 0;
    while ((rc = hearth_gen_next(g, &t)) == 1) {
        *tokens += t.id >= 0;
        memcpy(text + n, t.text, t.n);
        n += t.n;
    }
    text[n] = 0;
    assert(rc == 0);
    assert(hearth_gen_next(g, &t) == 0);
}

static bool stop_after_three(void *arg, const hearth_token *t) { return ++*(int *)arg < 3; }

static void *one_thread(void *arg) {
    char text[4096];
    int tokens;
    hearth_gen *g;
    hearth_gen_opts o = HEARTH_GEN_OPTS_INIT;
    o.max_tokens = 50, o.ignore_eos = true;
    assert(hearth_gen_start(model, prompt, 40, &o, &g) == HEARTH_OK);
    next_all(g, text, &tokens);
    hearth_gen_free(g);
    assert(tokens == 50);
    return strdup(text);
}

int main(int argc, char **argv) {
    assert(hearth_open("/nowhere", NULL, &model) < 0 && strstr(hearth_error(), "/nowhere"));
    hearth_open_opts oo = HEARTH_OPEN_OPTS_INIT;
    oo.numerics = "half";
    assert(hearth_open(argv[1], &oo, &model) == HEARTH_EINVALID && strstr(hearth_error(), "half"));
    oo.numerics = "f32", oo.threads = 2, oo.context_length = 256;
    assert(hearth_open(argv[1], &oo, &model) == HEARTH_OK);
    assert(hearth_context(model) == 256 && hearth_vocab(model) > 0);

    /* text and ids */
    int32_t *ids;
    size_t n, m;
    char *text;
    assert(hearth_encode(model, "hello world", 11, false, false, &ids, &n) == HEARTH_OK && n > 0);
    assert(hearth_decode(model, ids, n, false, &text, &m) == HEARTH_OK && m == 11 && !strcmp(text, "hello world"));
    free(text), free(ids);
    assert(hearth_encode(model, "\xff", 1, false, false, &ids, &n) == HEARTH_EINVALID);
    int32_t outside = hearth_vocab(model);
    assert(hearth_decode(model, &outside, 1, false, &text, NULL) == HEARTH_EINVALID);
    assert(hearth_render(model, "[{\"role\":\"user\",\"content\":\"hi\"}]", NULL, NULL, &text, &ids, &n) == HEARTH_OK && n > 0);
    assert(strstr(text, "hi"));
    free(text), free(ids);
    assert(hearth_render(model, "{", NULL, NULL, NULL, &ids, &n) == HEARTH_EINVALID && strstr(hearth_error(), "messages_json"));
    assert(hearth_render(model, "{}", NULL, NULL, NULL, &ids, &n) == HEARTH_EINVALID && strstr(hearth_error(), "array"));

    /* generating: threads give the same; a stop string; a callback that stops; a cancel */
    for (int i = 0; i < 40; i++) prompt[i] = (i * 7) % 256;
    pthread_t th[4];
    char *got[4];
    for (int i = 0; i < 4; i++) pthread_create(&th[i], NULL, one_thread, NULL);
    for (int i = 0; i < 4; i++) pthread_join(th[i], (void **)&got[i]);
    for (int i = 1; i < 4; i++) assert(!strcmp(got[i], got[0]));
    for (int i = 1; i < 4; i++) free(got[i]);

    int calls = 0;
    hearth_gen_opts o = HEARTH_GEN_OPTS_INIT;
    hearth_stats st = HEARTH_STATS_INIT;
    o.ignore_eos = true, o.max_tokens = 100, o.top_logprobs = 3;
    assert(hearth_generate(model, prompt, 40, &o, stop_after_three, &calls, &st) == HEARTH_OK);
    assert(calls == 3 && !strcmp(st.finish, "cancelled") && st.prompt_tokens == 40);

    hearth_gen *g;
    hearth_token t = HEARTH_TOKEN_INIT;
    assert(hearth_gen_start(model, prompt, 40, &o, &g) == HEARTH_OK);
    int rc = hearth_gen_next(g, &t);
    assert(rc == 1 && t.id >= 0 && t.n_top == 3 && t.top[0].id == t.id && t.top[0].logprob == t.logprob && t.logprob < 0);
    hearth_gen_cancel(g);
    while ((rc = hearth_gen_next(g, &t)) == 1) continue;
    hearth_gen_stats(g, &st);
    assert(rc == 0 && !strcmp(st.finish, "cancelled") && st.generated_tokens < 100);
    hearth_gen_free(g);

    /* structs of an older program: only what they hold is read and written */
    struct { size_t size; int32_t max_tokens; float temperature; unsigned char after[64]; } old = {offsetof(hearth_gen_opts, top_p), 7, 0, {0}};
    memset(old.after, 0xee, sizeof old.after);
    struct { size_t size; int32_t prompt_tokens; unsigned char after[64]; } old_stats = {sizeof(size_t) + 4, 0, {0}};
    memset(old_stats.after, 0xee, sizeof old_stats.after);
    assert(hearth_generate(model, prompt, 40, (hearth_gen_opts *)&old, NULL, NULL, (hearth_stats *)&old_stats) == HEARTH_OK);
    assert(old_stats.prompt_tokens == 40 && old_stats.after[0] == 0xee);

    /* refusals leave a message and a code */
    o = (hearth_gen_opts)HEARTH_GEN_OPTS_INIT;
    o.top_p = 2;
    assert(hearth_gen_start(model, prompt, 40, &o, &g) == HEARTH_EINVALID && strstr(hearth_error(), "top_p"));
    o.top_p = 1;
    assert(hearth_gen_start(model, prompt, 40, &o, &g) == HEARTH_EMEMORY && strstr(hearth_error(), "552")); /* 40 + 512 in 256 */
    o.size = 3;
    assert(hearth_gen_start(model, prompt, 40, &o, &g) == HEARTH_EINVALID);
    assert(hearth_gen_start(model, NULL, 40, NULL, &g) == HEARTH_EINVALID);
    o = (hearth_gen_opts)HEARTH_GEN_OPTS_INIT;
    o.max_tokens = 1;
    assert(hearth_gen_start(model, &outside, 1, &o, &g) == HEARTH_EINVALID);

    /* logits */
    float *logits;
    assert(hearth_logits(model, prompt, 40, &logits) == HEARTH_OK);
    free(logits);
    assert(hearth_logits(model, &outside, 1, &logits) == HEARTH_EINVALID && !logits);

    /* closing under a running generation */
    o = (hearth_gen_opts)HEARTH_GEN_OPTS_INIT;
    o.max_tokens = 200, o.ignore_eos = true;
    assert(hearth_gen_start(model, prompt, 40, &o, &g) == HEARTH_OK);
    hearth_close(model);
    while ((rc = hearth_gen_next(g, &t)) == 1) continue;
    assert(rc == 0);
    hearth_gen_free(g);
    hearth_gen_free(NULL);
    hearth_close(NULL);
    puts("fine");
    free(got[0]);
    return 0;
}
"""


def test_every_function(tmp_path):
    src = tmp_path / "library_test.c"
    src.write_text(LIBRARY_TEST)
    ok("gcc", "-g", "-UNDEBUG", "-Wall", "-Wno-unused-parameter", src, "-o", tmp_path / "t", *flags(BUILD, "--cflags", "--libs"), "-pthread")
    r = run(tmp_path / "t", MODEL, env={"LD_LIBRARY_PATH": str(BUILD)})
    assert r.returncode == 0 and r.stdout == "fine\n", r.stderr
