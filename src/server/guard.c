/* Who may ask what: framing that could smuggle a second request, the Host and Origin rules against DNS rebinding and
 * foreign pages, API keys. The rules and their reasons are in docs/http.md. Not here: limits on sizes and time
 * (server.c, watch.c). */
#include <arpa/inet.h>
#include <ctype.h>
#include <strings.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include "internal.h"

/* ---- framing ----------------------------------------------------------------------------------------------------- */
typedef struct framing {
    size_t bytes;
    int lengths, encodings, hosts, bad_names, bad_values, bad_encoding, bad_length;
} framing;

static bool token_char(unsigned char c) {
    return isalnum(c) || (c && strchr("!#$%&'*+-.^_`|~", c));
}

static enum MHD_Result framing_header(void *arg, enum MHD_ValueKind kind, const char *key, size_t key_n,
                                      const char *value, size_t value_n) {
    framing *f = arg;
    f->bytes += key_n + value_n + 4;
    for (size_t i = 0; i < key_n; i++) f->bad_names += !token_char((unsigned char)key[i]);
    f->bad_names += key_n == 0;
    for (size_t i = 0; i < value_n; i++) f->bad_values += !value[i] || value[i] == '\r' || value[i] == '\n';
    if (!strcasecmp(key, "content-length")) {
        f->lengths++;
        f->bad_length += value_n == 0 || value_n > 18;
        for (size_t i = 0; i < value_n; i++) f->bad_length += !isdigit((unsigned char)value[i]);
    } else if (!strcasecmp(key, "transfer-encoding")) {
        f->encodings++;
        f->bad_encoding += strcasecmp(value ? value : "", "chunked") != 0;
    } else if (!strcasecmp(key, "host")) {
        f->hosts++;
    }
    return MHD_YES;
}

bool guard_framing(http_req *q, error *err) {
    framing f = {0};
    MHD_get_connection_values_n(q->mc, MHD_HEADER_KIND, framing_header, &f);
    q->head_n = f.bytes;
    if (q->needs_host && !f.hosts) return error_set(err, ERR_INVALID, "HTTP/1.1 needs a Host header");
    if (q->cn->nul_in_url) return error_set(err, ERR_INVALID, "the request path holds a NUL byte");
    if (q->cn->space_in_url) return error_set(err, ERR_INVALID, "the request target holds white space");
    if (f.bad_names) return error_set(err, ERR_INVALID, "a header name holds a character that names may not have");
    if (f.bad_values) return error_set(err, ERR_INVALID, "a header value holds a NUL byte or a line end");
    if (f.lengths && f.encodings)
        return error_set(err, ERR_INVALID, "Content-Length and Transfer-Encoding may not both be given");
    if (f.lengths > 1 || f.bad_length) return error_set(err, ERR_INVALID, "Content-Length must be one decimal number");
    if (f.encodings > 1 || f.bad_encoding) return error_set(err, ERR_INVALID, "Transfer-Encoding must be \"chunked\"");
    if (f.hosts > 1) return error_set(err, ERR_INVALID, "more than one Host header");
    return true;
}

/* ---- Host -------------------------------------------------------------------------------------------------------- */
/* The name in front of an optional ":port"; empty when anything else stands behind the name, since "[::1].evil.example"
 * is not [::1]. */
static str host_without_port(str h) {
    size_t end = str_find(h, str_of(h.n && h.p[0] == '[' ? "]" : ":"));
    if (h.n && h.p[0] == '[') end = end == SIZE_MAX ? 0 : end + 1;
    str rest = str_slice(h, end, h.n);
    for (size_t i = 0; i < rest.n; i++)
        if (i ? !isdigit((unsigned char)rest.p[i]) : rest.p[i] != ':') return (str){0};
    return str_slice(h, 0, end);
}

static bool same_name(str a, const char *b) {
    return strlen(b) == a.n && strncasecmp(a.p, b, a.n) == 0;
}

static bool host_is_loopback(str h) {
    return same_name(h, "localhost") || same_name(h, "127.0.0.1") || same_name(h, "[::1]");
}

static bool host_is_literal(str h) {
    char text[64];
    unsigned char address[16];
    if (h.n && h.p[0] == '[') h = str_slice(h, 1, h.n - 1);
    if (h.n == 0 || h.n >= sizeof text) return false;
    memcpy(text, h.p, h.n);
    text[h.n] = 0;
    return inet_pton(AF_INET, text, address) == 1 || inet_pton(AF_INET6, text, address) == 1;
}

static bool bind_is_loopback(const server *s) {
    const char *h = s->o.host;
    return s->o.unix_path || !strncmp(h, "127.", 4) || !strcmp(h, "::1") || !strcasecmp(h, "localhost");
}

static bool in_list(const char *const *list, size_t n, str what) {
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i], "*") || same_name(what, list[i])) return true;
    return false;
}

/* A rebinding page has a name of its own in Host. An address literal cannot be rebound, so a server that listens beyond
 * loopback takes those too. */
static bool host_allowed(const server *s, str host) {
    str name = host_without_port(host);
    if (host_is_loopback(name) || same_name(name, s->o.host)) return true;
    if (in_list(s->o.allowed_hosts, s->o.n_allowed_hosts, name)) return true;
    if (in_list(s->o.allowed_hosts, s->o.n_allowed_hosts, host)) return true;
    return !bind_is_loopback(s) && host_is_literal(name);
}

bool guard_host(http_req *q, error *err) {
    if (q->s->o.unix_path) return true; /* no browser reaches a unix socket */
    str host = http_host(q);
    if (!host.p || host_allowed(q->s, host)) return true; /* HTTP/1.1 without Host is MHD's 400 */
    return error_set(err, ERR_FORBIDDEN, "this Host is not served here; allow it with --allowed-hosts");
}

/* ---- Origin ------------------------------------------------------------------------------------------------------ */
static str origin_host(str origin) {
    size_t at = str_find(origin, STR("://"));
    return str_slice(origin, at == SIZE_MAX ? origin.n : at + 3, origin.n);
}

static bool origin_allowed(const http_req *q, str origin) {
    const server_opts *o = &q->s->o;
    str host = origin_host(origin);
    str own = http_host(q);
    if (own.n && host.n == own.n && !strncasecmp(host.p, own.p, own.n)) return true; /* our own page */
    if (o->n_allowed_origins) return in_list(o->allowed_origins, o->n_allowed_origins, origin);
    return host.n && host_is_loopback(host_without_port(host));
}

/* Reading is kept from a foreign page by the missing CORS header; what costs or changes something is refused outright,
 * since a "simple" POST is sent without asking first. */
bool guard_origin(http_req *q, error *err) {
    const char *origin = http_get_header(q, "Origin");
    if (!origin) return true;
    q->origin_ok = origin_allowed(q, str_of(origin));
    if (q->origin_ok || str_is(q->method, "GET") || str_is(q->method, "HEAD")) return true;
    return error_set(err, ERR_FORBIDDEN, "this Origin may not call the API; allow it with --allowed-origins");
}

/* ---- API key ----------------------------------------------------------------------------------------------------- */
str guard_key_given(const http_req *q) {
    const char *auth = http_get_header(q, "Authorization");
    if (auth && !strncasecmp(auth, "Bearer ", 7)) return str_trim(str_of(auth + 7));
    const char *key = http_get_header(q, "x-api-key");
    return key ? str_trim(str_of(key)) : (str){0};
}

/* Digests have one length, so neither the length nor the first difference of a key shows in the time; every key is
 * compared. */
bool guard_key(http_req *q, error *err) {
    const server_opts *o = &q->s->o;
    if (!o->n_api_keys) return true;
    str given = guard_key_given(q);
    unsigned char have[SHA256_DIGEST_LENGTH], want[SHA256_DIGEST_LENGTH];
    SHA256((const unsigned char *)(given.n ? given.p : ""), given.n, have);
    int found = 0;
    for (size_t i = 0; i < o->n_api_keys; i++) {
        SHA256((const unsigned char *)o->api_keys[i], strlen(o->api_keys[i]), want);
        found |= CRYPTO_memcmp(have, want, sizeof have) == 0;
    }
    if (found && given.n) return true;
    http_header_add(q, "WWW-Authenticate", "Bearer");
    return error_set(err, ERR_AUTH,
                     given.n ? "the API key is not known" : "an API key is needed: Authorization: Bearer KEY");
}
