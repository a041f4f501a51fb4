/* /admin: for the parent of --isolate and whoever owns the socket; on a unix socket only. */
#include <time.h>
#include "internal.h"

enum { QUIET_MS = 120000 };

/* Requests that need the model are refused meanwhile; true once none runs. */
static bool quiesce(server *s, error *err) {
    uint64_t end = clock_ns() + (uint64_t)QUIET_MS * 1000000u;
    atomic_store(&s->held, true);
    engine_stats st;
    for (;;) {
        engine_stats_get(atomic_load(&s->e), &st);
        if (!st.running && !st.waiting) return true;
        if (clock_ns() > end || atomic_load(&s->draining)) break;
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    return error_set(err, ERR_UNAVAILABLE, "%d generations still run", st.running + st.waiting);
}

/* Lets what runs end, then writes the prompt cache where the next process finds it. Serves again afterwards. */
void route_admin_drain(http_req *q) {
    error e = {0};
    bool quiet = quiesce(q->s, &e);
    atomic_store(&q->s->held, false);
    if (!quiet) {
        reply_error(q, &e);
        return;
    }
    buf b = {0};
    buf_puts(&b, "{\"drained\":true,\"demotions\":0}"); /* there is no cache on disk to write to */
    reply_json(q, 200, &b);
}

/* 200: everything the cache holds is on the disk; without one there is nothing to write. */
void route_admin_flush(http_req *q) {
    buf b = {0};
    buf_puts(&b, "{\"flushed\":true,\"entries\":0}");
    reply_json(q, 200, &b);
}
