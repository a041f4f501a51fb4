/* One answer of a child, parsed: head, body, and small exchanges that wait for their answer. The child is our own
 * program, yet nothing here trusts it: a length, a chunk or a head that is no HTTP ends the exchange with ERR_ENGINE.
 * Not here: whose request it is (exchange.c). */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>
#include "front.h"

enum { HEADERS_UPSTREAM_MAX = 64, FETCH_BYTES_MAX = 16 << 20, CHUNK_LINE_MAX = 1024 };

/* ---- heads ------------------------------------------------------------------------------------------------------- */
static bool name_in(const char *name, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!strcasecmp(name, list[i])) return true;
    return false;
}

/* Is `name` one of the comma separated words of `list`? */
static bool listed(const char *list, const char *name) {
    size_t n = strlen(name);
    for (const char *p = list; *p; p += strcspn(p, ",")) {
        p += strspn(p, ", \t");
        if (!strncasecmp(p, name, n) && strcspn(p, ", \t") == n) return true;
    }
    return false;
}

bool upstream_hop_header(const char *name, const char *connection) {
    static const char *const hop[] = {
        "connection", "keep-alive",        "proxy-connection", "proxy-authenticate", "proxy-authorization", "te",
        "trailer",    "transfer-encoding", "upgrade"};
    return name_in(name, hop, COUNT(hop)) || (connection && listed(connection, name));
}

/* What the parent's libmicrohttpd or add_headers writes. */
static bool header_is_ours(const char *name) {
    static const char *const ours[] = {"content-length", "date", "vary", "x-request-id", "x-content-type-options"};
    return name_in(name, ours, COUNT(ours)) || !strncasecmp(name, "access-control-allow-origin", 27) ||
           !strncasecmp(name, "access-control-expose", 21);
}

static bool not_http(error *err) {
    return error_set(err, ERR_ENGINE, "the engine's process gave an answer that is no HTTP");
}

static bool header_take(str line, arena *a, upstream_head *h, error *err) {
    size_t colon = str_find(line, STR(":"));
    if (colon == SIZE_MAX || colon == 0 || h->n_header == HEADERS_UPSTREAM_MAX) return not_http(err);
    str value = str_trim(str_slice(line, colon + 1, line.n));
    const char *name = arena_copy(a, line.p, colon), *v = arena_copy(a, value.p, value.n);
    if (!strcasecmp(name, "content-length") && (!str_to_i64(value, &h->length) || h->length < 0)) return not_http(err);
    if (!strcasecmp(name, "transfer-encoding")) h->chunked = !strcasecmp(v, "chunked");
    if (!strcasecmp(name, "content-type")) h->events = !strncasecmp(v, "text/event-stream", 17);
    if (!header_is_ours(name)) h->header[h->n_header++] = (http_header){name, v};
    return true;
}

bool upstream_head_parse(str in, arena *a, upstream_head *h, size_t *used, error *err) {
    size_t end = str_find(in, STR("\r\n\r\n"));
    if (end == SIZE_MAX) return in.n > UPSTREAM_HEAD_MAX ? not_http(err) : false;
    *used = end + 4;
    *h = (upstream_head){.length = -1, .header = arena_array(a, http_header, HEADERS_UPSTREAM_MAX)};
    str head = str_slice(in, 0, end + 2);
    int64_t status = 0;
    if (head.n < 14 || !str_starts(head, STR("HTTP/1.")) || !str_to_i64(str_slice(head, 9, 12), &status) ||
        status < 100 || status > 599)
        return not_http(err);
    h->status = (int)status;
    for (size_t at = str_find(head, STR("\r\n")) + 2; at < head.n;) {
        str rest = str_slice(head, at, head.n);
        size_t n = str_find(rest, STR("\r\n"));
        if (!header_take(str_slice(rest, 0, n), a, h, err)) return false;
        at += n + 2;
    }
    /* With an upgrade these two are the answer; otherwise they end here. */
    size_t kept = 0;
    for (size_t i = 0; i < h->n_header; i++)
        if (!upstream_hop_header(h->header[i].name, NULL) ||
            (status == 101 && !strcasecmp(h->header[i].name, "upgrade")))
            h->header[kept++] = h->header[i];
    h->n_header = kept;
    return true;
}

/* ---- bodies ------------------------------------------------------------------------------------------------------ */
void upstream_body_init(upstream_body *b, const upstream_head *h, bool none) {
    *b = (upstream_body){.chunked = h->chunked, .left = h->chunked ? 0 : h->length};
    b->done = none || (!h->chunked && h->length == 0);
}

/* One line of the chunk syntax; false: not all there. */
static bool line_take(str in, size_t *at, str *line) {
    str rest = str_slice(in, *at, in.n);
    size_t n = str_find(rest, STR("\r\n"));
    if (n == SIZE_MAX) return false;
    *line = str_slice(rest, 0, n);
    *at += n + 2;
    return true;
}

static bool chunk_size(str line, int64_t *out) {
    size_t n = 0;
    *out = 0;
    while (n < line.n && n < 12 && str_digit(line.p[n]) < 16) *out = *out * 16 + str_digit(line.p[n++]);
    return n > 0 && n < 12 && (n == line.n || line.p[n] == ';' || str_space(line.p[n]));
}

static void data_take(upstream_body *b, str in, size_t *at, buf *out) {
    size_t n = in.n - *at;
    if (b->left >= 0) n = MIN(n, (size_t)b->left);
    buf_add(out, in.p + *at, n);
    *at += n;
    if (b->left > 0) b->left -= (int64_t)n;
}

bool upstream_body_push(upstream_body *b, str in, size_t *used, buf *out) {
    size_t at = 0;
    str line;
    *used = 0;
    if (!b->chunked) {
        if (!b->done) data_take(b, in, &at, out);
        b->done = b->done || b->left == 0;
        *used = at;
        return true;
    }
    while (!b->done && at < in.n) {
        if (b->at == CHUNK_DATA) {
            data_take(b, in, &at, out);
            if (b->left == 0) b->at = CHUNK_END;
            continue;
        }
        if (!line_take(in, &at, &line)) {
            if (in.n - at > CHUNK_LINE_MAX) return false;
            break;
        }
        if (b->at == CHUNK_SIZE) {
            if (!chunk_size(line, &b->left)) return false;
            b->at = b->left ? CHUNK_DATA : CHUNK_TRAILER;
        } else if (b->at == CHUNK_END) {
            if (line.n) return false;
            b->at = CHUNK_SIZE;
        } else if (line.n == 0) { /* the empty line behind the trailers */
            b->done = true;
        }
    }
    *used = at;
    return true;
}

/* ---- connections ------------------------------------------------------------------------------------------------- */
int upstream_connect(const char *path) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) == 0) return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

/* Reads to the end of the connection; false when the time is up or the answer is too large. */
static bool read_to_end(int fd, uint64_t end_ns, buf *in) {
    char part[8192];
    for (;;) {
        ssize_t n = recv(fd, part, sizeof part, 0);
        if (n == 0) return true;
        if (n > 0) {
            buf_add(in, part, (size_t)n);
            if (in->n > FETCH_BYTES_MAX) return false;
            continue;
        }
        uint64_t now = clock_ns();
        if ((errno != EAGAIN && errno != EINTR) || now >= end_ns) return false;
        poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, (int)((end_ns - now) / 1000000u) + 1);
    }
}

bool upstream_fetch(const char *path, const char *request, int timeout_ms, int *status, buf *body, error *err) {
    int fd = upstream_connect(path);
    if (fd < 0) return error_errno(err, ERR_ENGINE, "the engine's process cannot be reached");
    buf in = {0};
    size_t n = strlen(request), used = 0;
    upstream_head h;
    arena *a = arena_new(0);
    bool ok = send(fd, request, n, MSG_NOSIGNAL) == (ssize_t)n &&
              read_to_end(fd, clock_ns() + (uint64_t)timeout_ms * 1000000u, &in) &&
              upstream_head_parse(buf_view(&in), a, &h, &used, err);
    if (ok) {
        *status = h.status;
        buf_add(body, in.p + used, in.n - used);
    } else {
        error_set(err, ERR_ENGINE, "the engine's process does not answer");
    }
    arena_free(a);
    buf_free(&in);
    close(fd);
    return ok;
}
