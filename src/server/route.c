/* Finding a route, and GET /v1, which lists them. Not here: what routes do. */
#include "internal.h"

#define ROUTE(method, pattern, handler, flags) {method, pattern, handler, flags, NULL},
#define ROUTE_LATER(method, pattern, feature)  {method, pattern, NULL, ROUTE_HIDDEN, feature},
static const route routes[] = {
#include "routes.def"
};
#undef ROUTE
#undef ROUTE_LATER

const route *route_all(size_t *n) {
    *n = COUNT(routes);
    return routes;
}

static bool pattern_matches(const char *pattern, str path, str *rest) {
    str p = str_of(pattern);
    *rest = (str){0};
    if (p.n < 2 || p.p[p.n - 1] != '*') return str_eq(p, path);
    p.n--;
    if (path.n <= p.n || !str_starts(path, p)) return false;
    *rest = str_slice(path, p.n, path.n);
    return true;
}

const route *route_find(str method, str path, str *rest, arena *a, const char **allow) {
    if (str_is(method, "HEAD")) method = STR("GET"); /* MHD leaves the body out */
    buf methods = {0};
    const route *found = NULL;
    for (size_t i = 0; i < COUNT(routes) && !found; i++) {
        str r;
        if (!pattern_matches(routes[i].pattern, path, &r)) continue;
        if (str_is(method, routes[i].method)) {
            found = &routes[i];
            *rest = r;
        } else if (!str_has(buf_view(&methods), str_of(routes[i].method))) {
            buf_printf(&methods, "%s%s", routes[i].method, strcmp(routes[i].method, "GET") ? ", " : ", HEAD, ");
        }
    }
    *allow = NULL;
    if (!found && methods.n) {
        buf_puts(&methods, "OPTIONS");
        *allow = arena_copy(a, methods.p, methods.n);
    }
    buf_free(&methods);
    return found;
}

void route_index(http_req *q) {
    buf b = {0};
    engine *e = atomic_load(&q->s->e);
    buf_puts(&b, "{\"name\":\"hearth\",\"version\":\"" HEARTH_VERSION "\",\"model\":");
    if (e)
        json_write_string(&b, str_of(engine_model_id(e)));
    else
        buf_puts(&b, "null");
    buf_puts(&b, ",\"endpoints\":[");
    bool first = true;
    for (size_t i = 0; i < COUNT(routes); i++) {
        if (routes[i].flags & ROUTE_HIDDEN) continue;
        buf_printf(&b, "%s\"%s %s\"", first ? "" : ",", routes[i].method, routes[i].pattern);
        first = false;
    }
    buf_puts(&b, "]}");
    reply_json(q, 200, &b);
}
