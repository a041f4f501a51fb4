/* The reply machine on any text in any cut: it never fails, its events are whole characters, calls open and close in
 * order, and the whole is the same for every cut. First byte: which form of calls; second: of thinking, stop strings,
 * start inside; third: the cut; the rest is the reply, bytes 0xF8 and above being the special tokens. */
#include <stdio.h>
#include <stdlib.h>
#include "../../src/text/output_internal.h"
#include "../../src/text/tokenizer.h"

static tokenizer *tok;
static tool_list *lists[32];
static size_t n_lists;
static const char *const specials[] = {"<|tool_call>", "<tool_call|>", "<|\"|>",   "<|channel>",
                                       "<channel|>",   "<think>",      "</think>", "[TOOL_CALLS]"};
static const char *const forms[] = {"gemma", "deepseek-v4", "minimax",  "seed",   "minicpm",
                                    "glm",   "qwen",        "deepseek", "kimi",   "mistral",
                                    "phi",   "cohere",      "llama",    "hermes", "harmony"};

static void open_parts(void) {
    static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{"
        "\"s\":{\"type\":"
        "\"string\"},\"n\":{\"type\":\"integer\"},\"a\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}}}}},"
        "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]";
    static arena *a;
    a = arena_new(0);
    error err = {0};
    buf b = {0};
    buf_puts(&b, "{\"model\":{\"type\":\"BPE\",\"ignore_merges\":true,\"merges\":[],\"vocab\":{");
    for (int i = 0; i < 256; i++) {
        char c[4];
        if (i) buf_putc(&b, ',');
        json_write_string(&b, (str){c, utf8_put(c, byte_point[i])});
        buf_printf(&b, ":%d", i);
    }
    buf_puts(&b, "}},\"added_tokens\":[");
    for (size_t i = 0; i < COUNT(specials); i++) {
        buf_puts(&b, i ? ",{\"content\":" : "{\"content\":");
        json_write_string(&b, str_of(specials[i]));
        buf_puts(&b, ",\"special\":true}");
    }
    buf_puts(&b, "],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":"
                 "\"ByteLevel\"}}");
    tok = tokenizer_from_json(json_read(a, buf_view(&b), NULL, &err), NULL, &err);
    buf_free(&b);
    const json *list = json_read(a, STR(tools), NULL, &err);
    for (; n_lists < COUNT(forms); n_lists++) lists[n_lists] = tool_list_new(list, call_form_named(forms[n_lists]));
    if (!tok || !lists[0]) abort();
}

typedef struct reply {
    buf text; /* all events, written out */
    output_kind last;
    int calls, open;
} reply;

static void take(reply *r, const output_event *ev, size_t n) {
    static const char names[] = "crnae";
    for (size_t i = 0; i < n; i++) {
        if (utf8_valid(ev[i].text) != ev[i].text.n) abort();
        if (ev[i].kind == OUTPUT_CALL && (ev[i].call != r->calls++ || r->open++)) abort();
        if (ev[i].kind == OUTPUT_ARGS && (!r->open || ev[i].call != r->calls - 1)) abort();
        if (ev[i].kind == OUTPUT_CALL_END && --r->open) abort();
        if (!r->text.n || r->last != ev[i].kind || ev[i].kind >= OUTPUT_CALL)
            buf_printf(&r->text, "\n%c%d:", names[ev[i].kind], ev[i].whole);
        if (ev[i].kind == OUTPUT_ARGS && r->text.n > 4 && r->last == OUTPUT_ARGS) r->text.n -= 4;
        buf_str(&r->text, ev[i].text);
        r->last = ev[i].kind;
    }
}

/* Feeds ids; between any two of them, by the bits of `cut`, the machine is asked nothing or for its phase. */
static void run(const uint8_t *p, size_t n, const output_opts *o, reply *r) {
    output *out = output_new(tok, o);
    const output_event *ev;
    int stopped = OUTPUT_GOES_ON;
    for (size_t i = 0; i < n; i++) {
        int32_t forced = output_forced(out), id = forced >= 0 ? forced : p[i] >= 0xF8 ? 256 + (p[i] - 0xF8) : p[i];
        size_t k = output_push(out, id, &ev, &stopped);
        take(r, ev, k);
        (void)output_phase_of(out);
    }
    size_t k = output_finish(out, &ev);
    take(r, ev, k);
    if (r->open && stopped == OUTPUT_GOES_ON) abort();
    output_free(out);
}

/* The same bytes through the calls' reader alone, in pieces, against all at once. */
static void calls_in_pieces(const tool_list *l, const uint8_t *p, size_t n, uint8_t cut) {
    calls whole = {.tools = l}, pieces = {.tools = l};
    buf text = {0};
    for (size_t i = 0; i < n; i++) buf_putc(&text, (char)(p[i] < 0x80 || p[i] >= MARK_BYTE ? p[i] : 'u'));
    calls_add(&whole, buf_view(&text), true);
    for (size_t at = 0; at < text.n;) {
        size_t len = MIN(text.n - at, 1 + (size_t)((cut + at * 7) % 9));
        calls_add(&pieces, str_slice(buf_view(&text), at, at + len), false);
        at += len;
    }
    calls_add(&pieces, STR(""), true);
    if (whole.n != pieces.n || whole.failed != pieces.failed || whole.spoke != pieces.spoke) abort();
    calls_deinit(&whole), calls_deinit(&pieces);
    buf_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (!tok) open_parts();
    if (n < 3 || n > 4096) return 0;
    static const str stops[] = {STR("STOP"), STR("\n\n")};
    output_opts o = {.tools = data[0] & 0x80 ? NULL : lists[data[0] % n_lists],
                     .split_thinking = data[1] & 1,
                     .think = data[1] & 2 ? think_form_named("gemma") : NULL,
                     .prompt_tail = data[1] & 4 ? STR("<think>\n") : STR(""),
                     .stops = stops,
                     .n_stops = data[1] & 8 ? COUNT(stops) : 0,
                     .keep_special = data[1] & 16,
                     .one_call = data[1] & 32,
                     .has_think_budget = data[1] & 64,
                     .think_budget = data[2] & 15,
                     .reply_max = 200};
    reply r = {0};
    run(data + 3, n - 3, &o, &r);
    buf_free(&r.text);
    if (o.tools) calls_in_pieces(o.tools, data + 3, n - 3, data[2]);
    return 0;
}
