/* The memory plan: what fits, what is capped, what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include "../../src/engine/internal.h"

static plan_in base(void) {
    return (plan_in){.budget = 1000000,
                     .weights = 300000,
                     .workspace = 50000,
                     .scratch = 10000,
                     .batch = 4,
                     .chunk = 64,
                     .context_max = 4096,
                     .n_groups = 1,
                     .page_bytes = {1000}};
}
static size_t total(const plan_in *in, const plan *p) {
    size_t n = p->fixed_bytes;
    for (int g = 0; g < in->n_groups; g++) n += (size_t)p->n_pages[g] * in->page_bytes[g];
    return n;
}

static void everything_fits(void **state) {
    plan_in in = base();
    plan p;
    error err = {0};
    assert_true(plan_make(&p, &in, &err));
    assert_int_equal(p.context, 4096);
    assert_int_equal(p.n_pages[0], 4 * 64); /* the whole batch at full context, and no more */
    assert_int_equal(p.fixed_bytes, 360000);
    assert_int_equal(p.kv_bytes, 256000);
}

static void the_budget_is_never_passed_and_well_used(void **state) {
    error err = {0};
    for (size_t budget = 361000; budget < 700000; budget += 7919) {
        for (int groups = 1; groups <= 2; groups++) {
            plan_in in = base();
            plan p;
            in.budget = budget;
            in.state = 500;
            in.n_groups = groups;
            in.window[1] = 300;
            in.page_bytes[1] = 400;
            error refused = {0};
            if (!plan_make(&p, &in, &refused)) {
                assert_int_equal(refused.code, ERR_MEMORY);
                assert_true(budget < 380000);
                continue;
            }
            assert_true(total(&in, &p) <= budget);
            assert_int_equal(total(&in, &p), p.fixed_bytes + p.kv_bytes);
            for (int g = 0; g < groups; g++) assert_true(p.n_pages[g] >= plan_pages(in.window[g], in.chunk, p.context));
            if (p.context < 4096) { /* one position more would not fit */
                size_t more = p.fixed_bytes;
                for (int g = 0; g < groups; g++)
                    more += (size_t)plan_pages(in.window[g], in.chunk, p.context + 1) * in.page_bytes[g];
                assert_true(more > budget);
            }
        }
    }
    (void)err;
}

/* The cache is in the budget, takes nothing of one full context, and defaults to half of what is left. */
static void the_prompt_cache_is_planned(void **state) {
    for (int groups = 0; groups <= 2; groups++)
        for (size_t budget = 420000; budget < 3000000; budget += 79190)
            for (size_t cache = 0; cache < 1200000; cache += 199999) {
                plan_in in = base();
                plan p;
                error err = {0};
                in.budget = budget;
                in.state = 500;
                in.block_bytes = 30;
                in.n_groups = groups;
                in.window[1] = 300;
                in.page_bytes[1] = 400;
                in.context = 2560;
                in.cache = cache ? cache : PLAN_CACHE_DEFAULT;
                if (!plan_make(&p, &in, &err)) {
                    assert_true(budget < 500000);
                    continue;
                }
                size_t all = p.fixed_bytes + p.kv_bytes + p.cache_bytes;
                assert_true(all <= budget);
                size_t sum = (size_t)p.cache_blocks * 30 + (size_t)p.cache_slots * 500, one = 0;
                for (int g = 0; g < groups; g++) {
                    sum += (size_t)p.cache_pages[g] * in.page_bytes[g];
                    one += (size_t)plan_pages(in.window[g], in.chunk, 2560) * in.page_bytes[g];
                    assert_true(p.n_pages[g] >= plan_pages(in.window[g], in.chunk, 2560));
                }
                assert_int_equal(sum, p.cache_bytes);
                size_t left = budget - p.fixed_bytes - one, most = cache ? MIN(cache, left) : left / 2;
                assert_true(p.cache_bytes <= most);
                const size_t unit = 30 * 64 + 1000 + (groups > 0 ? 64000 : 0) + (groups > 1 ? 2 * 6 * 400 : 0);
                const bool capped = p.cache_blocks >= 65535;
                if (p.cache_blocks && !capped) assert_true(p.cache_bytes + unit > most); /* and well used */
                if (p.cache_blocks) assert_true(p.cache_slots > 0);
            }
}

static void refusals_give_the_numbers(void **state) {
    plan p;
    plan_in in = base();
    error err = {0};
    in.budget = 200000;
    assert_false(plan_make(&p, &in, &err));
    assert_int_equal(err.code, ERR_MEMORY);
    in.weights = SIZE_MAX - 5; /* sizes from a file: no overflow */
    err = (error){0};
    assert_false(plan_make(&p, &in, &err));
    assert_int_equal(err.code, ERR_MEMORY);
    in = base();
    in.budget = 400000;
    in.context = 4096;
    err = (error){0};
    assert_false(plan_make(&p, &in, &err));
    assert_int_equal(err.code, ERR_MEMORY);
    assert_non_null(strstr(err.msg, "4096"));
    assert_non_null(strstr(err.msg, "2560")); /* 40 pages remain */
    in.context = 2560;
    err = (error){0};
    assert_true(plan_make(&p, &in, &err));
    assert_int_equal(p.context, 2560);
    in.context = 5000;
    err = (error){0};
    assert_false(plan_make(&p, &in, &err));
    assert_int_equal(err.code, ERR_INVALID);
    assert_string_equal(err.param, "context_length");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_fits),
        cmocka_unit_test(the_budget_is_never_passed_and_well_used),
        cmocka_unit_test(the_prompt_cache_is_planned),
        cmocka_unit_test(refusals_give_the_numbers),
    };
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
