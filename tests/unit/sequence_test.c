/* Page tables, reference counts, windows, state slots. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>
#include "../../src/engine/internal.h"

static const kv_layer layers[2];
static void store_of(kv_store *st, int groups, int32_t pages, int32_t window, int32_t slots) {
    kv_spec spec = {
        .n_layers = 2, .n_groups = groups, .layer = layers, .window = {0, window}, .n_pages = {pages, pages}};
    kv_store_init(st, &spec, (size_t[]){100, 10, 0, 0}, slots);
}

static void pages_are_taken_as_needed(void **state) {
    kv_store st;
    sequence a, b;
    store_of(&st, 1, 5, 0, 0);
    sequence_init(&a, &st, 1000);
    sequence_init(&b, &st, 1000);
    assert_true(sequence_extend(&a, &st, 64));
    assert_int_equal(a.n_page[0], 1);
    assert_true(sequence_extend(&a, &st, 65));
    assert_true(sequence_extend(&a, &st, 100));
    assert_int_equal(a.n_page[0], 2);
    assert_true(sequence_extend(&b, &st, 3 * 64));
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++) assert_int_not_equal(b.page[0][i], a.page[0][k]);
    assert_int_equal(kv_store_bytes_used(&st), 500);
    assert_false(sequence_extend(&a, &st, 129)); /* nothing is left, nothing changes */
    assert_int_equal(a.n_page[0], 2);
    sequence_reset(&b, &st);
    assert_true(sequence_extend(&a, &st, 129));
    sequence_deinit(&a, &st);
    sequence_deinit(&b, &st);
    assert_int_equal(st.pool[0].n_free, 5);
    kv_store_deinit(&st);
}

static void shared_pages_live_until_the_last(void **state) {
    kv_store st;
    store_of(&st, 1, 2, 0, 0);
    kv_pool *p = &st.pool[0];
    int32_t page = kv_page_take(&st, 0);
    kv_page_share(p, page);
    kv_page_drop(p, page);
    assert_int_equal(p->n_free, 1);
    kv_page_drop(p, page);
    assert_int_equal(p->n_free, 2);
    assert_int_equal(kv_page_take(&st, 0), page); /* freed last, taken first */
    assert_true(kv_page_take(&st, 0) >= 0);
    assert_int_equal(kv_page_take(&st, 0), -1);
    kv_store_deinit(&st);
}

/* A page goes back exactly when no query from now on can see a position of it. */
static void windows_release_what_they_left(void **state) {
    for (int32_t window = 1; window < 200; window += 33) {
        kv_store st;
        sequence s;
        store_of(&st, 2, 40, window, 0);
        sequence_init(&s, &st, 2000);
        for (int32_t n = 1; n < 1500; n += 37) {
            assert_true(sequence_extend(&s, &st, n));
            s.n_computed = n;
            sequence_release(&s, &st);
            int32_t oldest = MAX(0, n - window + 1); /* seen by the query at n */
            for (int32_t i = 0; i < s.n_page[1]; i++) assert_int_equal(s.page[1][i] < 0, (i + 1) * KV_PAGE <= oldest);
            for (int32_t i = 0; i < s.n_page[0]; i++) assert_true(s.page[0][i] >= 0);
            assert_true(s.n_page[1] - s.n_past[1] <= plan_pages(window, 37, n));
        }
        sequence_reset(&s, &st);
        assert_int_equal(kv_store_bytes_used(&st), 0);
        assert_int_equal(s.n_computed, 0);
        sequence_deinit(&s, &st);
        kv_store_deinit(&st);
    }
}

static void state_slots_go_with_the_sequence(void **state) {
    kv_store st;
    sequence s[3];
    store_of(&st, 1, 10, 0, 2);
    for (int i = 0; i < 3; i++) sequence_init(&s[i], &st, 100);
    assert_true(sequence_extend(&s[0], &st, 1));
    assert_true(sequence_extend(&s[1], &st, 1));
    assert_true(s[0].slot >= 0 && s[1].slot >= 0 && s[0].slot != s[1].slot);
    assert_false(sequence_extend(&s[2], &st, 1));
    assert_int_equal(s[2].n_page[0], 0);
    sequence_reset(&s[0], &st);
    assert_int_equal(s[0].slot, -1);
    assert_true(sequence_extend(&s[2], &st, 1));
    for (int i = 0; i < 3; i++) sequence_deinit(&s[i], &st);
    assert_int_equal(st.n_slots_free, 2);
    kv_store_deinit(&st);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_are_taken_as_needed),
        cmocka_unit_test(shared_pages_live_until_the_last),
        cmocka_unit_test(windows_release_what_they_left),
        cmocka_unit_test(state_slots_go_with_the_sequence),
    };
    return cmocka_run_group_tests_name("sequence", tests, NULL, NULL);
}
