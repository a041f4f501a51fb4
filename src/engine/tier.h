/* tier: what moves between the prompt cache in memory (prefix.h) and the store on disk (cold.h). All of it runs on the
 * engine's thread and none of it waits for the disk: what is new in memory is copied to the store's queue after each
 * step, and a request whose prompt goes on further on disk than in memory waits beside the queue, while others run,
 * until its blobs were read into the prompt cache; then it is admitted like any other. */
#pragma once
#include "engine.h"

struct engine;
struct gen;
typedef struct tier tier;

/* NULL with err unset: no SSD cache was asked for, or there is no prompt cache. */
tier *tier_open(struct engine *e, const engine_opts *o, size_t budget, const kv_spec *kv, error *err);
void tier_close(tier *t);                                /* what waits for the disk is written */
size_t tier_memory(const engine_opts *o, size_t budget); /* that it may use: queue and read-ahead */

/* Once a turn of the scheduler: copies what the prompt cache holds and the store lacks, a little while requests run,
 * more without. True: there is more, and room for it. */
bool tier_turn(tier *t);
/* Does the disk know more of this prompt than memory? Then its reading begins, and g is not to be admitted before
 * tier_restore says so. Once a request. */
bool tier_wants(tier *t, struct gen *g);
/* Takes what has been read; true when there is no more to come. */
bool tier_restore(tier *t, struct gen *g);
void tier_forget(struct gen *g); /* the request ends before. It may not be restoring at all */
void tier_drain(tier *t);        /* at the end: writes what memory holds, as far as the disk takes it within DRAIN_MS */
const ssd_stats *tier_counters(const tier *t);
void tier_stats_add(tier *t, ssd_stats *io); /* from any thread: what the store counts, beside the above */
