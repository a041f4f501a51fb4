/* The page: files of web/, embedded into the program. A file's ETag is a hash of its bytes, so a new build is a new
 * page. */
#include <openssl/sha.h>
#include "internal.h"
#include "web.h"

/* Nothing from elsewhere, no inline script, no frame: what a reply could smuggle past the renderer would find nothing
 * to run. */
static const char policy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

static const char *type_of(str name) {
    static const struct {
        const char *ending, *type;
    } types[] = {{".html", "text/html; charset=utf-8"},
                 {".js", "text/javascript; charset=utf-8"},
                 {".css", "text/css; charset=utf-8"},
                 {".svg", "image/svg+xml"},
                 {".png", "image/png"}};
    for (size_t i = 0; i < COUNT(types); i++)
        if (str_ends(name, str_of(types[i].ending))) return types[i].type;
    return "application/octet-stream";
}

static void reply_file(http_req *q, str name) {
    const web_file *f = web_file_table;
    while (f->name && !str_is(name, f->name)) f++;
    if (!f->name) {
        error e = {0};
        error_set(&e, ERR_NOT_FOUND, "not found");
        reply_error(q, &e);
        return;
    }
    unsigned char digest[SHA256_DIGEST_LENGTH];
    SHA256((const unsigned char *)f->start, (size_t)(f->end - f->start), digest);
    const char *tag = arena_printf(q->a, "\"%02x%02x%02x%02x%02x%02x%02x%02x\"", digest[0], digest[1], digest[2],
                                   digest[3], digest[4], digest[5], digest[6], digest[7]);
    http_header_add(q, "ETag", tag);
    http_header_add(q, "Cache-Control", "no-cache"); /* ask each time; 304 is the usual answer */
    http_header_add(q, "Content-Security-Policy", policy);
    http_header_add(q, "Referrer-Policy", "no-referrer");
    const char *have = http_get_header(q, "If-None-Match");
    if (have && str_has(str_of(have), str_of(tag)))
        reply_status(q, 304);
    else
        reply_static(q, type_of(name), f->start, (size_t)(f->end - f->start));
}

void route_page(http_req *q) {
    reply_file(q, STR("index.html"));
}
void route_asset(http_req *q) {
    reply_file(q, q->rest);
}
void route_icon(http_req *q) {
    reply_file(q, STR("icon.svg"));
}
