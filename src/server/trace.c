/* --trace DIR: for every request with a prompt a file DIR/<request id>.json (mode 0600) with the exact prompt, as text
 * and as tokens, and the tokens of each reply. For finding out what a model really saw. Never headers or keys.
 * Not here: the line a request has in the log (request.c). */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "internal.h"

struct trace {
    buf text;    /* owns: of the prompt */
    ids prompt;  /* owns */
    ids *tokens; /* owns: [n] a list a choice */
    int n;
};

void trace_begin(gen_run *r, const prompt *p) {
    if (!r->q->s->o.trace_dir) return;
    trace *t = r->trace = mem_alloc(sizeof *t);
    buf_str(&t->text, p->text.n ? buf_view(&p->text) : r->req->prompt);
    ids_append(&t->prompt, p->ids.p, p->ids.n);
    t->n = r->n;
    t->tokens = mem_alloc((size_t)r->n * sizeof *t->tokens);
}

void trace_token(gen_run *r, const choice *c, int32_t id) {
    if (r->trace) ids_push(&r->trace->tokens[c->index], id);
}

static void write_ids(buf *b, const ids *v) {
    buf_putc(b, '[');
    for (size_t i = 0; i < v->n; i++) buf_printf(b, "%s%d", i ? "," : "", v->p[i]);
    buf_putc(b, ']');
}

static void write_trace(const gen_run *r, buf *b) {
    const trace *t = r->trace;
    buf_printf(b, "{\"id\":\"%s\",\"time\":%lld,\"path\":", r->q->id, (long long)r->created);
    json_write_string(b, r->q->path);
    buf_puts(b, ",\"model\":");
    json_write_string(b, str_of(r->model));
    buf_puts(b, ",\"system_fingerprint\":");
    json_write_string(b, str_of(engine_fingerprint(atomic_load(&r->q->s->e))));
    buf_puts(b, ",\"prompt\":");
    json_write_string(b, buf_view(&t->text));
    buf_puts(b, ",\"prompt_tokens\":");
    write_ids(b, &t->prompt);
    buf_puts(b, ",\"replies\":[");
    for (int i = 0; i < t->n; i++) {
        buf_printf(b, "%s{\"finish\":\"%s\",\"tokens\":", i ? "," : "", finish_name(r->choices[i].why));
        write_ids(b, &t->tokens[i]);
        buf_putc(b, '}');
    }
    buf_puts(b, "]}\n");
}

void trace_end(gen_run *r) {
    trace *t = r->trace;
    if (!t) return;
    buf b = {0}, name = {0};
    write_trace(r, &b);
    r->trace = NULL;
    buf_printf(&name, "%s/%s.json", r->q->s->o.trace_dir, r->q->id);
    int fd = open(name.p, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0600);
    bool ok = fd >= 0 && file_write_all(fd, buf_view(&b));
    if (!ok) log_warn("--trace: %s cannot be written: %s", name.p, strerror(errno));
    if (fd >= 0 && !ok) unlink(name.p); /* half a file is no trace */
    if (fd >= 0) close(fd);
    buf_free(&b);
    buf_free(&name);
    for (int i = 0; i < t->n; i++) ids_free(&t->tokens[i]);
    free(t->tokens);
    ids_free(&t->prompt);
    buf_free(&t->text);
    free(t);
}
