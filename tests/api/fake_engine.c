/* A scripted engine behind engine.h, for exact tests of the protocols: the reply is what the prompt says it should be.
 * Tokens go through the real tokenizer and the real output machine (one token a byte).
 *
 * A prompt with "script:" followed by a JSON object in its last turn is obeyed:
 *   text        the reply                       think/…      tags in it are split as usual
 *   echo        "prompt" | "sampling": reply with the rendered prompt ("(" for "<"), or with the settings the engine
 * was given delay_ms    between tokens                  first_ms     before the first prefill     [total, chunk, ms]:
 * progress events        endless  repeats text until max_tokens fail        message; the generation fails after fail_at
 * tokens        stuck_ms: the engine's thread does nothing for so long, once. Embeddings (--embeds 1): 8 numbers, of
 * the prompt's length and the first tokens. Without a script the reply is "You said: " and the last line of the
 * prompt's text. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "../../src/engine/engine.h"
#include "fake_engine.h"

enum { EVENTS_MAX = 96, TOP_MAX = 20, FAKE_WIDTH = 8 };
typedef struct event {
    gen_event ev;
    char *text; /* owns */
    token_prob top[TOP_MAX];
} event;

struct gen {
    engine *e;
    gen *next;
    gen_opts o;
    output *out;
    arena *a; /* the script's memory */
    ids id;   /* reply tokens */
    size_t at;
    bool endless, ended, cancelled, counted;
    uint64_t due, delay_ns;
    int prefill_total, prefill_chunk, prefill_done;
    uint64_t prefill_ns;
    const char *fail;
    int64_t fail_at;
    int stuck_ms;
    event queue[EVENTS_MAX];
    size_t head, n;
    char *held; /* text of the event handed out last */
    float hidden[FAKE_WIDTH];
    gen_stats st;
    uint64_t t_submit, t_first;
};

struct engine {
    fake_opts o;
    tokenizer *tok;
    chat_template *tmpl;
    arena *a;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    gen *first;
    bool stop;
    engine_stats st;
    model_info info;
    gen_defaults defaults;
};

/* ---- the tokenizer: one token a byte, and four special ones ------------------------------------------------------ */
static void byte_name(buf *out, int b) { /* GPT-2's printable stand-ins */
    static int extra[256], ready;
    if (!ready++)
        for (int i = 0, n = 0; i < 256; i++)
            extra[i] = (i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174 ? i : 256 + n++;
    int c = extra[b];
    char utf8[3] = {(char)c};
    if (c >= 128) utf8[0] = (char)(0xc0 | c >> 6), utf8[1] = (char)(0x80 | (c & 63));
    json_write_string(out, str_of(utf8));
}

static tokenizer *make_tokenizer(arena *a, error *err) {
    static const char *const special[] = {"<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|bos|>"};
    buf b = {0};
    buf_puts(&b, "{\"version\":\"1.0\",\"added_tokens\":[");
    for (int i = 0; i < 4; i++)
        buf_printf(&b,
                   "%s{\"id\":%d,\"content\":\"%s\",\"special\":true,\"normalized\":false,\"lstrip\":false,\"rstrip\":"
                   "false,\"single_word\":false}",
                   i ? "," : "", 256 + i, special[i]);
    buf_puts(&b, "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_"
                 "offsets\":true,\"use_regex\":true},"
                 "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"merges\":["
                 "],\"vocab\":{");
    for (int i = 0; i < 256; i++) {
        if (i) buf_putc(&b, ',');
        byte_name(&b, i);
        buf_printf(&b, ":%d", i);
    }
    buf_puts(&b, "}}}");
    const json *j = json_read(a, buf_view(&b), NULL, err);
    buf_free(&b);
    return j ? tokenizer_from_json(j, NULL, err) : NULL;
}

static const char template_text[] =
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking "
    "%}<think>\n\n</think>\n\n"
    "{% elif open_thinking is defined %}<think>\n{% elif reasoning_effort is defined %}<think effort={{ "
    "reasoning_effort }}>{% endif %}{% endif %}";

/* ---- scripts ----------------------------------------------------------------------------------------------------- */
/* What follows the last needle, up to the next special token (NUL). */
static str last_turn(str text, str needle) {
    size_t from = 0, found = SIZE_MAX;
    for (size_t at; (at = str_find(str_slice(text, from, text.n), needle)) != SIZE_MAX; from += at + needle.n)
        found = from + at + needle.n;
    if (found == SIZE_MAX) return (str){0};
    str rest = str_slice(text, found, text.n);
    size_t end = 0;
    while (end < rest.n && rest.p[end]) end++;
    return str_slice(rest, 0, end);
}

/* The JSON object at the start of s: agents write more behind it. */
static str object_of(str s) {
    int depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < s.n; i++) {
        if (quoted)
            i += s.p[i] == '\\';
        else
            depth += (s.p[i] == '{') - (s.p[i] == '}');
        if (i < s.n && s.p[i] == '"') quoted = !quoted;
        if (!depth) return str_slice(s, 0, i + 1);
    }
    return s;
}

static void write_sampling(buf *b, const gen_opts *o) {
    const sampling *s = &o->sample;
    buf_printf(
        b,
        "{\"temperature\":%g,\"top_p\":%g,\"top_k\":%d,\"min_p\":%g,\"repetition_penalty\":%g,\"repetition_window\":%d",
        s->temperature, s->top_p, s->top_k, s->min_p, s->repetition_penalty, s->repetition_window);
    buf_printf(b, ",\"presence_penalty\":%g,\"presence_window\":%d,\"frequency_penalty\":%g,\"frequency_window\":%d",
               s->presence_penalty, s->presence_window, s->frequency_penalty, s->frequency_window);
    buf_printf(b, ",\"has_seed\":%d,\"seed\":%llu,\"max_tokens\":%d,\"n_stops\":%zu,\"ignore_eos\":%d,\"bias\":{",
               s->has_seed, (unsigned long long)s->seed, o->max_tokens, o->n_stops, o->ignore_eos);
    for (size_t i = 0; i < s->n_bias; i++) buf_printf(b, "%s\"%d\":%g", i ? "," : "", s->bias_ids[i], s->bias[i]);
    buf_puts(b, "}}");
}

static void read_script(gen *g, const json *j, str prompt) {
    buf text = {0};
    str echo = json_str(json_get(j, "echo"), (str){0});
    if (str_is(echo, "prompt"))
        for (size_t i = 0; i < prompt.n; i++)
            buf_putc(&text, prompt.p[i] == '<' ? '(' : prompt.p[i]); /* no tags to split */
    else if (str_is(echo, "sampling"))
        write_sampling(&text, &g->o);
    else
        buf_str(&text, json_str(json_get(j, "text"), STR("")));
    for (size_t i = 0; i < text.n; i++) ids_push(&g->id, text.p[i] ? (unsigned char)text.p[i] : 256);
    buf_free(&text);
    g->delay_ns = (uint64_t)json_int(json_get(j, "delay_ms"), 0) * 1000000u;
    g->due = clock_ns() + (uint64_t)json_int(json_get(j, "first_ms"), 0) * 1000000u;
    g->endless = json_bool(json_get(j, "endless"), false);
    const json *prefill = json_get(j, "prefill");
    if (prefill) {
        g->prefill_total = (int)json_int(json_at(prefill, 0), 0);
        g->prefill_chunk = (int)json_int(json_at(prefill, 1), 1);
        g->prefill_ns = (uint64_t)json_int(json_at(prefill, 2), 0) * 1000000u;
    }
    str fail = json_str(json_get(j, "fail"), (str){0});
    if (fail.n) g->fail = arena_copy(g->a, fail.p, fail.n);
    g->fail_at = json_int(json_get(j, "fail_at"), 0);
    g->stuck_ms = (int)json_int(json_get(j, "stuck_ms"), 0);
}

static void plan_reply(gen *g) {
    buf text = {0};
    for (size_t i = 0; i < g->o.n_prompt; i++) { /* ids below 256 are bytes: our own tokenizer */
        buf one = {0};
        if (g->o.prompt[i] < 256) tokenizer_bytes(g->e->tok, g->o.prompt[i], &one);
        if (one.n)
            buf_str(&text, buf_view(&one));
        else
            buf_putc(&text, 0);
        buf_free(&one);
    }
    str said = last_turn(buf_view(&text), STR("user\n"));
    str script = object_of(last_turn(said.n ? said : buf_view(&text), STR("script:")));
    error e = {0};
    const json *j = script.n ? json_read(g->a, script, NULL, &e) : NULL;
    if (j) {
        read_script(g, j, buf_view(&text));
    } else {
        if (script.n) said = str_of(e.msg);
        buf b = {0};
        buf_printf(&b, "You said: %.*s", (int)said.n, said.p ? said.p : "");
        for (size_t i = 0; i < b.n; i++) ids_push(&g->id, (unsigned char)b.p[i]);
        buf_free(&b);
    }
    buf_free(&text);
}

/* ---- events, with the engine's lock held ------------------------------------------------------------------------- */
static event *push(gen *g, gen_event_kind kind) {
    event *v = &g->queue[(g->head + g->n++) % EVENTS_MAX];
    *v = (event){.ev = {.kind = kind}};
    return v;
}

static void push_output(gen *g, const output_event *o, size_t n) {
    static const gen_event_kind kinds[] = {[OUTPUT_CONTENT] = GEN_TEXT,
                                           [OUTPUT_REASONING] = GEN_REASONING,
                                           [OUTPUT_CALL] = GEN_CALL,
                                           [OUTPUT_ARGS] = GEN_ARGS,
                                           [OUTPUT_CALL_END] = GEN_CALL_END};
    for (size_t i = 0; i < n; i++) {
        event *v = push(g, kinds[o[i].kind]);
        v->text = mem_strndup(o[i].text.p, o[i].text.n);
        v->ev.text = (str){v->text, o[i].text.n};
        v->ev.call = o[i].call;
        v->ev.whole = o[i].whole;
        g->st.reasoning_tokens += o[i].kind == OUTPUT_REASONING;
    }
}

static void end(gen *g, finish why, int stop_index) {
    const output_event *ev = NULL;
    size_t n = why == FINISH_STOP || why == FINISH_LENGTH ? output_finish(g->out, &ev) : 0;
    push_output(g, ev, n);
    event *v = push(g, GEN_DONE);
    v->ev.why = why;
    v->ev.stop_index = stop_index;
    if (why == FINISH_ERROR) error_set(&v->ev.err, ERR_INTERNAL, "%s", g->fail);
    g->ended = true;
    g->e->st.running--;
    g->e->st.requests_cancelled += why == FINISH_CANCELLED;
    g->e->st.requests_failed += why == FINISH_ERROR;
    g->st.decode_ns = g->t_first ? clock_ns() - g->t_first : 0;
}

static void push_token(gen *g, int32_t id) {
    event *v = push(g, GEN_TOKEN);
    v->ev.token = id;
    v->ev.logprob = -0.25f;
    v->ev.n_top = g->o.top_logprobs;
    for (int i = 0; i < g->o.top_logprobs; i++) v->top[i] = (token_prob){(id + i) % 256, -0.25f * (float)(i + 1)};
}

static void step_token(gen *g) {
    if (g->fail && (int64_t)g->at >= g->fail_at) return end(g, FINISH_ERROR, -1);
    if (g->st.generated_tokens >= g->o.max_tokens) return end(g, FINISH_LENGTH, -1);
    if (g->at == g->id.n && !(g->endless && g->id.n)) return end(g, FINISH_STOP, -1);
    if (g->at == g->id.n) g->at = 0;
    int32_t forced = output_forced(g->out), id = forced >= 0 ? forced : g->id.p[g->at++];
    const output_event *ev = NULL;
    int stopped;
    if (!g->t_first) g->t_first = clock_ns();
    g->st.generated_tokens++;
    g->e->st.generated_tokens_total++;
    if (g->o.want_tokens) push_token(g, id);
    size_t n = output_push(g->out, id, &ev, &stopped);
    push_output(g, ev, n);
    if (stopped >= 0) end(g, FINISH_STOP_STRING, stopped);
    if (stopped == OUTPUT_ENDED) end(g, FINISH_STOP, -1);
}

/* One turn of a generation; true when events were queued. */
static bool turn(gen *g, uint64_t now) {
    size_t before = g->n;
    if (g->ended) return false;
    if (g->cancelled) {
        g->n = MIN(g->n, EVENTS_MAX - 8);
        end(g, FINISH_CANCELLED, -1);
        return true;
    }
    while (!g->ended && now >= g->due && g->n < EVENTS_MAX - 16) {
        if (g->prefill_done < g->prefill_total) {
            g->prefill_done = MIN(g->prefill_done + g->prefill_chunk, g->prefill_total);
            event *v = push(g, GEN_PROGRESS);
            v->ev.done = g->prefill_done;
            v->ev.total = g->prefill_total;
            g->due = now + g->prefill_ns;
        } else {
            step_token(g);
            g->due = now + g->delay_ns;
        }
        if (g->n - before > 32) break; /* let others have a turn */
    }
    return g->n > before;
}

static void *engine_main(void *arg) {
    engine *e = arg;
    pthread_mutex_lock(&e->lock);
    while (!e->stop) {
        uint64_t now = clock_ns(), next = now + 1000000000u;
        e->st.last_step_ns = now;
        for (gen *g = e->first; g; g = g->next)
            if (g->stuck_ms) {
                struct timespec t = {g->stuck_ms / 1000, g->stuck_ms % 1000 * 1000000};
                g->stuck_ms = 0;
                pthread_mutex_unlock(&e->lock);
                nanosleep(&t, NULL);
                pthread_mutex_lock(&e->lock);
                break;
            }
        for (gen *g = e->first; g; g = g->next) {
            if (turn(g, now) && g->o.wake) g->o.wake(g->o.wake_arg);
            if (!g->ended) next = MIN(next, g->n >= EVENTS_MAX - 16 ? now + 10000000u : MAX(g->due, now));
        }
        e->st.last_step_ns = clock_ns();
        if (next <= now) {
            pthread_mutex_unlock(&e->lock);
            pthread_mutex_lock(&e->lock);
            continue;
        }
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        uint64_t ns = (uint64_t)t.tv_nsec + (next - now);
        t.tv_sec += (time_t)(ns / 1000000000u);
        t.tv_nsec = (long)(ns % 1000000000u);
        pthread_cond_timedwait(&e->changed, &e->lock, &t);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

/* ---- engine.h ---------------------------------------------------------------------------------------------------- */
gen *engine_submit(engine *e, const gen_opts *o, error *err) {
    gen *g = mem_alloc(sizeof *g);
    g->e = e;
    g->o = *o;
    g->a = arena_new(0);
    g->t_submit = clock_ns();
    g->st.prompt_tokens = (int32_t)o->n_prompt;
    g->out = output_new(e->tok, &(output_opts){.stops = o->stops,
                                               .n_stops = o->n_stops,
                                               .keep_special = o->keep_special,
                                               .prompt_tail = o->prompt_tail,
                                               .split_thinking = o->split_thinking,
                                               .think = o->think,
                                               .tools = o->tools,
                                               .one_call = o->one_call,
                                               .has_think_budget = o->has_think_budget,
                                               .think_budget = o->think_budget,
                                               .reply_max = o->max_tokens});
    if (o->want_hidden) { /* no reply: DONE comes next */
        g->hidden[0] = (float)o->n_prompt;
        for (size_t i = 1; i < FAKE_WIDTH && i <= o->n_prompt; i++) g->hidden[i] = (float)o->prompt[i - 1];
    } else {
        plan_reply(g);
    }
    pthread_mutex_lock(&e->lock);
    bool full = e->st.running >= e->o.queue_max;
    if (!full) {
        g->next = e->first;
        e->first = g;
        e->st.running++;
        e->st.requests_total++;
        e->st.prompt_tokens_total += o->n_prompt;
        g->counted = true;
        pthread_cond_signal(&e->changed);
    } else {
        e->st.requests_rejected++;
        g->ended = true;
    }
    pthread_mutex_unlock(&e->lock);
    if (!full) return g;
    gen_free(g);
    error_set(err, ERR_QUEUE_FULL, "%d requests are waiting already", e->o.queue_max);
    return NULL;
}

bool gen_next(gen *g, gen_event *ev, int timeout_ms) {
    pthread_mutex_lock(&g->e->lock);
    bool have = g->n > 0;
    if (have) {
        event *v = &g->queue[g->head];
        free(g->held);
        g->held = v->text;
        *ev = v->ev;
        static _Thread_local token_prob top[TOP_MAX];
        memcpy(top, v->top, sizeof top);
        ev->top = top;
        g->head = (g->head + 1) % EVENTS_MAX;
        g->n--;
    }
    pthread_mutex_unlock(&g->e->lock);
    return have;
}

void gen_cancel(gen *g) {
    pthread_mutex_lock(&g->e->lock);
    g->cancelled = true;
    pthread_cond_signal(&g->e->changed);
    pthread_mutex_unlock(&g->e->lock);
}

void gen_free(gen *g) {
    if (!g) return;
    engine *e = g->e;
    pthread_mutex_lock(&e->lock);
    gen **at = &e->first;
    while (*at && *at != g) at = &(*at)->next;
    if (*at) *at = g->next;
    if (g->counted && !g->ended) {
        e->st.running--;
        e->st.requests_cancelled++;
    }
    pthread_mutex_unlock(&e->lock);
    for (; g->n; g->n--, g->head = (g->head + 1) % EVENTS_MAX) free(g->queue[g->head].text);
    free(g->held);
    output_free(g->out);
    ids_free(&g->id);
    arena_free(g->a);
    free(g);
}

const float *gen_hidden(const gen *g) {
    return g->o.want_hidden ? g->hidden : NULL;
}

void gen_stats_get(const gen *g, gen_stats *out) {
    pthread_mutex_lock(&g->e->lock);
    *out = g->st;
    pthread_mutex_unlock(&g->e->lock);
}

engine *fake_engine_open(const fake_opts *o, error *err) {
    engine *e = mem_alloc(sizeof *e);
    e->o = *o;
    if (!e->o.queue_max) e->o.queue_max = 100000;
    e->a = arena_new(0);
    e->tok = make_tokenizer(e->a, err);
    buf file = {0};
    if (o->template_file && !file_read(&file, o->template_file, 1 << 20, err)) return NULL;
    str source = o->template_file ? buf_view(&file) : str_of(template_text);
    e->tmpl = e->tok ? chat_template_from(source, (str){0}, STR("<|endoftext|>"), err) : NULL;
    buf_free(&file);
    e->defaults = (gen_defaults){o->config_temperature, NAN, NAN, -1};
    e->info = (model_info){
        .family = "fake", .architecture = "fake", .tier = "generic", .quantization = "none", .n_params = 256};
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    if (!e->tmpl || pthread_create(&e->thread, NULL, engine_main, e)) return NULL; /* the test program ends */
    return e;
}

void engine_close(engine *e) {
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    pthread_cond_signal(&e->changed);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    chat_template_free(e->tmpl);
    tokenizer_free(e->tok);
    arena_free(e->a);
    free(e);
}

const model_info *engine_model(const engine *e) {
    return &e->info;
}
const tokenizer *engine_tokenizer(const engine *e) {
    return e->tok;
}
const chat_template *engine_template(const engine *e) {
    return e->tmpl;
}
const char *engine_model_id(const engine *e) {
    return e->o.model_id ? e->o.model_id : "test/scripted";
}
const gen_defaults *engine_defaults(const engine *e) {
    return &e->defaults;
}
const embedding_info *engine_embedding(const engine *e) {
    static const embedding_info info = {.width = FAKE_WIDTH, .end_token = 258};
    return e->o.embeds ? &info : NULL;
}
const char *engine_fingerprint(const engine *e) {
    return "fake-1";
}
bool engine_context_fixed(const engine *e) {
    return e->o.fixed;
}
void engine_fit_running(const engine *e, fit_report *out) {
    *out = (fit_report){.fits = true, .threads = 1, .context_safe = engine_context(e)};
    out->plan.context = engine_context(e);
}
int engine_context(const engine *e) {
    return e->o.context ? e->o.context : 8192;
}

bool engine_clamp(const engine *e, size_t n_prompt, int64_t requested, bool clamp, int32_t *granted, bool *clamped,
                  error *err) {
    int64_t left = engine_context(e) - (int64_t)n_prompt;
    *clamped = left >= 1 && requested > left;
    *granted = (int32_t)MIN(requested, MAX(left, 0));
    if (left >= 1 && (requested <= left || clamp)) return true;
    return error_set(err, ERR_MEMORY, "needs %lld tokens: the prompt has %zu, %lld more were requested, %d fit",
                     (long long)n_prompt + requested, n_prompt, (long long)requested, engine_context(e));
}

void engine_stats_get(const engine *e, engine_stats *out) {
    engine *w = (engine *)(uintptr_t)e;
    pthread_mutex_lock(&w->lock);
    *out = w->st;
    pthread_mutex_unlock(&w->lock);
    out->failed = w->o.failed;
}

bool engine_cache_flush(engine *e, int timeout_ms, uint64_t *n_saved, error *err) {
    return error_set(err, ERR_UNSUPPORTED, "there is no SSD cache");
}
