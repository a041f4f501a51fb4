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

static void put_counts(buf *b, const engine *e, uint64_t saved) {
    engine_stats st;
    engine_stats_get(e, &st);
    buf_printf(
        b,
        "\"demotions\":%llu,\"entries\":%llu,\"pending_spills\":%llu,\"dropped_spills\":%llu,\"failed_spills\":%llu}",
        (unsigned long long)saved, (unsigned long long)st.ssd.entries, (unsigned long long)st.ssd.pending_spills,
        (unsigned long long)st.ssd.dropped_spills, (unsigned long long)st.ssd.failed_spills);
}

/* Lets what runs end, then writes the prompt cache where the next process finds it. Serves again afterwards. Without an
 * SSD cache there is nothing to write to, and nothing to fail. */
void route_admin_drain(http_req *q) {
    error e = {0};
    engine *en = atomic_load(&q->s->e);
    uint64_t saved = 0;
    bool ok = quiesce(q->s, &e) && (engine_cache_flush(en, QUIET_MS, &saved, &e) || e.code == ERR_UNSUPPORTED);
    atomic_store(&q->s->held, false);
    if (!ok) {
        reply_error(q, &e);
        return;
    }
    buf b = {0};
    buf_puts(&b, "{\"drained\":true,");
    put_counts(&b, en, saved);
    reply_json(q, 200, &b);
}

/* 200 once everything the cache holds is on the disk for good, 503 with the reason when it is not. */
void route_admin_flush(http_req *q) {
    error e = {0};
    engine *en = atomic_load(&q->s->e);
    uint64_t saved = 0;
    buf b = {0};
    bool ok = engine_cache_flush(en, QUIET_MS, &saved, &e);
    if (ok) {
        buf_puts(&b, "{\"flushed\":true,");
    } else {
        buf_puts(&b, "{\"error\":{\"message\":");
        json_write_string(&b, str_of(e.msg));
        buf_puts(&b, "},\"flushed\":false,");
    }
    put_counts(&b, en, saved);
    reply_json(q, ok ? 200 : 503, &b);
}
